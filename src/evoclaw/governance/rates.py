"""How often calls may be made: a sliding minute, and a burst within a second."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from array import array
from collections import deque
from collections.abc import Callable, MutableSequence, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Protocol, TypeAlias

import msgspec
from msgspec import Meta, Struct

from evoclaw.core.errors import ConfigError, EvoClawError, Standstill
from evoclaw.core.labels import Principal
from evoclaw.core.ports import ALLOW, Deny, Policy, Verdict
from evoclaw.core.tools import Call

MINUTE, SECOND = 60.0, 1.0
PATIENCE, AGAIN = 1.0, 0.001
"""Seconds that the counts of other processes are waited for, and between two tries."""
Count = Annotated[int, Meta(ge=0, le=100_000)]
Clock: TypeAlias = Callable[[], float]
Key: TypeAlias = tuple[Principal, str]
"""Who calls, and which tool if that is counted by itself."""


class Rate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often; 0 is without that limit."""

    per_minute: Count = 0
    burst: Count = 0
    """Within one second."""


class RateSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often one user's agent may call tools; 0 is without that limit."""

    per_minute: Count = 120
    burst: Count = 20
    """Within one second."""
    tools: dict[str, Rate] = {}
    """Further limits for single tools, by name."""
    shared: bool = False
    """Count all processes of this machine together, not each by itself; those that share a
    PostgreSQL always count together."""
    most: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """How many users' agents are counted at once: beyond that, new ones must wait. In a PostgreSQL
    there is room for all."""


class Refusal(Struct, frozen=True):
    """A call that may not be made now."""

    wait: float
    """Seconds until it may."""
    limit: int | None
    """Which one it was; None if it cannot be counted."""
    problem: str = ""
    """Why it cannot be, if that is a failure."""


class Windows(Protocol):
    """Where the moments of past calls are kept."""

    async def take(self, limits: Sequence[tuple[Rate, Key]], clock: Clock) -> Refusal | None:
        """Count a call for each of these limits, or for none of them if one is met."""
        ...


class Counts(Protocol):
    """Counts for all who share it, wherever they are, and by a clock of its own."""

    async def take(self, limits: Sequence[tuple[str, int, int]]) -> tuple[float, int] | None:
        """Count a call for each key, with how often a minute and a second it may come.

        If it may not, for none of them: the seconds to wait, and the number of the limit.
        """
        ...


class OwnWindows:
    """The calls of this process."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._windows: dict[Key, deque[float]] = {}

    def __len__(self) -> int:
        return len(self._windows)

    async def take(self, limits: Sequence[tuple[Rate, Key]], clock: Clock) -> Refusal | None:
        """Count a call, or say why not."""
        now = clock()
        taken: list[deque[float]] = []
        for number, (rate, key) in enumerate(limits):
            window = self._windows.get(key)
            if window is None:
                if len(self._windows) >= self._most and not self._forget(now):
                    # To forget one that still counts would lift its limit.
                    return Refusal(MINUTE, None)
                window = self._windows[key] = deque()
            while window and window[0] <= now - MINUTE:
                window.popleft()
            if wait := _wait(window, rate, now):
                return Refusal(wait, number)
            taken.append(window)
        for window in taken:
            window.append(now)
        return None

    def _forget(self, now: float) -> bool:
        """Let go of those who have not called for a minute."""
        idle = [k for k, calls in self._windows.items() if not calls or calls[-1] <= now - MINUTE]
        for key in idle:
            del self._windows[key]
        return bool(idle)


class SharedWindows:
    """The calls of all processes that use one folder; a file for each key, and one lock."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def take(self, limits: Sequence[tuple[Rate, Key]], clock: Clock) -> Refusal | None:
        """Count a call, or say why not; what cannot be counted is refused."""
        until = time.monotonic() + PATIENCE
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        return Refusal(PATIENCE, None)
                    await asyncio.sleep(AGAIN)
            # The time is only looked at now: what others counted meanwhile is not ahead of it.
            return self._take(limits, clock())
        finally:
            os.close(lock)

    def _take(self, limits: Sequence[tuple[Rate, Key]], now: float) -> Refusal | None:
        taken: list[tuple[Path, array[float]]] = []
        for number, (rate, key) in enumerate(limits):
            path = self._folder / _hashed(key)
            window = _read(path, now)
            if window is None:
                if self._is_full(now):
                    return Refusal(MINUTE, None)
                window = array("d")
            if wait := _wait(window, rate, now):
                return Refusal(wait, number)
            taken.append((path, window))
        for path, window in taken:
            window.append(now)
            _write(path, window)
        return None

    def _is_full(self, now: float) -> bool:
        """Whether there is no place for another key, also after forgetting the idle ones."""
        there = [path for path in self._folder.iterdir() if path.name != "lock"]
        if len(there) < self._most:
            return False
        idle = [path for path in there if not _read(path, now)]
        for path in idle:
            path.unlink()
        return len(there) - len(idle) >= self._most


