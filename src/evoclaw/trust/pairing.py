"""Who may join: invitations that work once, and devices that a person approved with their tools."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.errors import ConfigError, EvoClawError

T = TypeVar("T")
DEVICES = "devices.json"
"""In the folder of a single orchestrator."""
_KEPT = 7 * 86_400.0
"""Seconds for which a used or expired invitation is remembered, to say what became of it."""


class PairingRefused(EvoClawError):
    """A token or a device that is not let in; the message says what to do."""


class Invitation(Struct, frozen=True):
    """Whoever brings the token may join, once."""

    id: str
    """For people, to name it by; the token cannot be had from it."""
    agent_id: str | None
    """Who may use it; None leaves the name to the one who joins."""
    created: float
    expires: float
    used: float | None = None
    """When; all three in Unix seconds."""


class Pairings:
    """The invitations of one orchestrator; of their tokens only hashes are kept."""

    def __init__(self, folder: Path) -> None:
        self._file = _File(folder / "invitations.json", dict[str, Invitation])

    def new(self, agent_id: str | None, life: float, now: float) -> str:
        """Make an invitation for so many seconds; the token is shown this once."""
        if not life > 0:
            raise ConfigError(f"an invitation cannot live for {life} seconds; say more than 0")
        token = token_hex(24)  # no dash: it is typed as an argument
        hashed = _hash(token)
        with self._file.changed() as known:
            for old in [key for key, one in known.items() if one.expires + _KEPT < now]:
                del known[old]
            known[hashed] = Invitation(hashed[:12], agent_id, now, now + life)
        return token

    def look(self, token: str, now: float) -> Invitation:
        """The invitation of a token that could be used now."""
        return _usable(self._file.read(), token, now)

    def redeem(self, token: str, now: float) -> Invitation:
        """Use an invitation up; of several who bring it at once, one gets in."""
        with self._file.changed() as known:
            found = _usable(known, token, now)
            known[_hash(token.strip())] = replace(found, used=now)
        return found

    def list(self, now: float) -> list[Invitation]:
        """Those that can still be used, the oldest first."""
        known = self._file.read().values()
        return sorted(
            (one for one in known if one.used is None and now < one.expires),
            key=lambda one: one.created,
        )

    def revoke(self, id: str) -> None:
        """Take an invitation back, by its id."""
        with self._file.changed() as known:
            found = [key for key, one in known.items() if one.id == id and one.used is None]
            if not found:
                raise ConfigError(f"no unused invitation {id!r}; list them to see which there are")
            for key in found:
                del known[key]


def _usable(known: dict[str, Invitation], token: str, now: float) -> Invitation:
    found = known.get(_hash(token.strip()))
    if found is None:
        raise PairingRefused(
            "this token is not known here; check that it is complete, or ask for a new one"
        )
    if found.used is not None:
        raise PairingRefused(
            "this token was used already; if that was not you, revoke the agent that "
            "joined with it, and ask for a new one"
        )
    # Written so that what is no number has expired.
    if not now < found.expires:
        raise PairingRefused("this token has expired; ask for a new one")
    return found


class DeviceState(StrEnum):
    """What a person said of a device."""

    INVITED = "invited"
    """It joined with a token; what it first offers is what was asked for."""
    PENDING = "pending"
    APPROVED = "approved"
    REVOKED = "revoked"


class Device(Struct, frozen=True):
    """An agent that joined, and which of its tools may be used."""

    agent_id: str
    state: DeviceState
    created: float
    changed: float
    """Both in Unix seconds."""
    approved: dict[str, str] = {}
    """The tools a person approved, by name: their hashes."""
    waiting: dict[str, str] = {}
    """New ones, and changed ones, that nobody approved yet."""

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the approved tools."""
        return tuple(sorted(self.approved))

    @property
    def surface(self) -> str:
        """A hash of all that is approved or waits: what a person looks at before approving."""
        whole = (sorted(self.approved.items()), sorted(self.waiting.items()))
        return sha256(msgspec.json.encode(whole)).hexdigest()[:16]

    def may_use(self, tool: str, hash: str) -> bool:
        """Whether this tool, as it is now, was approved."""
        return self.state is not DeviceState.REVOKED and self.approved.get(tool) == hash


class Change(StrEnum):
    """How the tools of a device compare with those that were approved."""

    FIRST = "first"
    SAME = "same"
    """Or fewer: what is gone needs nobody's word."""
    GROWN = "grown"
    REVOKED = "revoked"


class Surface(Struct, frozen=True):
    """What became of a device's list of tools."""

    change: Change
    names: tuple[str, ...] = ()
    """The tools to be asked about."""


class Book(Protocol):
    """Where devices are kept."""

    def read(self) -> Mapping[str, Device]:
        """All of them by name, as last seen."""
        ...

    async def look(self) -> None:
        """See what others changed."""
        ...

    async def change(self, agent_id: str, work: Callable[[Device | None], Device | None]) -> None:
        """Have one device as `work` makes it of what it is; None leaves it. Nobody comes between.

        It may be asked more than once, and the last time counts.
        """
        ...


