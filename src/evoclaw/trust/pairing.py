"""Pairing: one-time invitations, and the devices whose tools a person has approved."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from enum import StrEnum
from hashlib import sha256
from heapq import nsmallest
from pathlib import Path
from secrets import token_hex
from typing import Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.suggestions import did_you_mean

T = TypeVar("T")
DEVICES_FILE_NAME = "devices.json"
"""The file of devices in the folder of a single orchestrator."""
_INVITATION_RETENTION_S = 7 * 86_400.0
"""How long a used or expired invitation is kept, so that an error can say what happened to it."""


class PairingRefused(EvoClawError):
    """A token or a device is refused; the message says what to do."""


class Invitation(Struct, frozen=True):
    """An invitation: a device that presents its token may join, once."""

    id: str
    """The name of the invitation for people; it does not reveal the token."""
    agent_id: str | None
    """The agent that may use it; None lets the device choose its name."""
    created: float
    expires: float
    used: float | None = None
    """When it was used; all three in Unix seconds."""


class Invitations:
    """The invitations of one orchestrator; only the hashes of their tokens are stored."""

    def __init__(self, folder: Path) -> None:
        self._file = _JsonFile(folder / "invitations.json", dict[str, Invitation])

    def create(self, agent_id: str | None, lifetime_s: float, now: float) -> str:
        """Create an invitation that is valid for so many seconds; returns the token."""
        if not lifetime_s > 0:
            raise ConfigError(
                f"an invitation cannot be valid for {lifetime_s} seconds; use more than 0"
            )
        token = token_hex(24)  # hex has no dash: people type the token as an argument
        hashed = _hash(token)
        with self._file.update() as known:
            for old in [
                key for key, value in known.items() if value.expires + _INVITATION_RETENTION_S < now
            ]:
                del known[old]
            known[hashed] = Invitation(hashed[:12], agent_id, now, now + lifetime_s)
        return token

    def check(self, token: str, now: float) -> Invitation:
        """The invitation of a token, if it can be used now; else `PairingRefused`."""
        return _usable(self._file.read(), token, now)

    def redeem(self, token: str, now: float) -> Invitation:
        """Use an invitation; of concurrent attempts only one succeeds."""
        with self._file.update() as known:
            found = _usable(known, token, now)
            known[_hash(token.strip())] = replace(found, used=now)
        return found

    def list(self, now: float) -> list[Invitation]:
        """The usable invitations, the oldest first."""
        known = self._file.read().values()
        return sorted(
            (
                invitation
                for invitation in known
                if invitation.used is None and now < invitation.expires
            ),
            key=lambda invitation: invitation.created,
        )

    def revoke(self, id: str) -> None:
        """Revoke an unused invitation by its id."""
        with self._file.update() as known:
            found = [key for key, value in known.items() if value.id == id and value.used is None]
            if not found:
                raise ConfigError(
                    f"no unused invitation {id!r}: it was used, has expired or never existed"
                )
            for key in found:
                del known[key]


def _usable(known: Mapping[str, Invitation], token: str, now: float) -> Invitation:
    found = known.get(_hash(token.strip()))
    if found is None:
        raise PairingRefused(
            "this token is unknown; check that it is complete, or ask for a new one"
        )
    if found.used is not None:
        raise PairingRefused(
            "this token has already been used; if it was not you, revoke the agent that joined "
            "with it, and ask for a new one"
        )
    # Negated, so that a NaN counts as expired.
    if not now < found.expires:
        raise PairingRefused("this token has expired; ask for a new one")
    return found


class DeviceState(StrEnum):
    """Whether a person has approved a device."""

    INVITED = "invited"
    """It joined with a token; the first tools that it offers are approved with it."""
    PENDING = "pending"
    APPROVED = "approved"
    REVOKED = "revoked"


class Device(Struct, frozen=True):
    """An agent that joined, and its approved tools."""

    agent_id: str
    state: DeviceState
    created: float
    changed: float
    """Both in Unix seconds."""
    approved: dict[str, str] = {}
    """The hashes of the approved tools, by name."""
    waiting: dict[str, str] = {}
    """The hashes of new and changed tools that wait for approval, by name."""

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the approved tools."""
        return tuple(sorted(self.approved))

    @property
    def surface(self) -> str:
        """A hash of the approved and waiting tools, as a person sees them before approving."""
        tools = (sorted(self.approved.items()), sorted(self.waiting.items()))
        return sha256(msgspec.json.encode(tools)).hexdigest()[:16]

    def may_use(self, tool: str, hash: str) -> bool:
        """Whether the tool with this hash is approved."""
        return self.state is not DeviceState.REVOKED and self.approved.get(tool) == hash


