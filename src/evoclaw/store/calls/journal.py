"""The journal of an edge: the commands it received, their states, and how they ended.

A call is recorded before it starts, and its end before it is reported. So after a crash at any
point the edge knows whether the call may have run.

That a call starts is on the disk before it does: the only wait for the disk. Its end is written
before it is reported, and is on the disk a moment later: a power cut in between leaves a call that
had started, whose outcome is reported as unknown. The receipts of such calls may have been sent:
then a new chain of receipts starts, so that no number is used twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from evoclaw.store.calls.receipts import (
    CHAIN_HEAD_KEY,
    ChainPosition,
    UnsignedReport,
    read_position,
    store_position,
)
from evoclaw.store.calls.wal_sync import WalSync, set_result
from evoclaw.store.databases.blob_cipher import BlobCipher
from evoclaw.store.databases.database import (
    Connection,
    Schema,
    add_checksum,
    open_blob,
    seal_blob,
    verify_checksum,
)
from evoclaw.store.databases.sqlite import SqliteDatabase


class CallState(StrEnum):
    """The state of a call."""

    RECEIVED = "received"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """It started, and it is unknown how it ended."""

    @property
    def terminal(self) -> bool:
        """Whether the call has ended."""
        return self not in (CallState.RECEIVED, CallState.RUNNING)


class JournalEntry(Struct, frozen=True):
    """A command to record."""

    request_id: str
    run_id: str
    epoch: int
    """The epoch of the driver of the run; a higher one has taken over from a lower one."""
    digest: str
    """The hash of the arguments."""
    command: bytes


class JournalRow(Struct, frozen=True):
    """A recorded call."""

    request_id: str
    run_id: str
    epoch: int
    digest: str
    command: bytes
    """Empty once its end was acknowledged."""
    state: CallState
    boot_id: str
    """The boot id of the process that started it."""
    received_at: float
    """Wall clock, as the other two: for display and retention; never for a deadline."""
    started_at: float | None
    finished_at: float | None
    report: bytes | None
    """How it ended; None once that was acknowledged."""
    acked: bool


class ReceiveKind(StrEnum):
    """How the journal classifies a command."""

    NEW = "new"
    """Never seen before; recorded now."""
    KNOWN = "known"
    """Seen before, with the same arguments; it must not be started again."""
    CONFLICT = "conflict"
    """Its id was seen with different arguments."""
    FENCED = "fenced"
    """New, but from a driver whose run was taken over."""


class ReceiveResult(Struct, frozen=True):
    """The result of receiving a command."""

    kind: ReceiveKind
    row: JournalRow | None = None
    """The recorded call, if its id was known."""


class Version(Struct, frozen=True):
    """One version of the value of a key."""

    n: int
    value: bytes
    at: float


# Not `IN`: for that SQLite would build a temporary table at every write, half of its cost.
STATE_CHECK = " OR ".join(f"state = '{state}'" for state in CallState)
SCHEMA = Schema(
    "journal",
    (
        (
            f"""CREATE TABLE calls (
                seq INTEGER PRIMARY KEY,
                request_id TEXT NOT NULL UNIQUE,
                run_id BLOB NOT NULL,
                epoch INTEGER NOT NULL,
                digest BLOB NOT NULL,
                command BLOB,
                state TEXT NOT NULL CHECK ({STATE_CHECK}),
                boot_id BLOB,
                received_at REAL NOT NULL,
                started_at REAL,
                finished_at REAL,
                finished INTEGER,
                report BLOB,
                acked INTEGER NOT NULL DEFAULT 0 CHECK (acked = 0 OR acked = 1)
            ) STRICT""",
            """CREATE INDEX calls_untold ON calls (finished)
                WHERE finished IS NOT NULL AND acked = 0""",
            "CREATE INDEX calls_told ON calls (finished_at) WHERE acked = 1",
            # `twin` reveals a flipped bit when the file is opened.
            """CREATE TABLE fences (
                seq INTEGER PRIMARY KEY,
                run_id TEXT NOT NULL UNIQUE,
                epoch INTEGER NOT NULL,
                twin INTEGER NOT NULL CHECK (twin = ~epoch),
                at REAL NOT NULL
            ) STRICT""",
            "CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) STRICT",
            """CREATE TABLE versions (
                key TEXT NOT NULL, n INTEGER NOT NULL, value BLOB NOT NULL, at REAL NOT NULL,
                PRIMARY KEY (key, n)
            ) STRICT""",
        ),
    ),
    checksummed=(
        ("calls", ("run_id", "digest", "command", "boot_id", "report")),
        ("meta", ("value",)),
        ("versions", ("value",)),
    ),
)

COLUMNS = (
    "request_id, epoch, state, received_at, started_at, finished_at, acked, "
    "run_id, digest, command, boot_id, report"
)
RECEIVE = """
INSERT INTO calls
    (request_id, run_id, epoch, digest, command, received_at, state, boot_id, started_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9
WHERE NOT EXISTS (SELECT 1 FROM fences WHERE run_id = ?10 AND epoch > ?3)
ON CONFLICT (request_id) DO NOTHING
"""
FENCE = """
INSERT INTO fences (run_id, epoch, twin, at) VALUES (?1, ?2, ~?2, ?3)
ON CONFLICT (run_id) DO UPDATE SET epoch = max(epoch, ?2), twin = ~max(epoch, ?2), at = ?3
WHERE epoch < ?2 OR at < ?4
"""
START = """
UPDATE calls SET state = 'running', boot_id = ?, started_at = ?
WHERE request_id = ? AND state = 'received'
"""
# Numbered, because the wall clock may be set back between two ends.
FINISH = """
UPDATE calls SET state = ?, report = ?, finished_at = ?, finished = ?
WHERE request_id = ? AND finished IS NULL
"""
LAST_FINISHED = """
SELECT coalesce(max(finished), 0) FROM calls WHERE finished IS NOT NULL AND acked = 0
"""
ACKNOWLEDGE = """
UPDATE calls SET acked = 1, command = NULL, report = NULL
WHERE request_id IN (SELECT value FROM json_each(?)) AND finished IS NOT NULL AND acked = 0
"""
DELETE_ACKNOWLEDGED = """
DELETE FROM calls WHERE seq IN
    (SELECT seq FROM calls WHERE acked = 1 ORDER BY finished_at LIMIT ?)
"""
DELETE_OLD_FENCES = """
DELETE FROM fences WHERE seq IN (
    SELECT seq FROM (SELECT seq, at, row_number() OVER (ORDER BY at DESC) AS place FROM fences)
    WHERE place > ?1 OR (place > ?2 AND at < ?3))
"""
FENCE_RENEWAL_INTERVAL_S = 3600.0
"""Seconds after which a running run renews its fence, so that it is not pruned."""
PRUNE_BATCH_ROWS = 500
"""Calls that are deleted in one transaction, so that other calls do not wait long."""


MAX_REMEMBERED_FENCES = 10_000
"""Fences in memory; the others are only in the file."""
MACHINE_KEY = "machine"
"""The key of the boot id of the machine that wrote the journal last."""
KERNEL_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Ends:
    """The numbers of the calls that end in one transaction, and their receipts."""

    __slots__ = ("finished", "position", "signed")

    def __init__(self, finished: int, position: ChainPosition) -> None:
        self.finished, self.position, self.signed = finished, position, False


_JournalWork = Callable[[Connection, _Ends], Any]


class _JournalWrite(NamedTuple):
    work: _JournalWork
    future: asyncio.Future[Any]
    sync: bool
    """Whether the future has its result only when it is on the disk."""


class Journal:
    """What an edge must know after a crash. One process uses it at a time.

    When a write returns it survives the death of this process, and all but the end of a call that
    ran and acknowledgements survive a power cut.
    """

    def __init__(self, database: SqliteDatabase, clock: Callable[[], float] = time.time) -> None:
        self.database = database
        self._path, self._clock = database.path, clock
        self._sync: WalSync | None = None
        self._finished, self._position = 0, ChainPosition()
        self._fences: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """The last used fences: their epochs, and when they were renewed."""
        self._running: set[str] = set()
        """The calls that this process has recorded as started."""
        self._queue: list[_JournalWrite] = []
        self._is_writing = False
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        durable: bool = True,
        set_aside: bool = False,
        clock: Callable[[], float] = time.time,
        cipher: BlobCipher | None = None,
    ) -> Journal:
        """Open or create a journal; see `SqliteDatabase.open`, also for its errors.

        The cipher encrypts commands and reports: what models asked for and what tools printed.
        """
        # Commits do not wait for the disk: `WalSync` does, for those that must.
        database = await SqliteDatabase.open(path, SCHEMA, durable=False, set_aside=set_aside)
        database.cipher = cipher or database.cipher
        journal = cls(database, clock)
        try:
            await journal._load(durable=durable)
        except BaseException:
            await database.close()
            raise
        return journal

    async def _load(self, *, durable: bool) -> None:
        if durable:
            await self.database.read(_leave_syncing_to_caller)
        self._finished, self._position = await self.database.write(self._load_ends)
        if durable:
            self._sync = WalSync(self._path)
            await self._sync.wait()

    def _load_ends(self, connection: Connection) -> tuple[int, ChainPosition]:
        find = "SELECT value FROM meta WHERE key = ?"
        found = connection.execute(find, (MACHINE_KEY,)).fetchone()
        before = b"" if found is None else verify_checksum(found[0], self._path)
        machine = _machine_boot_id()
        put = "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2"
        connection.execute(put, (MACHINE_KEY, add_checksum(machine)))
        if found is not None and (before != machine or not machine):
            # Ends that were reported may have been lost, with the numbers of their receipts.
            running = "SELECT 1 FROM calls WHERE finished IS NULL AND state = 'running' LIMIT 1"
            if connection.execute(running).fetchone() is not None:
                connection.execute("DELETE FROM meta WHERE key = ?", (CHAIN_HEAD_KEY,))
        (finished,) = connection.execute(LAST_FINISHED).fetchone()
        return finished, read_position(connection, self.database.name)

    async def __aenter__(self) -> Journal:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish writing and close the file."""
        try:
            while self._is_writing:
                await (asyncio.wait(self._tasks) if self._tasks else asyncio.sleep(0))
            if self._sync is not None:
                sync, self._sync = self._sync, None
                await sync.close()
        finally:
            await self.database.close()

    async def receive(self, entry: JournalEntry, *, start: str | None = None) -> ReceiveResult:
        """Record a command, unless its id is known or its run was taken over.

        A known call is returned and not started again. A command with a higher epoch comes from a
        driver that has taken the run over, and fences out the others.

        Args:
            entry: The command.
            start: The boot id of the process, if a new call starts at once: then this is also its
                `start`, in one write.
        """
        now = self._clock()
        new = (
            entry.request_id,
            add_checksum(entry.run_id.encode()),
            entry.epoch,
            add_checksum(entry.digest.encode()),
            seal_blob(self.database, entry.command),
            now,
            CallState.RECEIVED if start is None else CallState.RUNNING,
            None if start is None else add_checksum(start.encode()),
            None if start is None else now,
            entry.run_id,
        )
        received, fence = await self._write(
            lambda c, _: self._receive(c, entry, new, now), sync=True
        )
        if fence is not None:
            self._fences[entry.run_id] = fence
            self._fences.move_to_end(entry.run_id)
            while len(self._fences) > MAX_REMEMBERED_FENCES:
                self._fences.popitem(last=False)
        if start is not None and received.kind is ReceiveKind.NEW:
            self._running.add(entry.request_id)
        return received

    def _receive(
        self, connection: Connection, entry: JournalEntry, new: tuple[object, ...], now: float
    ) -> tuple[ReceiveResult, tuple[int, float] | None]:
        received = ReceiveResult(ReceiveKind.NEW)
        if not connection.execute(RECEIVE, new).rowcount:
            row = self._find(connection, entry.request_id)
            if row is None:
                return ReceiveResult(ReceiveKind.FENCED), None
            if (row.run_id, row.digest) != (entry.run_id, entry.digest):
                return ReceiveResult(ReceiveKind.CONFLICT, row), None
            received = ReceiveResult(ReceiveKind.KNOWN, row)
        fence, stale = self._fences.get(entry.run_id), now - FENCE_RENEWAL_INTERVAL_S
        if fence is not None and fence[0] >= entry.epoch and fence[1] >= stale:
            return received, None
        if connection.execute(FENCE, (entry.run_id, entry.epoch, now, stale)).rowcount:
            return received, (max(entry.epoch, fence[0] if fence else entry.epoch), now)
        find = "SELECT epoch, at FROM fences WHERE run_id = ?"
        return received, connection.execute(find, (entry.run_id,)).fetchone()

    async def start(self, request_id: str, boot_id: str) -> bool:
        """Record that a call starts now; False if it has started or ended already."""
        values = (add_checksum(boot_id.encode()), self._clock(), request_id)
        started = await self._changed(START, values)
        if started:
            self._running.add(request_id)
        return started

    async def finish(
        self, request_id: str, state: CallState, report: bytes | UnsignedReport
    ) -> bool:
        """Record how a call ended; False if it had ended already, and then nothing changes."""
        if not state.terminal:
            raise ValueError(f"{state} is not a final state")
        now = self._clock()
        finished = await self._write(
            lambda c, ends: self._finish(c, ends, request_id, state, report, now),
            # After a power cut only a call that runs tells that its receipt may have been lost.
            sync=request_id not in self._running,
            alone=len(self._running) <= 1,
        )
        self._running.discard(request_id)
        return finished

    def _finish(
        self,
        connection: Connection,
        ends: _Ends,
        request_id: str,
        state: CallState,
        report: bytes | UnsignedReport,
        now: float,
    ) -> bool:
        position = ends.position
        if not isinstance(report, bytes):
            is_open = "SELECT 1 FROM calls WHERE request_id = ? AND finished IS NULL"
            if request_id not in self._running and (
                connection.execute(is_open, (request_id,)).fetchone() is None
            ):
                return False
            report, position = report.signed_after(position)
        values = (state, seal_blob(self.database, report), now, ends.finished + 1, request_id)
        if not connection.execute(FINISH, values).rowcount:
            return False
        ends.signed = ends.signed or position is not ends.position
        ends.finished, ends.position = ends.finished + 1, position
        return True

    async def acknowledge(self, request_ids: Iterable[str]) -> None:
        """Record that the ends of calls arrived: reports are deleted, ids are kept."""
        ids = msgspec.json.encode(list(request_ids)).decode()
        await self._write(lambda c, _: c.execute(ACKNOWLEDGE, (ids,)))

    async def _write(self, work: _JournalWork, *, sync: bool = False, alone: bool = False) -> Any:
        """Run a function in a transaction; all that are requested at once share it.

        Args:
            work: The function.
            sync: Whether to wait until it is on the disk.
            alone: Whether no other call runs, whose end could share the transaction.
        """
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._queue.append(_JournalWrite(work, future, sync))
        if not self._is_writing:
            self._is_writing = True
            if alone:
                self._start_writing()
            else:
                loop.call_soon(self._start_writing)
        return await future

    def _start_writing(self) -> None:
        batch, self._queue = self._queue, []
        ends = _Ends(self._finished, self._position)
        committed, results = self.database.write_at_once(lambda c: self._run(c, ends, batch))
        if committed and results is not None:
            self._is_writing = False
            self._on_committed(ends, batch, results)
            return
        # Another process has locked the file, or one of them fails.
        task = asyncio.create_task(self._write_slowly(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write_slowly(self, batch: list[_JournalWrite]) -> None:
        try:
            await self._write_batch(batch)
        finally:
            self._is_writing = bool(self._queue)
            if self._queue:
                asyncio.get_running_loop().call_soon(self._start_writing)

    async def _write_batch(self, batch: list[_JournalWrite]) -> None:
        ends = _Ends(self._finished, self._position)
        try:
            results = await self.database.write(lambda c: self._run(c, ends, batch))
        except BaseException as problem:  # it is for the callers
            if len(batch) > 1:  # one that fails must not fail the others
                for single in batch:
                    await self._write_batch([single])
            elif not batch[0].future.done():
                batch[0].future.set_exception(problem)
            return
        self._on_committed(ends, batch, results)

    def _run(self, connection: Connection, ends: _Ends, batch: list[_JournalWrite]) -> list[Any]:
        ends.finished, ends.position, ends.signed = self._finished, self._position, False
        results = [write.work(connection, ends) for write in batch]
        if ends.signed:
            store_position(connection, ends.position)
        return results

    def _on_committed(self, ends: _Ends, batch: list[_JournalWrite], results: list[Any]) -> None:
        self._finished, self._position = ends.finished, ends.position
        unsynced: list[tuple[asyncio.Future[Any], Any]] = []
        for write, result in zip(batch, results, strict=True):
            if write.sync:
                unsynced.append((write.future, result))
            else:
                set_result(write.future, result)
        if self._sync is not None:
            alone = len(batch) == 1 and not self._running
            self._sync.committed(len(batch), unsynced, alone=alone)
        else:
            for future, result in unsynced:
                set_result(future, result)

    async def get(self, request_id: str) -> JournalRow | None:
        """A recorded call."""
        return await self.database.read(lambda connection: self._find(connection, request_id))

    async def open_calls(self) -> list[JournalRow]:
        """Calls that have not ended, in the order they arrived."""
        return await self._rows("WHERE finished IS NULL ORDER BY seq")

    async def unacknowledged(self, limit: int = 100) -> list[JournalRow]:
        """Calls whose end was not acknowledged, in the order they ended."""
        return await self._rows(
            "WHERE finished IS NOT NULL AND acked = 0 ORDER BY finished LIMIT ?", limit
        )

    async def unacknowledged_ids(self, limit: int) -> list[str]:
        """The ids of the newest calls whose end was not acknowledged, in the order they ended."""
        statement = """SELECT request_id FROM calls
            WHERE finished IS NOT NULL AND acked = 0 ORDER BY finished DESC LIMIT ?"""
        found = await self.database.read(lambda c: c.execute(statement, (limit,)).fetchall())
        return [row[0] for row in reversed(found)]

    async def prune(
        self,
        now: float,
        *,
        window_seconds: float = 86_400,
        max_calls: int = 100_000,
        min_calls: int = 1_000,
    ) -> int:
        """Delete acknowledged calls; how many.

        Args:
            now: Wall clock.
            window_seconds: How long an id is kept, to recognise a late copy of its command.
            max_calls: How many are kept at most.
            min_calls: How many are kept in any case: a clock that jumps must not let a command
                run twice.
        """

        def count(connection: Connection) -> int:
            acknowledged = "SELECT count(*) FROM calls WHERE acked = 1"
            (held,) = connection.execute(acknowledged).fetchone()
            before = (now - window_seconds,)
            (old,) = connection.execute(acknowledged + " AND finished_at < ?", before).fetchone()
            return max(held - max_calls, min(old, held - min_calls), 0)

        self._fences.clear()
        await self._changed(DELETE_OLD_FENCES, (max_calls, min_calls, now - window_seconds))
        deleted = left = await self.database.read(count)
        while left > 0:
            values = (min(left, PRUNE_BATCH_ROWS),)
            await self._changed(DELETE_ACKNOWLEDGED, values)
            left -= PRUNE_BATCH_ROWS
        return deleted

    async def remember(self, key: str, value: bytes) -> None:
        """Store a small value."""
        statement = "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2"
        await self._changed(statement, (key, add_checksum(value)))

    async def recall(self, key: str) -> bytes | None:
        """A stored value."""
        statement = "SELECT value FROM meta WHERE key = ?"
        found = await self.database.read(lambda c: c.execute(statement, (key,)).fetchone())
        return None if found is None else verify_checksum(found[0], self._path)

    async def remember_version(self, key: str, value: bytes, *, keep: int = 100) -> int:
        """Store a new version of a value; its number."""
        blob, now = add_checksum(value), self._clock()
        return await self._write(lambda c, _: _add_version(c, key, blob, now, keep), sync=True)

    async def versions(self, key: str, limit: int = 100) -> list[Version]:
        """The versions of a value, newest first."""
        statement = "SELECT n, value, at FROM versions WHERE key = ? ORDER BY n DESC LIMIT ?"
        found = await self.database.read(lambda c: c.execute(statement, (key, limit)).fetchall())
        return [Version(n, verify_checksum(value, self._path), at) for n, value, at in found]

    async def _changed(self, statement: str, values: tuple[object, ...]) -> bool:
        count = await self._write(lambda c, _: c.execute(statement, values).rowcount, sync=True)
        return count > 0

    async def _rows(self, condition: str, *values: object) -> list[JournalRow]:
        statement = f"SELECT {COLUMNS} FROM calls {condition}"
        found = await self.database.read(lambda c: c.execute(statement, values).fetchall())
        return [self._row(columns) for columns in found]

    def _find(self, connection: Connection, request_id: str) -> JournalRow | None:
        statement = f"SELECT {COLUMNS} FROM calls WHERE request_id = ?"
        columns = connection.execute(statement, (request_id,)).fetchone()
        return None if columns is None else self._row(columns)

    def _row(self, columns: tuple[Any, ...]) -> JournalRow:
        id_, epoch, state, received_at, started_at, finished_at, acked, *blobs = columns
        run, digest, command, boot, report = (
            None if blob is None else open_blob(self.database, blob) for blob in blobs
        )
        return JournalRow(
            id_,
            (run or b"").decode(),
            epoch,
            (digest or b"").decode(),
            command or b"",
            CallState(state),
            (boot or b"").decode(),
            received_at,
            started_at,
            finished_at,
            report,
            bool(acked),
        )


def _leave_syncing_to_caller(connection: Connection) -> None:
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")


def _machine_boot_id() -> bytes:
    """The id of the current boot of the machine; empty if the system has none."""
    try:
        return KERNEL_BOOT_ID.read_bytes().strip()
    except OSError:
        return b""


def _add_version(connection: Connection, key: str, blob: bytes, now: float, keep: int) -> int:
    newest = "SELECT coalesce(max(n), 0) FROM versions WHERE key = ?"
    n: int = connection.execute(newest, (key,)).fetchone()[0] + 1
    connection.execute("INSERT INTO versions VALUES (?, ?, ?, ?)", (key, n, blob, now))
    connection.execute("DELETE FROM versions WHERE key = ? AND n <= ?", (key, n - keep))
    return n
