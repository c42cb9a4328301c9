"""Rate limits for calls: a sliding window of a minute, and a burst limit within a second."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Protocol, TypeAlias

import msgspec
from msgspec import Meta, Struct

from evoclaw.core.errors import ConfigError, EvoClawError, RunSuspended
from evoclaw.core.labels import Principal
from evoclaw.core.ports import ALLOW, Deny, Policy, Verdict
from evoclaw.core.tools import Call

MINUTE_S, SECOND_S = 60.0, 1.0
LOCK_TIMEOUT_S, LOCK_RETRY_DELAY_S = 1.0, 0.001
"""How long to wait for the lock of the shared counts, and the delay between two attempts."""
Count = Annotated[int, Meta(ge=0, le=100_000)]
Clock: TypeAlias = Callable[[], float]
Key: TypeAlias = tuple[Principal, str]
"""The caller, and the tool if it has a limit of its own."""


class RateLimit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a tool may be called; 0 means no limit."""

    per_minute: Count = 0
    """Calls within a minute."""
    burst: Count = 0
    """Calls within one second."""


class RateSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often one user's agent may call tools; 0 means no limit."""

    per_minute: Count = 120
    """Calls of one user's agent within a minute."""
    burst: Count = 20
    """Calls within one second."""
    tools: dict[str, RateLimit] = {}
    """Additional limits for single tools, by name; a call through `edge_call` or `nodes` counts for
    the tool of the edge too."""
    shared: bool = False
    """Count the calls of all processes of this machine together. Orchestrators that share a
    PostgreSQL always count together."""
    most: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Maximum number of users' agents that are counted at the same time; calls of further ones are
    refused until one is idle. No limit with PostgreSQL."""


class RateRefusal(Struct, frozen=True):
    """A call that exceeds a rate limit, or cannot be counted."""

    wait: float
    """Seconds until the call may be made."""
    limit: int | None
    """The index of the exceeded limit; None if the call cannot be counted."""
    problem: str = ""
    """Why the call cannot be counted, if counting failed."""


class RateWindows(Protocol):
    """The times of past calls, by caller and tool."""

    async def take(
        self, limits: Sequence[tuple[RateLimit, Key]], clock: Clock
    ) -> RateRefusal | None:
        """Count a call against all of these limits, or against none if one is exceeded."""
        ...


class SharedRateCounts(Protocol):
    """Call counts in a store that several orchestrators share; the store's clock decides."""

    async def take(self, limits: Sequence[tuple[str, int, int]]) -> tuple[float, int] | None:
        """Count a call against each limit: key, calls a minute, calls a second.

        If a limit is exceeded nothing is counted: returns the seconds to wait, and the limit's
        index.
        """
        ...


class ProcessRateWindows:
    """Call times in memory, for this process only."""

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._windows: dict[Key, deque[float]] = {}

    def __len__(self) -> int:
        return len(self._windows)

    async def take(
        self, limits: Sequence[tuple[RateLimit, Key]], clock: Clock
    ) -> RateRefusal | None:
        """Count a call, or return why it is refused."""
        now = clock()
        taken: list[deque[float]] = []
        for number, (rate, key) in enumerate(limits):
            window = self._windows.get(key)
            if window is None:
                if len(self._windows) >= self._max_keys and not self._forget(now):
                    # Dropping a window that still counts would lift its limit.
                    return RateRefusal(MINUTE_S, None)
                window = self._windows[key] = deque()
            while window and window[0] <= now - MINUTE_S:
                window.popleft()
            if wait := _wait(window, rate, now):
                return RateRefusal(wait, number)
            taken.append(window)
        for window in taken:
            window.append(now)
        return None

    def _forget(self, now: float) -> bool:
        """Drop the windows without a call in the last minute."""
        idle = [k for k, calls in self._windows.items() if not calls or calls[-1] <= now - MINUTE_S]
        for key in idle:
            del self._windows[key]
        return bool(idle)


class FolderRateWindows:
    """Call times in a folder that several processes share: a file for each key, and one lock."""

    def __init__(self, folder: Path, max_keys: int) -> None:
        self._folder, self._max_keys = folder, max_keys
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def take(
        self, limits: Sequence[tuple[RateLimit, Key]], clock: Clock
    ) -> RateRefusal | None:
        """Count a call, or return why it is refused; a call that cannot be counted is refused."""
        until = time.monotonic() + LOCK_TIMEOUT_S
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        return RateRefusal(LOCK_TIMEOUT_S, None)
                    await asyncio.sleep(LOCK_RETRY_DELAY_S)
            # Read the clock under the lock: no counted time may lie ahead of it.
            return self._take(limits, clock())
        finally:
            os.close(lock)

    def _take(self, limits: Sequence[tuple[RateLimit, Key]], now: float) -> RateRefusal | None:
        taken: list[tuple[Path, array[float]]] = []
        for number, (rate, key) in enumerate(limits):
            path = self._folder / _hashed(key)
            window = _read(path, now)
            if window is None:
                if self._is_full(now):
                    return RateRefusal(MINUTE_S, None)
                window = array("d")
            if wait := _wait(window, rate, now):
                return RateRefusal(wait, number)
            taken.append((path, window))
        for path, window in taken:
            window.append(now)
            _write(path, window)
        return None

    def _is_full(self, now: float) -> bool:
        """Whether there is no room for another key, even after dropping the idle ones."""
        paths = [path for path in self._folder.iterdir() if path.name != "lock"]
        if len(paths) < self._max_keys:
            return False
        idle = [path for path in paths if not _read(path, now)]
        for path in idle:
            path.unlink()
        return len(paths) - len(idle) >= self._max_keys