class ToolsChange(StrEnum):
    """How the tools of a device compare with the approved ones."""

    FIRST = "first"
    SAME = "same"
    """The same tools or fewer: removing a tool needs no approval."""
    GROWN = "grown"
    REVOKED = "revoked"


class ToolsComparison(Struct, frozen=True):
    """The result of comparing a device's tools with the approved ones."""

    change: ToolsChange
    names: tuple[str, ...] = ()
    """The tools that need approval."""


class DeviceRepository(Protocol):
    """Stores devices."""

    def read(self) -> Mapping[str, Device]:
        """All devices by name, as of the last refresh."""
        ...

    async def refresh(self) -> None:
        """Read what other orchestrators changed."""
        ...

    async def change(self, agent_id: str, work: Callable[[Device | None], Device | None]) -> None:
        """Replace a device with what `work` returns for it, atomically; None leaves it unchanged.

        `work` may be called several times; the last call counts.
        """
        ...


class Devices:
    """The devices that joined one orchestrator, or several that share a store."""

    def __init__(self, location: Path | DeviceRepository) -> None:
        """Use the folder of a single orchestrator, or a repository that several share."""
        self._repository = (
            _FileDeviceRepository(location) if isinstance(location, Path) else location
        )
        self._seen: Mapping[str, Device] = {}

    def all(self) -> list[Device]:
        """All devices, sorted by name."""
        return sorted(self._repository.read().values(), key=lambda device: device.agent_id)

    def page(self, after: str, limit: int) -> list[Device]:
        """At most so many devices, by name, after a name."""
        known = self._repository.read()
        names = nsmallest(limit, (name for name in known if name > after))
        return [known[name] for name in names]

    def get(self, agent_id: str) -> Device | None:
        """One device, if it is known."""
        return self._repository.read().get(agent_id)

    async def refresh(self) -> list[str]:
        """Read what other orchestrators changed; returns the names of the changed devices."""
        await self._repository.refresh()
        before, self._seen = self._seen, self._repository.read()
        return sorted(name for name, device in self._seen.items() if before.get(name) != device)

    async def compare_tools(
        self, agent_id: str, tools: Iterable[tuple[str, str]], now: float
    ) -> ToolsComparison:
        """Compare the tools that a device has now, by name and hash, with the approved ones.

        New and changed tools wait for approval; the others may be used meanwhile.
        """
        current, found = dict(tools), ToolsComparison(ToolsChange.REVOKED)

        def work(before: Device | None) -> Device | None:
            nonlocal found
            after, found = _compare_tools(before, agent_id, current, now)
            return after

        await self._repository.change(agent_id, work)
        return found

    async def invite(self, agent_id: str, now: float) -> Device:
        """Add a device that joined by invitation: its first tools need no further approval."""
        device = Device(agent_id, DeviceState.INVITED, now, now)
        await self._repository.change(agent_id, lambda _: device)
        return device

    async def approve(self, agent_id: str, now: float, *, seen: str = "") -> Device:
        """Approve a device with all its waiting tools.

        Args:
            agent_id: The device.
            now: Unix seconds.
            seen: The `surface` that the person saw; refused if the tools changed since then.
        """

        def approved(device: Device) -> Device:
            if seen and seen != device.surface:
                raise PairingRefused(
                    f"the tools of {agent_id!r} have changed since you looked; review them again"
                )
            tools = {**device.approved, **device.waiting}
            return replace(
                device, state=DeviceState.APPROVED, approved=tools, waiting={}, changed=now
            )

        return await self._update(agent_id, approved)

    async def revoke(self, agent_id: str, now: float) -> Device:
        """Revoke a device and all its approved tools."""

        def revoked(device: Device) -> Device:
            return replace(device, state=DeviceState.REVOKED, approved={}, waiting={}, changed=now)

        return await self._update(agent_id, revoked)

    async def _update(self, agent_id: str, work: Callable[[Device], Device]) -> Device:
        done: list[Device] = []

        def change(device: Device | None) -> Device:
            if device is None:
                known = sorted(self._repository.read())
                names = ", ".join(known) or "none"
                similar = did_you_mean(agent_id, known)
                raise ConfigError(f"unknown edge {agent_id!r}; known edges: {names}{similar}")
            done.append(work(device))
            return done[-1]

        await self._repository.change(agent_id, change)
        return done[-1]