class StoredWindows:
    """The calls of all processes that use one store, on whatever machine."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    async def take(self, limits: Sequence[tuple[Rate, Key]], clock: Clock) -> Refusal | None:
        """Count a call, or say why not; what cannot be counted is refused."""
        asked = [(_hashed(key), rate.per_minute, rate.burst) for rate, key in limits]
        try:
            refused = await self._counts.take(asked)
        except Standstill:
            raise  # the run waits for the store, as it does everywhere
        except EvoClawError as problem:
            return Refusal(PATIENCE, None, str(problem))
        return None if refused is None else Refusal(*refused)


class Rates(Policy):
    """Denies calls beyond the rate of a tenant, user or agent; denied calls do not count."""

    def __init__(
        self,
        settings: RateSettings | None = None,
        *,
        clock: Clock = time.monotonic,
        folder: Path | None = None,
        counts: Counts | None = None,
    ) -> None:
        """One for the whole process: every run that is judged by it is counted together.

        Args:
            settings: The limits.
            clock: Never goes back, and is the same in all processes that share the counts.
            folder: Where counts are shared, if the settings say so.
            counts: Where they are shared in any case, by all who use it.
        """
        self._settings = settings or RateSettings()
        self._all = Rate(per_minute=self._settings.per_minute, burst=self._settings.burst)
        self._clock = clock
        self.counts = counts
        self.windows = _windows(self._settings, folder, counts)

    async def judge(self, call: Call) -> Verdict:
        """Deny what comes too often, and say when to come again."""
        who = call.context.principal
        limits: list[tuple[Rate, Key]] = []
        if self._all.per_minute or self._all.burst:
            limits.append((self._all, (who, "")))
        own = self._settings.tools.get(call.tool.name)
        if own is not None and (own.per_minute or own.burst):
            limits.append((own, (who, call.tool.name)))
        if not limits:
            return ALLOW
        refusal = await self.windows.take(limits, self._clock)
        return ALLOW if refusal is None else _too_often(call, limits, refusal)


def _windows(settings: RateSettings, folder: Path | None, counts: Counts | None) -> Windows:
    if counts is not None:
        return StoredWindows(counts)
    if not settings.shared:
        return OwnWindows(settings.most)
    if folder is None:
        raise ConfigError("rates can only be shared in a folder; say which one")
    return SharedWindows(folder, settings.most)


def _hashed(key: Key) -> str:
    return sha256(msgspec.json.encode(key)).hexdigest()


def _wait(window: MutableSequence[float], rate: Rate, now: float) -> float:
    """Seconds until the next call may be made; 0 is now."""
    wait, count = 0.0, len(window)
    if rate.per_minute and count >= rate.per_minute:
        wait = window[-rate.per_minute] + MINUTE - now
    if rate.burst and count >= rate.burst:
        wait = max(wait, window[-rate.burst] + SECOND - now)
    return wait if wait > 0 else 0.0


def _read(path: Path, now: float) -> array[float] | None:
    """The moments of the last minute; those ahead of us are from before the machine started."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    found = array("d", data[: len(data) // 8 * 8])
    return array("d", (one for one in found if now - MINUTE < one <= now))


def _write(path: Path, window: array[float]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Cut only afterwards: who is killed in between has counted too much, not too little.
        os.ftruncate(descriptor, os.pwrite(descriptor, window.tobytes(), 0))
    finally:
        os.close(descriptor)


def _too_often(call: Call, limits: Sequence[tuple[Rate, Key]], refusal: Refusal) -> Deny:
    if refusal.problem:
        why = "calls cannot be counted now, so none is made"
    elif refusal.limit is None:
        why = "too many others are calling at once"
    else:
        rate, (_, tool) = limits[refusal.limit]
        each = ((rate.per_minute, "a minute"), (rate.burst, "a second"))
        said = ", ".join(f"{count} {span}" for count, span in each if count)
        why = f"{f'{call.name} was' if tool else 'tools were'} called too often ({said})"
    seconds = f"{refusal.wait:.1f} s" if refusal.wait < 10 else f"{refusal.wait:.0f} s"
    reason = f"{why}. Ask again in {seconds}, for less at once, or answer with what you have."
    told = refusal.problem or f"free again in {seconds}"
    return Deny("rate", reason, f"{why}; {told}")