class StoreRateWindows:
    """Call counts in a store that orchestrators on several machines share."""

    def __init__(self, counts: SharedRateCounts) -> None:
        self._counts = counts

    async def take(
        self, limits: Sequence[tuple[RateLimit, Key]], clock: Clock
    ) -> RateRefusal | None:
        """Count a call, or return why it is refused; a call that cannot be counted is refused."""
        asked = [(_hashed(key), rate.per_minute, rate.burst) for rate, key in limits]
        try:
            refused = await self._counts.take(asked)
        except RunSuspended:
            raise  # the run is suspended until the store is back
        except EvoClawError as problem:
            return RateRefusal(LOCK_TIMEOUT_S, None, str(problem))
        return None if refused is None else RateRefusal(*refused)


class RateLimits(Policy):
    """Denies calls beyond the rate of a tenant, user or agent; denied calls do not count."""

    def __init__(
        self,
        settings: RateSettings | None = None,
        *,
        clock: Clock = time.monotonic,
        folder: Path | None = None,
        counts: SharedRateCounts | None = None,
    ) -> None:
        """Use one instance per process: it counts the calls of all runs together.

        Args:
            settings: The limits.
            clock: A monotonic clock, the same in all processes that share the folder.
            folder: Where processes share counts, if the settings say so.
            counts: A store that shares counts between machines; wins over the settings.
        """
        self._settings = settings or RateSettings()
        self._overall = RateLimit(per_minute=self._settings.per_minute, burst=self._settings.burst)
        self._clock = clock
        self.counts = counts
        self.windows = _windows(self._settings, folder, counts)

    async def judge(self, call: Call) -> Verdict:
        """Deny a call beyond a limit; the reason says when to try again."""
        return await self.count(call, (call.tool.name,))

    async def count(self, call: Call, tools: Iterable[str]) -> Verdict:
        """Count a call once, and for each of the tools that it runs; deny it beyond a limit."""
        who = call.context.principal
        limits: list[tuple[RateLimit, Key]] = []
        if self._overall.per_minute or self._overall.burst:
            limits.append((self._overall, (who, "")))
        for tool in dict.fromkeys(tools):
            own = self._settings.tools.get(tool)
            if own is not None and (own.per_minute or own.burst):
                limits.append((own, (who, tool)))
        if not limits:
            return ALLOW
        refusal = await self.windows.take(limits, self._clock)
        return ALLOW if refusal is None else _rate_denial(limits, refusal)


def _windows(
    settings: RateSettings, folder: Path | None, counts: SharedRateCounts | None
) -> RateWindows:
    if counts is not None:
        return StoreRateWindows(counts)
    if not settings.shared:
        return ProcessRateWindows(settings.most)
    if folder is None:
        raise ConfigError("shared rate limits need a folder; set a data folder, or shared = false")
    return FolderRateWindows(folder, settings.most)


def _hashed(key: Key) -> str:
    return sha256(msgspec.json.encode(key)).hexdigest()


def _wait(window: MutableSequence[float], rate: RateLimit, now: float) -> float:
    """Seconds until the next call may be made; 0 means now."""
    wait, count = 0.0, len(window)
    if rate.per_minute and count >= rate.per_minute:
        wait = window[-rate.per_minute] + MINUTE_S - now
    if rate.burst and count >= rate.burst:
        wait = max(wait, window[-rate.burst] + SECOND_S - now)
    return wait if wait > 0 else 0.0


def _read(path: Path, now: float) -> array[float] | None:
    """The call times of the last minute; times ahead of the clock are from before a reboot."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    found = array("d", data[: len(data) // 8 * 8])
    return array("d", (at for at in found if now - MINUTE_S < at <= now))


def _write(path: Path, window: array[float]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Truncate last: a process killed in between has counted too much, not too little.
        os.ftruncate(descriptor, os.pwrite(descriptor, window.tobytes(), 0))
    finally:
        os.close(descriptor)


def _rate_denial(limits: Sequence[tuple[RateLimit, Key]], refusal: RateRefusal) -> Deny:
    if refusal.problem:
        why = "calls cannot be counted at the moment, so none are allowed"
    elif refusal.limit is None:
        why = "too many other callers are active"
    else:
        rate, (_, tool) = limits[refusal.limit]
        each = ((rate.per_minute, "a minute"), (rate.burst, "a second"))
        allowed = ", ".join(f"{count} {span}" for count, span in each if count)
        why = f"{f'{tool} was' if tool else 'tools were'} called too often ({allowed})"
    seconds = f"{refusal.wait:.1f} s" if refusal.wait < 10 else f"{refusal.wait:.0f} s"
    reason = f"{why}. Try again in {seconds} with fewer calls, or answer with what you have."
    detail = refusal.problem or f"available again in {seconds}"
    return Deny("rate", reason, f"{why}; {detail}")
