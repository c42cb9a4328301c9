"""The emergency stop: a small file that every run looks at before each call and each reply.

What cannot be read stops everything. A file that is deleted releases nothing that it had stopped.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_array
from evoclaw.core.ports import ALLOW, Deny, Policy, Verdict
from evoclaw.core.tools import Call

FILE = "stops.json"
"""Its name in the data folder."""
MAX_BYTES = 1 << 20
EVERY = 0.25
"""Seconds between two looks at the file while something runs."""
CODE = "stopped"
NETWORK, SHELL, DEVICE = "network", "shell", "device"
"""Permissions: to reach others, to run commands that might, to have devices do something."""
TARGETS = ("agent_id", "node")
"""The arguments by which tools of the fleet name a device."""
EVERYBODY, SELECTOR = "*", "type:"
"""Instead of one: all of them, or those of a kind."""
ACTIONS = ("action", "what")
"""The arguments by which they name a tool of that device."""


class Kind(StrEnum):
    """How much is stopped."""

    ALL = "all"
    AGENT = "agent"
    TOOL = "tool"
    NETWORK = "network"


class Stop(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Something that may not go on until a person says so."""

    kind: Kind
    name: str = ""
    """Of the agent, or the tool."""
    reason: str = ""
    by: str = ""
    at: float = 0.0

    @property
    def what(self) -> str:
        """What is stopped, in words."""
        match self.kind:
            case Kind.ALL:
                return "everything"
            case Kind.NETWORK:
                return "everything that reaches the network"
            case Kind.AGENT | Kind.TOOL:
                return f"the {self.kind} {self.name}"

    @property
    def told(self) -> str:
        """The same with the reason that was given."""
        return f"a person stopped {self.what}" + (f" ({self.reason})" if self.reason else "")


class _Document(Struct, forbid_unknown_fields=True):
    stops: tuple[Stop, ...]


