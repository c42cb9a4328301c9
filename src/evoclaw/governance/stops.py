"""The emergency stop: a small file that every run checks before each call and each reply.

A file that cannot be read or trusted stops everything. Deleting the file releases nothing.
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

STOPS_FILE_NAME = "stops.json"
"""The name of the stop file in the data folder."""
MAX_STOPS_FILE_BYTES = 1 << 20
STOPS_POLL_INTERVAL_S = 0.25
"""Seconds between two checks of the file while calls run."""
STOPPED_CODE = "stopped"
NETWORK, SHELL, DEVICE = "network", "shell", "device"
"""Permissions: to reach the network, to run commands that might, to make devices act."""
TARGET_ARGUMENTS = ("agent_id", "node")
"""The arguments by which tools of the fleet name a device."""
ALL_AGENTS, TYPE_SELECTOR = "*", "type:"
"""What a tool of the fleet may name instead of one device: all devices, or those of a type."""
ACTION_ARGUMENTS = ("action", "what")
"""The arguments by which tools of the fleet name a tool of the device."""


class StopKind(StrEnum):
    """What a stop covers."""

    ALL = "all"
    AGENT = "agent"
    TOOL = "tool"
    NETWORK = "network"


class Stop(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A stop that a person set; it holds until a person releases it."""

    kind: StopKind
    name: str = ""
    """The name of the agent or tool."""
    reason: str = ""
    by: str = ""
    at: float = 0.0

    @property
    def subject(self) -> str:
        """What is stopped, for people."""
        match self.kind:
            case StopKind.ALL:
                return "everything"
            case StopKind.NETWORK:
                return "everything that reaches the network"
            case StopKind.AGENT | StopKind.TOOL:
                return f"the {self.kind} {self.name}"

    @property
    def description(self) -> str:
        """What is stopped and why, for people."""
        return f"a person stopped {self.subject}" + (f" ({self.reason})" if self.reason else "")


class _StopsDocument(Struct, forbid_unknown_fields=True):
    stops: tuple[Stop, ...]


