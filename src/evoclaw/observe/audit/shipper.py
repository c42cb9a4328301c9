"""Brings records from the warm tier to the cold one, and lets go of what is safely there.

Nothing waits for it: when the cold tier is away or slow the warm files stay and grow. A file is
deleted only when it is old enough and the cold tier has just shown every line of it.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.observe.audit.checkpoints import decode
from evoclaw.observe.audit.cold import PAGE_ROWS, ColdTier
from evoclaw.observe.audit.records import Fields, InvalidRecord, SealedRecord, day_of, stamp, unseal
from evoclaw.observe.audit.settings import DEFAULT_SETTINGS, AuditError, AuditSettings
from evoclaw.observe.audit.warm import (
    CHECKPOINTS_FILE,
    SHIPPED_FILE,
    DayFile,
    ShippedUpTo,
    WarmTier,
    day_files,
    read_head,
    read_lines,
    read_shipped,
    spool_size,
)

logger = logging.getLogger(__name__)
MAX_BACKOFF_FACTOR = 16
"""How many times the usual pause is made after failures."""


class Delivery(Struct, frozen=True):
    """What one delivery did."""

    shipped: int = 0
    """Records that went out, and were seen to be there."""
    upto: int = 0
    """The cold tier has everything up to here."""
    broken: int = 0
    """Lines that are no records any more: they are not sent, and their file is kept."""
    retired: tuple[str, ...] = ()
    """Files that were deleted."""
    busy: bool = False
    """Another process was at it."""


class Shipper:
    """One for each process that may; only one at a time works."""

    def __init__(
        self,
        warm: WarmTier,
        cold: ColdTier | None,
        settings: AuditSettings = DEFAULT_SETTINGS,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._warm, self._cold, self._settings, self._clock = warm, cold, settings, clock
        self._folder = warm.folder
        self.problem = ""
        """Why the last delivery failed."""

    async def keep_shipping(self) -> None:
        """Deliver from time to time, as long as the process runs; whatever fails is tried again."""
        pause = 1
        while True:
            # First a pause: what a process that has just started may have left can wait.
            await asyncio.sleep(self._settings.ship_seconds * pause)
            try:
                await self.ship()
                pause, self.problem = 1, ""
            except (AuditError, OSError) as problem:
                if not self.problem:
                    logger.warning("the audit could not be delivered: %s", problem)
                pause, self.problem = min(pause * 2, MAX_BACKOFF_FACTOR), str(problem)

    async def ship(self) -> Delivery:
        """Deliver what is new, then let go of what may go."""
        with _try_lock(self._folder / "ship.lock") as mine:
            if not mine:
                return Delivery(busy=True)
            try:
                done = await self._deliver() if self._cold is not None else Delivery()
            finally:
                dropped = await asyncio.to_thread(self._drop)
            retired = await self._retire() if self._cold is not None else ()
            return replace(done, retired=(*retired, *dropped))

    async def _deliver(self) -> Delivery:
        cold, head = self._cold, await asyncio.to_thread(read_head, self._folder)
        if cold is None or head is None:
            return Delivery()
        await cold.prepare()
        at = self._state(head.chain, cold.name)
        shipped = broken = 0
        batches = _batches(self._folder, at.seq) if at.seq < head.seq else iter(())
        while (next_one := await asyncio.to_thread(next, batches, None)) is not None:
            batch, bad = next_one
            broken += bad
            if not batch:
                continue
            await cold.put(head.chain, batch)
            await self._see(cold, head.chain, batch)
            at = replace(at, seq=batch[-1].seq)
            await asyncio.to_thread(self._keep, at)
            shipped += len(batch)
        lines = await asyncio.to_thread(read_lines, self._folder / CHECKPOINTS_FILE)
        signed = [one for line in lines[at.checkpoints :] if (one := decode(line)) is not None]
        if signed:
            await cold.put_checkpoints(signed)
            await asyncio.to_thread(self._keep, replace(at, checkpoints=len(lines)))
        return Delivery(shipped, at.seq, broken)

    def _state(self, chain: str, cold: str) -> ShippedUpTo:
        known = read_shipped(self._folder)
        if known is None or (known.chain, known.cold) != (chain, cold):
            return ShippedUpTo(chain, cold)
        return known

    async def _see(self, cold: ColdTier, chain: str, batch: Sequence[SealedRecord]) -> None:
        """Have the cold tier show that it has exactly these."""
        wanted = {one.seq: one.line for one in batch}
        first, last = batch[0].seq, batch[-1].seq
        while first <= last:
            page = await cold.lines(chain, first, last)
            for seq, line in page:
                if wanted.pop(seq, line) != line:
                    raise AuditError(
                        f"{cold.name} has another record {seq} than the one written here; "
                        "see `evoclaw audit verify`"
                    )
            if len(page) < PAGE_ROWS:
                break
            first = page[-1][0] + 1
        if wanted:
            raise AuditError(f"{cold.name} took record {min(wanted)} and does not have it")

    def _keep(self, at: ShippedUpTo) -> None:
        draft = self._folder / f".{SHIPPED_FILE}.{os.getpid()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(at))
        draft.replace(self._folder / SHIPPED_FILE)

    async def _retire(self) -> tuple[str, ...]:
        """Delete files that are old, closed, and whole in the cold tier."""
        cold = self._cold
        head = read_head(self._folder)
        if cold is None or head is None:
            return ()
        at = self._state(head.chain, cold.name)
        gone: list[str] = []
        for file, last in _closed_files(self._folder):
            if last > at.seq or not self._is_old(file):
                continue
            batch, broken = _read_records(file)
            if broken or not batch or batch[-1].seq != last or batch[0].seq != file.first:
                continue  # not as it was written: it is evidence
            await self._see(cold, head.chain, batch)
            await asyncio.to_thread(self._let_go, "retired", file, last, cold.name)
            gone.append(file.path.name)
        return tuple(gone)

    def _is_old(self, file: DayFile) -> bool:
        today = datetime.fromtimestamp(self._clock(), UTC)
        return file.day < day_of((today - timedelta(days=self._settings.days)).timestamp())

    def _let_go(self, kind: str, file: DayFile, last: int, where: str) -> None:
        """First say in the chain that it goes, then delete it."""
        now = self._clock()
        said: Fields = {
            "kind": kind, "timestamp": stamp(now), "at": now, "file": file.path.name,
            "first": file.first, "last": last, "reason": where,
        }  # fmt: skip
        self._warm.append([said], now)
        self._warm.sync()
        file.path.unlink()

    def _drop(self) -> tuple[str, ...]:
        """With the spool full, and if that was chosen, let the oldest go undelivered."""
        gone: list[str] = []
        if self._settings.when_full != "drop":
            return ()
        shipped = read_shipped(self._folder)
        have = 0 if shipped is None else shipped.seq
        for file, last in _closed_files(self._folder):
            if spool_size(self._folder) <= self._settings.spool_bytes:
                break
            if last <= have:
                continue
            self._let_go("dropped", file, last, "the spool was full")
            gone.append(file.path.name)
        return tuple(gone)


def _closed_files(folder: Path) -> list[tuple[DayFile, int]]:
    """The files that nothing is added to any more, and their last records."""
    files = day_files(folder)
    return [(one, after.first - 1) for one, after in zip(files, files[1:], strict=False)]


def _read_records(file: DayFile, after: int = 0) -> tuple[list[SealedRecord], int]:
    """The records of a file, and how many lines are none; those before `after` may be left out."""
    found: list[SealedRecord] = []
    lines = read_lines(file.path)
    skip = after - file.first
    if 0 < skip < len(lines) and f'"seq":{after},'.encode() in lines[skip]:
        lines = lines[skip:]
    for line in lines:
        try:
            found.append(unseal(line))
        except InvalidRecord:
            continue
    return found, len(lines) - len(found)


def _batches(folder: Path, after: int) -> Iterator[tuple[list[SealedRecord], int]]:
    """What is new, file by file, a page at a time."""
    files = day_files(folder)
    ends = [*(file.first - 1 for file in files[1:]), None][: len(files)]
    for file, end in zip(files, ends, strict=True):
        if end is not None and end <= after:
            continue
        found, broken = _read_records(file, after)
        fresh = [one for one in found if one.seq > after]
        for start in range(0, len(fresh), PAGE_ROWS):
            yield fresh[start : start + PAGE_ROWS], broken if start == 0 else 0
        if not fresh:
            yield [], broken


@contextmanager
def _try_lock(path: Path) -> Generator[bool]:
    """Whether this process is the one that delivers now."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = True
        except BlockingIOError:
            mine = False
        yield mine
    finally:
        os.close(descriptor)