class UnsoundStops(ConfigError):
    """The file cannot be read or trusted."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(
            f"everything is stopped: {path} {problem}; look at it, then set it right with "
            "`evoclaw stop --release --all`"
        )
        self.path, self.problem = path, problem


class StopFile:
    """The stops of this machine, for all its processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stops(self) -> tuple[Stop, ...]:
        """What is stopped; none if there is no file. `UnsoundStops` if it cannot be trusted."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self.path, flags)
        except FileNotFoundError:
            return ()
        except OSError as problem:
            raise UnsoundStops(self.path, f"cannot be read ({problem.strerror})") from None
        try:
            if problem := self._unsound(os.fstat(descriptor)):
                raise UnsoundStops(self.path, problem)
            data = os.read(descriptor, MAX_BYTES)
            return msgspec.json.decode(data, type=_Document).stops
        except (OSError, msgspec.DecodeError, RecursionError) as problem:
            raise UnsoundStops(self.path, f"is damaged ({problem})") from None
        finally:
            os.close(descriptor)

    def put(self, stop: Stop) -> None:
        """Stop something; what was said before about the same thing is replaced."""
        with self._alone():
            try:
                there = self.stops()
            except UnsoundStops:
                if stop.kind is not Kind.ALL:
                    raise
                there = ()  # whatever it said, everything includes it
            self._write([*(one for one in there if not _same(one, stop)), stop])

    def put_all(self, stops: Iterable[Stop]) -> None:
        """Have these stopped, and nothing else, whatever it said before."""
        with self._alone():
            self._write(list(stops))

    def release(self, kind: Kind, name: str = "") -> Stop | None:
        """Take one stop back; what it was. To release all also sets a file right that is not."""
        wanted = Stop(kind, name)
        with self._alone():
            try:
                there = self.stops()
            except UnsoundStops as problem:
                if kind is not Kind.ALL:
                    raise
                with suppress(FileNotFoundError):
                    aside = f"{self.path.name}.unsound-{time.time_ns()}"
                    self.path.rename(self.path.with_name(aside))
                self._write([])
                return Stop(Kind.ALL, reason=problem.problem)
            found = next((one for one in there if _same(one, wanted)), None)
            # Written in any case: who has seen the file vanish goes by what it said last.
            self._write([one for one in there if not _same(one, wanted)])
            return found

    def _unsound(self, found: os.stat_result) -> str:
        if not stat.S_ISREG(found.st_mode):
            return "is no file"
        if found.st_mode & 0o022:
            return "may be changed by others than its owner"
        if found.st_uid not in (0, os.geteuid(), self.path.parent.stat().st_uid):
            return "belongs to somebody else"
        return f"has more than {MAX_BYTES} bytes" if found.st_size > MAX_BYTES else ""

    @contextmanager
    def _alone(self) -> Generator[None]:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            finally:
                os.close(lock)
        except OSError as problem:
            text = f"cannot write {self.path}: {problem.strerror}; nothing was changed"
            raise ConfigError(text) from None

    def _write(self, stops: list[Stop]) -> None:
        draft = self.path.with_name(f"{self.path.name}.new")
        try:
            before = self.path.stat().st_mtime_ns
        except FileNotFoundError:
            before = 0
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        with os.fdopen(file, "wb") as opened:
            os.fchmod(file, 0o644)
            opened.write(msgspec.json.encode({"stops": stops}))
            opened.flush()
            # A clock's tick is longer than two changes: each one must look different.
            now = max(os.fstat(file).st_mtime_ns, before + 1)
            os.utime(file, ns=(now, now))
            os.fsync(file)
        draft.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


Mark: TypeAlias = tuple[int, ...] | None


class _Seen:
    """One file as it was read last; asked by its stat whether it has changed."""

    __slots__ = ("_file", "_mark", "_path", "_stops")

    def __init__(self, file: StopFile) -> None:
        self._file, self._path = file, str(file.path)
        self._mark: Mark = None
        self._stops: tuple[Stop, ...] = ()

    def look(self) -> bool:
        """Whether it says something else than at the last look; raises if it cannot be trusted."""
        try:
            # Not Path.lstat: this is paid for every call.
            found = os.lstat(self._path)
        except FileNotFoundError:
            return False  # what a vanished file had stopped stays stopped
        except OSError as problem:
            self._mark = None
            text = f"cannot be read ({problem.strerror})"
            raise UnsoundStops(self._file.path, text) from None
        mark = (found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode, found.st_uid)
        if mark == self._mark:
            return False
        self._mark = None
        self._stops = self._file.stops()
        self._mark = mark
        return True

    @property
    def stops(self) -> tuple[Stop, ...]:
        return self._stops


class _Standing:
    """All that is stopped now, by what it is looked for."""

    __slots__ = ("agents", "everything", "network", "some", "tools")

    def __init__(self, stops: Iterable[Stop]) -> None:
        self.everything: Stop | None = None
        self.network: Stop | None = None
        self.agents: dict[str, Stop] = {}
        self.tools: dict[str, Stop] = {}
        self.some = False
        for stop in stops:
            self.some = True
            match stop.kind:
                case Kind.ALL:
                    self.everything = stop
                case Kind.NETWORK:
                    self.network = stop
                case Kind.AGENT:
                    self.agents[stop.name] = stop
                case Kind.TOOL:
                    self.tools[stop.name.casefold()] = stop


class Stops(Policy):
    """Denies what a person has stopped; the first rule on every side of the link."""

    def __init__(
        self,
        *files: StopFile,
        agent: str = "",
        targets: Iterable[str] = (),
        shell_offline: bool = False,
    ) -> None:
        """Obey these files.

        Args:
            files: Each counts: the machine's, and that of an edge's own data folder.
            agent: Whose calls are judged, beside the one that each call names.
            targets: The devices that all calls go to, where their arguments do not say so.
            shell_offline: Whether commands run in a sandbox that has no way to the network.
        """
        self._seen = [_Seen(file) for file in files]
        self._agent, self._targets = agent, (agent, *targets)
        self._network = frozenset({NETWORK} if shell_offline else {NETWORK, SHELL})
        self._standing = _Standing(())

    async def judge(self, call: Call) -> Verdict:
        """Deny what is stopped."""
        standing = self._look()
        if not standing.some:
            return ALLOW
        stop = self._covering(standing, call)
        return ALLOW if stop is None else _denied(stop)

    async def admit(self, turn: int) -> Verdict:
        """Ask no model any more when the whole agent is stopped."""
        stop = self.ends()
        return ALLOW if stop is None else _denied(stop)

    def ends(self) -> Stop | None:
        """The stop, if there is one, that also ends what is under way."""
        standing = self._look()
        return standing.everything or standing.agents.get(self._agent)

    def agents(self) -> tuple[str, ...]:
        """The agents and devices that are stopped by name."""
        return tuple(self._look().agents)

    def keeps_from(self, agent_id: str, call: Call | None = None) -> Stop | None:
        """The stop, if any, because of which a device is sent nothing, or not this call."""
        standing = self._look()
        stop = standing.everything or standing.agents.get(agent_id)
        if stop is None and call is not None and standing.some:
            stop = self._covering(standing, call)
        return stop

    def _look(self) -> _Standing:
        """What is stopped now; everything, if that cannot be known."""
        try:
            changed = False
            for seen in self._seen:
                changed = seen.look() or changed
        except UnsoundStops as problem:
            self._standing = _Standing((Stop(Kind.ALL, reason=str(problem)),))
            return self._standing
        if changed:
            self._standing = _Standing(stop for seen in self._seen for stop in seen.stops)
        return self._standing

    def _covering(self, standing: _Standing, call: Call) -> Stop | None:
        if standing.everything is not None:
            return standing.everything
        if standing.network is not None and (
            call.tool.sends or not self._network.isdisjoint(call.tool.permissions)
        ):
            return standing.network
        fleet = DEVICE in call.tool.permissions
        if standing.tools:
            named = _named(call, ACTIONS) if fleet else ()
            for name in (call.tool.name, *call.tool.aliases, *named):
                if (stop := standing.tools.get(name.casefold())) is not None:
                    return stop
        return self._covering_agent(standing.agents, call, fleet) if standing.agents else None

    def _covering_agent(self, agents: dict[str, Stop], call: Call, fleet: bool) -> Stop | None:
        named = _named(call, TARGETS) if fleet else ()
        for name in (call.context.principal.agent, *self._targets, *named):
            if (stop := agents.get(name)) is not None:
                return stop
            if name == EVERYBODY or name.startswith(SELECTOR):
                return next(iter(agents.values()))  # it might mean a stopped one: name the others
        return None


@asynccontextmanager
async def ended_by(
    stops: Stops, *ends: Callable[[], object], every: float = EVERY
) -> AsyncGenerator[None]:
    """While the block runs, call `ends` as soon as a stop appears, and again while it stands.

    For a run that is `deadline.cancel`; for a device, what cancels each of its calls.
    """

    async def watch() -> None:
        while True:
            if stops.ends() is not None:
                for end in ends:
                    end()
            await asyncio.sleep(every)

    watching = asyncio.create_task(watch(), name="stops")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


def _named(call: Call, arguments: Iterable[str]) -> Iterable[str]:
    """What a call to the fleet names by these arguments."""
    for argument in arguments:
        value: JSON = call.arguments.get(argument)
        for name in value if is_array(value) else (value,):
            if isinstance(name, str):
                yield name


def _same(one: Stop, other: Stop) -> bool:
    return (one.kind, one.name) == (other.kind, other.name)


def _denied(stop: Stop) -> Deny:
    reason = f"{stop.told}. Do not try another way; tell the user that it was stopped."
    return Deny(CODE, reason, stop.told)