class UntrustedStopFile(ConfigError):
    """The stop file cannot be read or trusted, so everything is stopped."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(
            f"everything is stopped: {path} {problem}. Check the file, then reset it with "
            "`evoclaw stop --release --all`"
        )
        self.path, self.problem = path, problem


class StopFile:
    """The stop file of this machine, shared by all its processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stops(self) -> tuple[Stop, ...]:
        """The active stops; none if there is no file. Raises `UntrustedStopFile`."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self.path, flags)
        except FileNotFoundError:
            return ()
        except OSError as problem:
            raise UntrustedStopFile(self.path, f"cannot be read ({problem.strerror})") from None
        try:
            if problem := self._problem_with(os.fstat(descriptor)):
                raise UntrustedStopFile(self.path, problem)
            data = os.read(descriptor, MAX_STOPS_FILE_BYTES)
            return msgspec.json.decode(data, type=_StopsDocument).stops
        except (OSError, msgspec.DecodeError, RecursionError) as problem:
            raise UntrustedStopFile(self.path, f"is damaged ({problem})") from None
        finally:
            os.close(descriptor)

    def put(self, stop: Stop) -> None:
        """Add a stop; it replaces an earlier stop of the same target."""
        with self._locked():
            try:
                stops = self.stops()
            except UntrustedStopFile:
                if stop.kind is not StopKind.ALL:
                    raise
                stops = ()  # a stop of everything includes whatever the file held
            self._write([*(known for known in stops if not _same_target(known, stop)), stop])

    def replace_all(self, stops: Iterable[Stop]) -> None:
        """Replace all stops with these."""
        with self._locked():
            self._write(list(stops))

    def release(self, kind: StopKind, name: str = "") -> Stop | None:
        """Remove a stop and return it. Releasing `all` also resets an untrusted file."""
        wanted = Stop(kind, name)
        with self._locked():
            try:
                stops = self.stops()
            except UntrustedStopFile as problem:
                if kind is not StopKind.ALL:
                    raise
                with suppress(FileNotFoundError):
                    aside = f"{self.path.name}.unsound-{time.time_ns()}"
                    self.path.rename(self.path.with_name(aside))
                self._write([])
                return Stop(StopKind.ALL, reason=problem.problem)
            found = next((stop for stop in stops if _same_target(stop, wanted)), None)
            # Always write: a run that saw the file vanish still obeys its last content.
            self._write([stop for stop in stops if not _same_target(stop, wanted)])
            return found

    def _problem_with(self, found: os.stat_result) -> str:
        if not stat.S_ISREG(found.st_mode):
            return "is not a regular file"
        if found.st_mode & 0o022:
            return "is writable by users other than its owner"
        if found.st_uid not in (0, os.geteuid(), self.path.parent.stat().st_uid):
            return "belongs to another user"
        return (
            f"has more than {MAX_STOPS_FILE_BYTES} bytes"
            if found.st_size > MAX_STOPS_FILE_BYTES
            else ""
        )

    @contextmanager
    def _locked(self) -> Generator[None]:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._give_to_folder_owner(lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            finally:
                os.close(lock)
        except OSError as problem:
            text = f"cannot write {self.path}: {problem.strerror}; nothing was changed"
            raise ConfigError(text) from None

    def _give_to_folder_owner(self, file: int) -> None:
        """A stop that root sets must be readable for the processes of the folder's owner."""
        owner = self.path.parent.stat()
        if os.geteuid() == 0 != owner.st_uid:
            os.fchown(file, owner.st_uid, owner.st_gid)

    def _write(self, stops: list[Stop]) -> None:
        draft = self.path.with_name(f"{self.path.name}.new")
        try:
            before = self.path.stat().st_mtime_ns
        except FileNotFoundError:
            before = 0
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as opened:
            os.fchmod(file, 0o600)
            self._give_to_folder_owner(file)
            opened.write(msgspec.json.encode({"stops": stops}))
            opened.flush()
            # Two writes may fall into one clock tick: each must have its own modification time.
            now = max(os.fstat(file).st_mtime_ns, before + 1)
            os.utime(file, ns=(now, now))
            os.fsync(file)
        draft.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


FileStamp: TypeAlias = tuple[int, ...] | None


class _CachedStopFile:
    """The content of a stop file, read again only when its stat has changed."""

    __slots__ = ("_file", "_mark", "_path", "_stops")

    def __init__(self, file: StopFile) -> None:
        self._file, self._path = file, str(file.path)
        self._mark: FileStamp = None
        self._stops: tuple[Stop, ...] = ()

    def refresh(self) -> bool:
        """Read the file if it changed; whether it did. Raises `UntrustedStopFile`."""
        try:
            # os.lstat is faster than Path.lstat, and this runs before every call.
            found = os.lstat(self._path)
        except FileNotFoundError:
            return False  # deleting the file releases nothing
        except OSError as problem:
            self._mark = None
            text = f"cannot be read ({problem.strerror})"
            raise UntrustedStopFile(self._file.path, text) from None
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


class _ActiveStops:
    """The active stops, indexed by what they cover."""

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
                case StopKind.ALL:
                    self.everything = stop
                case StopKind.NETWORK:
                    self.network = stop
                case StopKind.AGENT:
                    self.agents[stop.name] = stop
                case StopKind.TOOL:
                    self.tools[stop.name.casefold()] = stop


