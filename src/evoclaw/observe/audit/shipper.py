"""Ships audit records from the warm tier to the cold tier, and deletes warm files that are there.

Nothing waits for it: while the cold tier is unreachable or slow, the warm files stay and grow. A
file is deleted only when it is old enough and every line of it was just read from the cold tier.
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
"""After failures the pause grows to at most this many times `ship_seconds`."""


class Delivery(Struct, frozen=True):
    """The result of one delivery."""

    shipped: int = 0
    """Records that were sent, and read back."""
    upto: int = 0
    """The last record of which the cold tier has all before."""
    broken: int = 0
    """Lines that are not valid records: they are not sent, and their file is kept."""
    retired: tuple[str, ...] = ()
    """Deleted files."""
    busy: bool = False
    """Whether another process was shipping."""


class Shipper:
    """Ships records; of all processes one at a time."""

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
        """Ship every `ship_seconds` until cancelled; failures are retried."""
        pause = 1
        while True:
            # Pause first: a process that has just started has nothing urgent to ship.
            await asyncio.sleep(self._settings.ship_seconds * pause)
            try:
                await self.ship()
                pause, self.problem = 1, ""
            except (AuditError, OSError) as problem:
                if not self.problem:
                    logger.warning("shipping the audit failed: %s", problem)
                pause, self.problem = min(pause * 2, MAX_BACKOFF_FACTOR), str(problem)

    async def ship(self) -> Delivery:
        """Ship new records, then delete files that are no longer needed."""
        with _try_lock(self._folder / "ship.lock") as locked:
            if not locked:
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
        while (read := await asyncio.to_thread(next, batches, None)) is not None:
            batch, invalid = read
            broken += invalid
            if not batch:
                continue
            await cold.put(head.chain, batch)
            await self._check_stored(cold, head.chain, batch)
            at = replace(at, seq=batch[-1].seq)
            await asyncio.to_thread(self._save_state, at)
            shipped += len(batch)
        lines = await asyncio.to_thread(read_lines, self._folder / CHECKPOINTS_FILE)
        signed = [cp for line in lines[at.checkpoints :] if (cp := decode(line)) is not None]
        if signed:
            await cold.put_checkpoints(signed)
            await asyncio.to_thread(self._save_state, replace(at, checkpoints=len(lines)))
        return Delivery(shipped, at.seq, broken)

    def _state(self, chain: str, cold: str) -> ShippedUpTo:
        known = read_shipped(self._folder)
        if known is None or (known.chain, known.cold) != (chain, cold):
            return ShippedUpTo(chain, cold)
        return known

    async def _check_stored(
        self, cold: ColdTier, chain: str, batch: Sequence[SealedRecord]
    ) -> None:
        """Read records back from the cold tier, and compare them."""
        wanted = {record.seq: record.line for record in batch}
        first, last = batch[0].seq, batch[-1].seq
        while first <= last:
            page = await cold.lines(chain, first, last)
            for seq, line in page:
                if wanted.pop(seq, line) != line:
                    raise AuditError(
                        f"record {seq} in {cold.name} differs from the one written here; "
                        "see `evoclaw audit verify`"
                    )
            if len(page) < PAGE_ROWS:
                break
            first = page[-1][0] + 1
        if wanted:
            raise AuditError(f"{cold.name} accepted record {min(wanted)} but does not have it")

    def _save_state(self, at: ShippedUpTo) -> None:
        draft = self._folder / f".{SHIPPED_FILE}.{os.getpid()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(at))
        draft.replace(self._folder / SHIPPED_FILE)

    async def _retire(self) -> tuple[str, ...]:
        """Delete files that are old, closed, and complete in the cold tier."""
        cold = self._cold
        head = read_head(self._folder)
        if cold is None or head is None:
            return ()
        at = self._state(head.chain, cold.name)
        deleted: list[str] = []
        for file, last in _closed_files(self._folder):
            if last > at.seq or not self._is_old(file):
                continue
            batch, broken = _read_records(file)
            if broken or not batch or batch[-1].seq != last or batch[0].seq != file.first:
                continue  # it was changed: keep it as evidence
            await self._check_stored(cold, head.chain, batch)
            await asyncio.to_thread(self._delete, "retired", file, last, cold.name)
            deleted.append(file.path.name)
        return tuple(deleted)

    def _is_old(self, file: DayFile) -> bool:
        today = datetime.fromtimestamp(self._clock(), UTC)
        return file.day < day_of((today - timedelta(days=self._settings.days)).timestamp())

    def _delete(self, kind: str, file: DayFile, last: int, where: str) -> None:
        """Record the deletion in the chain, then delete the file."""
        now = self._clock()
        record: Fields = {
            "kind": kind, "timestamp": stamp(now), "at": now, "file": file.path.name,
            "first": file.first, "last": last, "reason": where,
        }  # fmt: skip
        self._warm.append([record], now)
        self._warm.sync()
        file.path.unlink()

    def _drop(self) -> tuple[str, ...]:
        """With the spool full and `when_full = "drop"`, delete the oldest files unshipped."""
        deleted: list[str] = []
        if self._settings.when_full != "drop":
            return ()
        shipped = read_shipped(self._folder)
        have = 0 if shipped is None else shipped.seq
        for file, last in _closed_files(self._folder):
            if spool_size(self._folder) <= self._settings.spool_bytes:
                break
            if last <= have:
                continue
            self._delete("dropped", file, last, "the spool was full")
            deleted.append(file.path.name)
        return tuple(deleted)


def _closed_files(folder: Path) -> list[tuple[DayFile, int]]:
    """The files that are not appended to any more, each with the number of its last record."""
    files = day_files(folder)
    return [(file, after.first - 1) for file, after in zip(files, files[1:], strict=False)]


def _read_records(file: DayFile, after: int = 0) -> tuple[list[SealedRecord], int]:
    """The records of a file, perhaps without those before `after`; how many lines are invalid."""
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
    """New records, file by file, a page at a time, each with the number of invalid lines."""
    files = day_files(folder)
    ends = [*(file.first - 1 for file in files[1:]), None][: len(files)]
    for file, end in zip(files, ends, strict=True):
        if end is not None and end <= after:
            continue
        found, broken = _read_records(file, after)
        fresh = [record for record in found if record.seq > after]
        for start in range(0, len(fresh), PAGE_ROWS):
            yield fresh[start : start + PAGE_ROWS], broken if start == 0 else 0
        if not fresh:
            yield [], broken


@contextmanager
def _try_lock(path: Path) -> Generator[bool]:
    """Whether this process got the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except BlockingIOError:
            locked = False
        yield locked
    finally:
        os.close(descriptor)