def _compare_tools(
    before: Device | None, agent_id: str, current: dict[str, str], now: float
) -> tuple[Device | None, ToolsComparison]:
    """The updated device, None if unchanged; and how its tools compare."""
    device = before or Device(agent_id, DeviceState.PENDING, now, now)
    if device.state is DeviceState.REVOKED:
        return None, ToolsComparison(ToolsChange.REVOKED)
    if device.state is DeviceState.INVITED:
        approved = replace(device, state=DeviceState.APPROVED, approved=current, changed=now)
        return approved, ToolsComparison(ToolsChange.SAME)
    new = {name: hash for name, hash in current.items() if device.approved.get(name) != hash}
    first = before is None or (before.state is DeviceState.PENDING and not before.approved)
    settled = not new and not first
    state = DeviceState.APPROVED if settled else DeviceState.PENDING
    same = before is not None and (state, new) == (device.state, device.waiting)
    after = None if same else replace(device, state=state, waiting=new, changed=now)
    change = ToolsChange.SAME if settled else ToolsChange.FIRST if first else ToolsChange.GROWN
    return after, ToolsComparison(change, tuple(sorted(new)))


def _hash(token: str) -> str:
    return sha256(token.encode(errors="replace")).hexdigest()


class _JsonFile(Generic[T]):
    """A JSON object in a file that several processes change under a lock."""

    def __init__(self, path: Path, shape: type[dict[str, T]]) -> None:
        self._path, self._shape = path, shape
        self._cache: tuple[tuple[int, int], dict[str, T]] | None = None
        """The last content and the stamp of its file: lookups of a thousand edges read it once."""

    def read(self) -> Mapping[str, T]:
        """The content; empty if the file does not exist, `ConfigError` if it is damaged."""
        try:
            found = self._path.stat()
            stamp = found.st_ino, found.st_mtime_ns
            if self._cache is None or self._cache[0] != stamp:
                content = msgspec.json.decode(self._path.read_bytes(), type=self._shape)
                self._cache = stamp, content
            return self._cache[1]
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as problem:
            raise ConfigError(
                f"{self._path} cannot be read ({problem}); restore it from a backup, or move it "
                "away to start with an empty one"
            ) from None

    @contextmanager
    def update(self) -> Generator[dict[str, T]]:
        """Change the content in the block; written if it changed and the block did not raise."""
        with self._explain_write_errors():
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._path.with_suffix(".lock")
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = self.read()
            content = dict(before)
            yield content
            if content != before:
                with self._explain_write_errors():
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
    def _explain_write_errors(self) -> Generator[None]:
        try:
            yield
        except OSError as problem:
            raise ConfigError(
                f"cannot write {self._path}: {problem.strerror}; free some space, or choose "
                "another data folder"
            ) from None


class _FileDeviceRepository:
    """Devices in a file, which is checked at each read."""

    def __init__(self, folder: Path) -> None:
        self._file = _JsonFile(folder / DEVICES_FILE_NAME, dict[str, Device])

    def read(self) -> Mapping[str, Device]:
        return self._file.read()

    async def refresh(self) -> None:
        pass

    async def change(self, agent_id: str, work: Callable[[Device | None], Device | None]) -> None:
        with self._file.update() as known:
            after = work(known.get(agent_id))
            if after is not None:
                known[agent_id] = after