class Stops(Policy):
    """Denies what a person has stopped; the first policy of orchestrators and edges alike."""

    def __init__(
        self,
        *files: StopFile,
        agent: str = "",
        targets: Iterable[str] = (),
        shell_offline: bool = False,
    ) -> None:
        """Obey the stops of all these files.

        Args:
            files: The machine's stop file, and that of an edge's own data folder.
            agent: The agent whose calls are judged, beside the agent that each call names.
            targets: The devices that all calls go to, where the arguments do not name them.
            shell_offline: Whether commands run in a sandbox without network.
        """
        self._files = [_CachedStopFile(file) for file in files]
        self._agent, self._targets = agent, (agent, *targets)
        self._network = frozenset({NETWORK} if shell_offline else {NETWORK, SHELL})
        self._active = _ActiveStops(())

    async def judge(self, call: Call) -> Verdict:
        """Deny a call that a stop covers."""
        active = self._refresh()
        if not active.some:
            return ALLOW
        stop = self._matching_stop(active, call)
        return ALLOW if stop is None else _denied(stop)

    async def admit(self, turn: int) -> Verdict:
        """Deny a turn when everything, or this agent, is stopped."""
        stop = self.cancelling_stop()
        return ALLOW if stop is None else _denied(stop)

    def cancelling_stop(self) -> Stop | None:
        """The stop, if any, that also cancels running calls: of everything, or of this agent."""
        active = self._refresh()
        return active.everything or active.agents.get(self._agent)

    def stopped_agents(self) -> tuple[str, ...]:
        """The names of the stopped agents and devices."""
        return tuple(self._refresh().agents)

    def stop_for_device(self, agent_id: str, call: Call | None = None) -> Stop | None:
        """The stop, if any, that forbids sending a device anything, or this call."""
        active = self._refresh()
        stop = active.everything or active.agents.get(agent_id)
        if stop is None and call is not None and active.some:
            stop = self._matching_stop(active, call)
        return stop

    def _refresh(self) -> _ActiveStops:
        """The active stops; a stop of everything if a file cannot be trusted."""
        try:
            changed = False
            for file in self._files:
                changed = file.refresh() or changed
        except UntrustedStopFile as problem:
            self._active = _ActiveStops((Stop(StopKind.ALL, reason=str(problem)),))
            return self._active
        if changed:
            self._active = _ActiveStops(stop for file in self._files for stop in file.stops)
        return self._active

    def _matching_stop(self, active: _ActiveStops, call: Call) -> Stop | None:
        if active.everything is not None:
            return active.everything
        if active.network is not None and (
            call.tool.sends or not self._network.isdisjoint(call.tool.permissions)
        ):
            return active.network
        fleet = DEVICE in call.tool.permissions
        if active.tools:
            named = _argument_names(call, ACTION_ARGUMENTS) if fleet else ()
            for name in (call.tool.name, *call.tool.aliases, *named):
                if (stop := active.tools.get(name.casefold())) is not None:
                    return stop
        return self._matching_agent_stop(active.agents, call, fleet) if active.agents else None

    def _matching_agent_stop(self, agents: dict[str, Stop], call: Call, fleet: bool) -> Stop | None:
        named = _argument_names(call, TARGET_ARGUMENTS) if fleet else ()
        for name in (call.context.principal.agent, *self._targets, *named):
            if (stop := agents.get(name)) is not None:
                return stop
            if name == ALL_AGENTS or name.startswith(TYPE_SELECTOR):
                return next(iter(agents.values()))  # the target may include a stopped device
        return None


@asynccontextmanager
async def cancel_on_stop(
    stops: Stops, *callbacks: Callable[[], object], interval_s: float = STOPS_POLL_INTERVAL_S
) -> AsyncGenerator[None]:
    """While the block runs, call the callbacks when a stop is set, and again while it holds.

    The callback of a run is `deadline.cancel`; that of a device cancels each of its calls.
    """

    async def watch() -> None:
        while True:
            if stops.cancelling_stop() is not None:
                for end in callbacks:
                    end()
            await asyncio.sleep(interval_s)

    watching = asyncio.create_task(watch(), name="stops")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


def _argument_names(call: Call, arguments: Iterable[str]) -> Iterable[str]:
    """The names in these arguments of a call to the fleet."""
    for argument in arguments:
        value: JSON = call.arguments.get(argument)
        for name in value if is_array(value) else (value,):
            if isinstance(name, str):
                yield name


def _same_target(stop: Stop, other: Stop) -> bool:
    return (stop.kind, stop.name) == (other.kind, other.name)


def _denied(stop: Stop) -> Deny:
    reason = f"{stop.description}. Do not try another way; tell the user that it was stopped."
    return Deny(STOPPED_CODE, reason, stop.description)