class Devices:
    """The agents that joined, of one orchestrator or of several that share them."""

    def __init__(self, place: Path | Book) -> None:
        """A folder of one's own, or wherever several keep them."""
        self._book = _FileBook(place) if isinstance(place, Path) else place
        self._seen: Mapping[str, Device] = {}

    def all(self) -> list[Device]:
        """Every device, by name."""
        return sorted(self._book.read().values(), key=lambda one: one.agent_id)

    def get(self, agent_id: str) -> Device | None:
        """One device, if it is known."""
        return self._book.read().get(agent_id)

    async def look(self) -> list[str]:
        """See what others changed: the names of all that are not as they were at the last look."""
        await self._book.look()
        before, self._seen = self._seen, self._book.read()
        return sorted(name for name, one in self._seen.items() if before.get(name) != one)

    async def surface(self, agent_id: str, tools: Iterable[tuple[str, str]], now: float) -> Surface:
        """Compare the tools that a device has now, by name and hash, with the approved ones.

        New and changed ones wait for a person's word; the others may be used meanwhile.
        """
        having, found = dict(tools), Surface(Change.REVOKED)

        def work(before: Device | None) -> Device | None:
            nonlocal found
            after, found = _compared(before, agent_id, having, now)
            return after

        await self._book.change(agent_id, work)
        return found

    async def invite(self, agent_id: str, now: float) -> Device:
        """Note a device that joined by invitation: its first tools need no other word."""
        device = Device(agent_id, DeviceState.INVITED, now, now)
        await self._book.change(agent_id, lambda _: device)
        return device

    async def approve(self, agent_id: str, now: float, *, seen: str = "") -> Device:
        """Let a device in, with all the tools that wait.

        Args:
            agent_id: The device.
            now: Unix seconds.
            seen: Its `surface` when the person looked: what changed since is not approved.
        """

        def approved(device: Device) -> Device:
            if seen and seen != device.surface:
                raise PairingRefused(
                    f"the tools of {agent_id!r} changed since you looked; look again"
                )
            tools = {**device.approved, **device.waiting}
            return replace(
                device, state=DeviceState.APPROVED, approved=tools, waiting={}, changed=now
            )

        return await self._changed(agent_id, approved)

    async def revoke(self, agent_id: str, now: float) -> Device:
        """Shut a device out; what was approved is forgotten."""

        def revoked(device: Device) -> Device:
            return replace(device, state=DeviceState.REVOKED, approved={}, waiting={}, changed=now)

        return await self._changed(agent_id, revoked)

    async def _changed(self, agent_id: str, work: Callable[[Device], Device]) -> Device:
        done: list[Device] = []

        def change(device: Device | None) -> Device:
            if device is None:
                names = ", ".join(sorted(self._book.read())) or "none"
                raise ConfigError(f"no device {agent_id!r} has joined; known: {names}")
            done.append(work(device))
            return done[-1]

        await self._book.change(agent_id, change)
        return done[-1]


def _compared(
    before: Device | None, agent_id: str, having: dict[str, str], now: float
) -> tuple[Device | None, Surface]:
    """What a device is to be, None if it stays; and what became of its list of tools."""
    device = before or Device(agent_id, DeviceState.PENDING, now, now)
    if device.state is DeviceState.REVOKED:
        return None, Surface(Change.REVOKED)
    if device.state is DeviceState.INVITED:
        let_in = replace(device, state=DeviceState.APPROVED, approved=having, changed=now)
        return let_in, Surface(Change.SAME)
    new = {name: has for name, has in having.items() if device.approved.get(name) != has}
    first = before is None or (before.state is DeviceState.PENDING and not before.approved)
    settled = not new and not first
    state = DeviceState.APPROVED if settled else DeviceState.PENDING
    same = before is not None and (state, new) == (device.state, device.waiting)
    after = None if same else replace(device, state=state, waiting=new, changed=now)
    change = Change.SAME if settled else Change.FIRST if first else Change.GROWN
    return after, Surface(change, tuple(sorted(new)))


def _hash(token: str) -> str:
    return sha256(token.encode(errors="replace")).hexdigest()


class _File(Generic[T]):
    """A JSON object in a file that several processes change, one after the other."""

    def __init__(self, path: Path, shape: type[dict[str, T]]) -> None:
        self._path, self._shape = path, shape
        self._read: tuple[tuple[int, int], dict[str, T]] | None = None
        """What was read last, and of which file: a thousand edges are asked about one by one."""

    def read(self) -> dict[str, T]:
        """What it holds; a file that is not there holds nothing, a damaged one is an error."""
        try:
            found = self._path.stat()
            stamp = found.st_ino, found.st_mtime_ns
            if self._read is None or self._read[0] != stamp:
                content = msgspec.json.decode(self._path.read_bytes(), type=self._shape)
                self._read = stamp, content
            return dict(self._read[1])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as problem:
            raise ConfigError(
                f"{self._path} cannot be read ({problem}); put a copy back, or move it away and "
                "begin anew"
            ) from None

    @contextmanager
    def changed(self) -> Generator[dict[str, T]]:
        """Change what it holds: written if it changed and nothing was raised, else left alone."""
        with self._as_advice():
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._path.with_suffix(".lock")
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = self.read()
            before = dict(content)
            yield content
            if content != before:
                with self._as_advice():
                    self._write(msgspec.json.encode(content))
        finally:
            os.close(lock)

    def _write(self, data: bytes) -> None:
        draft = self._path.with_suffix(".new")
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(file)
        draft.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextmanager
    def _as_advice(self) -> Generator[None]:
        try:
            yield
        except OSError as problem:
            raise ConfigError(
                f"cannot write {self._path}: {problem.strerror}; make room there, or choose "
                "another place"
            ) from None


class _FileBook:
    """Devices in a file; what it holds is looked at each time."""

    def __init__(self, folder: Path) -> None:
        self._file = _File(folder / DEVICES, dict[str, Device])

    def read(self) -> Mapping[str, Device]:
        return self._file.read()

    async def look(self) -> None:
        pass

    async def change(self, agent_id: str, work: Callable[[Device | None], Device | None]) -> None:
        with self._file.changed() as known:
            after = work(known.get(agent_id))
            if after is not None:
                known[agent_id] = after
