"""The database: commits are shared, failures are not, and damage is never passed over."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.store.databases import sqlite_worker
from evoclaw.store.databases.database import (
    Conflict,
    Connection,
    DamagedStore,
    Schema,
    StoreError,
    StoreFull,
)
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.databases.sqlite_file import MAX_WAL_BYTES, PAGE_BYTES, companion_path
from tests.support.stores import (
    SCHEMA,
    add,
    child,
    fill,
    flip,
    killed_after,
    names,
    open_descriptors,
    output,
    small_disk,
)

WAIT = 20.0


@pytest.fixture(autouse=True)
def commit_in_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a slow disk: these tests do something while a commit is under way."""
    monkeypatch.setattr(sqlite_worker, "FAST_COMMIT_S", 0.0)


async def opened(path: Path, *, set_aside: bool = False) -> SqliteDatabase:
    return await SqliteDatabase.open(path, SCHEMA, set_aside=set_aside)


async def filled(path: Path, count: int = 50) -> None:
    async with await opened(path) as database:
        await asyncio.gather(*(database.write(add(f"row {n}", n * 40)) for n in range(count)))


async def batch(database: SqliteDatabase, *works: Callable[[Connection], object]) -> list[object]:
    """Have writes asked for while another one is committed, so that they share the next commit."""
    tasks = [asyncio.create_task(database.write(work)) for work in (nothing, *works)]
    _, *answers = await asyncio.gather(*tasks, return_exceptions=True)
    return answers


def nothing(_: Connection) -> None:
    """A write that changes nothing, and is committed like any other."""


async def test_written_rows_are_read_back_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "things.db"
    async with await opened(path) as database:
        assert await database.write(add("one")) == 1
        assert await database.read(names) == ["one"]
    async with await opened(path) as database:
        assert await database.read(names) == ["one"]
        assert database.set_aside is None
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["things.db"]


@pytest.mark.parametrize(("durable", "level"), [(True, 2), (False, 0)])
async def test_a_durable_database_syncs_every_commit(
    tmp_path: Path, durable: bool, level: int
) -> None:
    def synchronous(connection: Connection) -> int:
        return connection.execute("PRAGMA synchronous").fetchone()[0]

    async with await SqliteDatabase.open(
        tmp_path / "things.db", SCHEMA, durable=durable
    ) as database:
        assert await database.read(synchronous) == level


@pytest.mark.parametrize("fast", [True, False])
async def test_a_lone_write_needs_the_thread_only_on_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    monkeypatch.setattr(sqlite_worker, "FAST_COMMIT_S", 60.0 if fast else 0.0)
    monkeypatch.setattr(sqlite_worker, "LONE_COMMIT_GAP_S", 0.0)
    threads: list[int] = []
    commit = vars(sqlite_worker.SqliteWorker)["_commit"]

    def noted(worker: sqlite_worker.SqliteWorker) -> None:
        threads.append(threading.get_ident())
        commit(worker)

    monkeypatch.setattr(sqlite_worker.SqliteWorker, "_commit", noted)
    async with await opened(tmp_path / "db") as database:
        for number in range(3):
            await database.write(add(f"row {number}"))
    # How long a commit takes is not known before the first one.
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [False, fast, fast]


async def test_a_burst_of_writes_shares_commits_on_a_fast_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_worker, "FAST_COMMIT_S", 60.0)
    monkeypatch.setattr(sqlite_worker, "LONE_COMMIT_GAP_S", 60.0)
    async with await opened(tmp_path / "db") as database:
        before = database.commits
        await asyncio.gather(*(database.write(add(f"row {n}")) for n in range(20)))
        assert database.commits - before <= 2


async def test_writes_queued_behind_a_commit_share_the_next_one(tmp_path: Path) -> None:
    async with await opened(tmp_path / "things.db") as database:
        before = database.commits
        numbers = await batch(database, *(add(f"row {n}") for n in range(64)))
        assert numbers == list(range(1, 65))
        assert database.commits - before == 2


async def test_64_writers_need_far_fewer_commits_than_writes(tmp_path: Path) -> None:
    async with await opened(tmp_path / "things.db") as database:

        async def writer(number: int) -> None:
            for count in range(8):
                await database.write(add(f"{number}.{count}"))

        await asyncio.gather(*(writer(number) for number in range(64)))
        assert len(await database.read(names)) == 512
        assert database.commits < 512 / 5


async def test_a_failing_write_does_not_affect_the_others_in_its_commit(tmp_path: Path) -> None:
    def half_done(error: BaseException) -> Callable[[Connection], None]:
        def work(connection: Connection) -> None:
            add("half")(connection)
            raise error

        return work

    async with await opened(tmp_path / "things.db") as database:
        answers = await batch(
            database,
            add("good"),
            half_done(StoreError("ours")),
            add("good"),
            half_done(ValueError("a bug")),
            half_done(StopIteration()),
            add("better"),
        )
        kinds = [type(answer) for answer in answers]
        failures = [StoreError, Conflict, ValueError, RuntimeError]
        assert kinds == [int, *failures, int]
        assert await database.read(names) == ["good", "better"]
        with pytest.raises(StoreError, match="ours"):
            await database.write(half_done(StoreError("ours")))
        with pytest.raises(StoreError, match="no such table"):
            await database.read(lambda connection: connection.execute("SELECT * FROM elsewhere"))
        await database.write(add("after"))
        assert await database.read(names) == ["good", "better", "after"]


async def test_a_failing_commit_is_rolled_back_and_the_next_one_works(tmp_path: Path) -> None:
    child_of = """CREATE TABLE parts (
        of INTEGER REFERENCES things (id) DEFERRABLE INITIALLY DEFERRED)"""
    schema = Schema(SCHEMA.name, ((*SCHEMA.migrations[0], child_of),))
    async with await SqliteDatabase.open(tmp_path / "things.db", schema) as database:
        await database.read(lambda connection: connection.execute("PRAGMA foreign_keys=ON"))
        orphan = "INSERT INTO parts VALUES (77)"
        answers = await batch(database, add("one"), lambda c: c.execute(orphan), add("two"))
        assert [type(answer) for answer in answers] == [sqlite3.IntegrityError] * 3
        assert await database.read(names) == []
        await database.write(add("three"))
        assert await database.read(names) == ["three"]


async def test_a_cancelled_write_does_not_affect_other_writes(tmp_path: Path) -> None:
    async with await opened(tmp_path / "things.db") as database:
        running, waiting, other = (
            asyncio.create_task(database.write(add(name)))
            for name in ("committed", "waited", "other")
        )
        await asyncio.sleep(0)
        assert running.cancel() and waiting.cancel()
        await other
        assert "other" in await database.read(names)
        assert running.cancelled() and waiting.cancelled()


async def test_writes_wait_for_another_process_without_blocking_the_event_loop(
    tmp_path: Path,
) -> None:
    path = tmp_path / "things.db"
    async with await opened(path) as database:
        with closing(sqlite3.connect(path, isolation_level=None)) as another:
            another.execute("BEGIN IMMEDIATE")
            writes = [asyncio.create_task(database.write(add(f"row {n}"))) for n in range(3)]
            for _ in range(10):
                await asyncio.sleep(0)
            assert not any(write.done() for write in writes)
            another.execute("COMMIT")
        async with asyncio.timeout(WAIT):
            assert [await write for write in writes] == [1, 2, 3]


async def test_closing_finishes_queued_writes_and_leaves_no_thread_or_file(tmp_path: Path) -> None:
    threads = threading.active_count()
    database = await opened(tmp_path / "things.db")
    pool = threading.active_count() - threads - 1
    writes = [asyncio.create_task(database.write(add(f"row {n}"))) for n in range(20)]
    await asyncio.sleep(0)
    await asyncio.gather(database.close(), database.close())
    assert [await write for write in writes] == list(range(1, 21))
    with pytest.raises(StoreError, match="is closed"):
        await database.write(add("late"))
    assert open_descriptors(tmp_path) == []
    assert threading.active_count() == threads + pool


async def test_a_garbage_collected_database_ends_its_thread(tmp_path: Path) -> None:
    database = await opened(tmp_path / "things.db")
    await database.write(add("one"))
    (thread,) = [one for one in threading.enumerate() if one.name == "store things.db"]
    del database
    gc.collect()
    await asyncio.to_thread(thread.join, WAIT)
    assert not thread.is_alive()
    assert open_descriptors(tmp_path) == []


async def test_a_cancelled_open_leaves_no_file_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    await filled(path)
    opening = asyncio.create_task(opened(path))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await asyncio.get_running_loop().shutdown_default_executor()
    await asyncio.sleep(0)  # What ended in a thread is told to the loop first.
    await asyncio.sleep(0)
    assert open_descriptors(tmp_path) == []


@pytest.mark.process
def test_after_kill_9_every_acknowledged_write_is_stored(tmp_path: Path) -> None:
    for count in (1, 40, 333):
        path = tmp_path / f"{count}.db"
        said = killed_after("things", count, path)

        async def found(path: Path = path) -> list[str]:
            async with await opened(path) as database:
                return await database.read(names)

        assert set(said) <= set(asyncio.run(found()))


@pytest.mark.process
def test_processes_that_create_a_file_at_the_same_time_share_it(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    with child("open", path) as first, child("open", path) as second, child("open", path) as third:
        said = [output(process).read() for process in (first, second, third)]
        assert said == [b"opened\n"] * 3

    async def found() -> list[str]:
        async with await opened(path) as database:
            return await database.read(names)

    assert len(asyncio.run(found())) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["things.db"]


async def test_tasks_that_create_a_file_at_the_same_time_share_it(tmp_path: Path) -> None:
    databases = await asyncio.gather(*(opened(tmp_path / "things.db") for _ in range(8)))
    await asyncio.gather(*(one.write(add(str(n))) for n, one in enumerate(databases)))
    assert len(await databases[0].read(names)) == 8
    await asyncio.gather(*(database.close() for database in databases))
    # Two that close at the same moment both leave the log to the other; the next one clears it.
    async with await opened(tmp_path / "things.db") as database:
        assert len(await database.read(names)) == 8
    assert list(contents(tmp_path)) == ["things.db"]


async def test_an_older_file_is_migrated_and_a_newer_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    await filled(path, 3)
    newer = Schema(
        SCHEMA.name,
        (*SCHEMA.migrations, ("ALTER TABLE things ADD COLUMN more TEXT",)),
        SCHEMA.checksummed,
    )
    for _ in range(2):
        async with await SqliteDatabase.open(path, newer) as database:
            assert len(await database.read(names)) == 3
            await database.read(lambda connection: connection.execute("SELECT more FROM things"))
    with pytest.raises(ConfigError, match="newer version"):
        await opened(path)


async def test_a_file_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "things.db"
    await filled(path, 3)
    with pytest.raises(ConfigError, match="not a file of kind 'other store'"):
        await SqliteDatabase.open(path, Schema("other store", SCHEMA.migrations), set_aside=True)
    assert path.exists()


async def test_an_unusable_path_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "things.db", tmp_path):
        with pytest.raises(ConfigError, match="cannot use .*; check its permissions or choose"):
            await opened(path)


@pytest.mark.process
async def test_fault_26_a_full_disk_refuses_writes_until_there_is_space_again(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk / "things.db"
        stored: list[str] = []
        async with await opened(path) as database:
            await database.write(add("first"))
            ballast = fill(disk)
            refused = 0
            for number in range(200):
                group = [f"{number}.{n}" for n in range(4)]
                answers = await batch(database, *(add(name, 3000) for name in group))
                good = [n for n, a in zip(group, answers, strict=True) if isinstance(a, int)]
                assert len(good) in (0, 4), "a commit is for all of its batch, or for none"
                stored += good
                refused += not good
                if not good:
                    assert all(isinstance(answer, StoreFull) for answer in answers)
                if refused > 3:
                    break
            assert refused > 3
            assert await database.read(names) == ["first", *stored]
            ballast.unlink()
            await database.write(add("last"))
        async with await opened(path) as database:
            assert await database.read(names) == ["first", *stored, "last"]


@pytest.mark.process
async def test_fault_26_a_full_disk_at_open_is_not_reported_as_damage(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        ballast = fill(disk)
        with pytest.raises(StoreFull):
            await opened(disk / "things.db", set_aside=True)
        assert [file.name for file in disk.iterdir()] == ["ballast"]
        ballast.unlink()
        await filled(disk / "things.db", 3)


def contents(folder: Path) -> dict[str, bytes]:
    files = [file for file in folder.iterdir() if file.is_file() and "-shm" not in file.name]
    found = {file.name: file.read_bytes() for file in files}
    return {name: data for name, data in found.items() if data or not name.endswith("-wal")}


def garbage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - PAGE_BYTES)
        file.write(random.Random(1).randbytes(PAGE_BYTES))


def flip_in(text: bytes) -> Callable[[Path], None]:
    return lambda path: flip(path, 8 * (path.read_bytes().index(text) + len(text) // 2))


def forget_the_log(path: Path) -> None:
    # 2 becomes 1, for writing and for reading.
    for bit in (8 * 18, 8 * 18 + 1, 8 * 19, 8 * 19 + 1):
        flip(path, bit)


RUIN: dict[str, Callable[[Path], object]] = {
    "first bytes": lambda path: flip(path, 8 * 3),
    "forgets its log": forget_the_log,
    "a page": garbage,
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: path.write_bytes(b""),
    "empty, but for its log": lambda path: path.write_bytes(b""),
    "not a database": lambda path: path.write_text("hello\n" * 1000),
    "a value": flip_in(b"v" * 1000),
    "a name of a column": flip_in(b"value BLOB"),
    "only the log is left": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", RUIN)
async def test_fault_27_a_damaged_file_is_reported_and_set_aside_only_on_request(
    tmp_path: Path, how: str
) -> None:
    path = tmp_path / "things.db"
    await filled(path)
    if how in ("empty, but for its log", "only the log is left"):
        path = await left_by_a_crash(tmp_path, 6)
    RUIN[how](path)
    left = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(DamagedStore, match="damaged"):
            await opened(path)
        assert contents(tmp_path) == left
    async with await opened(path, set_aside=True) as database:
        assert await database.read(names) == []
        assert database.set_aside is not None
        aside = database.set_aside
        await database.write(add("new"))
    moved = {name.replace(path.name, aside.name): data for name, data in left.items()}
    for name, data in moved.items():
        assert (tmp_path / name).read_bytes() == data
    assert ".damaged-" in aside.name
    async with await opened(path) as database:
        assert database.set_aside is None
        assert await database.read(names) == ["new"]


async def left_by_a_crash(folder: Path, rows: int) -> Path:
    """A file with a log, as kill -9 leaves them."""
    live, path = folder / "live" / "things.db", folder / "things.db"
    async with await opened(live) as database:
        for number in range(rows):
            await database.write(add(f"row {number}"))
        shutil.copy(live, path)
        shutil.copy(companion_path(live, "-wal"), companion_path(path, "-wal"))
    return path


async def test_fault_27_a_damaged_file_and_its_wal_are_left_unchanged(tmp_path: Path) -> None:
    path = await left_by_a_crash(tmp_path, 6)
    flip(path, 8 * (path.read_bytes().index(b"value BLOB") + 3))
    log = companion_path(path, "-wal")
    # The flipped page is also in the log, where it is sound: there it must be damaged too.
    assert log.read_bytes().count(b"value BLOB") == 0
    left = path.read_bytes(), log.read_bytes()
    for _ in range(2):
        with pytest.raises(DamagedStore):
            await opened(path)
        assert (path.read_bytes(), log.read_bytes()) == left


async def test_fault_27_a_wal_damaged_in_the_middle_is_reported(tmp_path: Path) -> None:
    path = await left_by_a_crash(tmp_path, 6)
    wal = companion_path(path, "-wal")
    file, log = path.read_bytes(), wal.read_bytes()
    chance = random.Random(27)
    detected = 0
    for bit in [8 * 1, 8 * 20, 8 * 28, *(chance.randrange(8 * len(log)) for _ in range(60))]:
        path.write_bytes(file)
        wal.write_bytes(log)
        flip(wal, bit)
        try:
            async with await opened(path) as database:
                found = await database.read(names)
        except DamagedStore:
            detected += 1
            assert (path.read_bytes(), len(wal.read_bytes())) == (file, len(log))
        else:
            # The last one cannot be told from one that a power cut tore while it was written.
            assert found[:5] == [f"row {number}" for number in range(5)]
    assert detected > 30


@pytest.mark.parametrize("kept", ["nothing", "its header", "its first commit"])
async def test_fault_27_a_wal_damaged_throughout_is_reported(tmp_path: Path, kept: str) -> None:
    path = await left_by_a_crash(tmp_path, 6)
    wal = companion_path(path, "-wal")
    log, noise = wal.read_bytes(), random.Random(3)
    start = {"nothing": 0, "its header": 32, "its first commit": 32 + 2 * (PAGE_BYTES + 24)}[kept]
    wal.write_bytes(log[:start] + noise.randbytes(len(log) - start))
    left = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(DamagedStore, match="write-ahead log is damaged"):
            await opened(path)
        assert contents(tmp_path) == left


async def test_a_flush_commits_only_what_is_not_committed(tmp_path: Path) -> None:
    async with await opened(tmp_path / "things.db") as database:
        await database.write(add("row 0"))
        commits = database.commits
        await database.flush()
        assert database.commits == commits
        await database.write(add("row 1"), wait=False)
        await database.flush()
        assert database.commits == commits + 1
        with closing(sqlite3.connect(tmp_path / "things.db")) as other:
            assert names(other) == ["row 0", "row 1"]


@pytest.mark.parametrize("page_bytes", [PAGE_BYTES, 4096])
async def test_the_wal_is_checkpointed_at_one_size_whatever_the_pages(
    tmp_path: Path, page_bytes: int
) -> None:
    path = tmp_path / "things.db"
    async with await opened(path):
        pass
    with closing(sqlite3.connect(path)) as old:
        assert old.execute("PRAGMA page_size").fetchone() == (PAGE_BYTES,)
        old.execute("PRAGMA journal_mode=DELETE")
        old.execute(f"PRAGMA page_size={page_bytes}")
        old.execute("VACUUM")
        old.execute("PRAGMA journal_mode=WAL")
    async with await opened(path) as database:
        (found,) = await database.read(lambda c: c.execute("PRAGMA page_size").fetchone())
        (pages,) = await database.read(lambda c: c.execute("PRAGMA wal_autocheckpoint").fetchone())
        assert (found, found * pages) == (page_bytes, MAX_WAL_BYTES)


async def test_a_torn_last_commit_of_the_wal_is_dropped(tmp_path: Path) -> None:
    path = await left_by_a_crash(tmp_path, 6)
    flip(companion_path(path, "-wal"), 8 * (companion_path(path, "-wal").stat().st_size - 100))
    async with await opened(path) as database:
        assert await database.read(names) == [f"row {number}" for number in range(5)]


async def test_old_frames_in_a_restarted_wal_are_not_damage(tmp_path: Path) -> None:
    live, path = tmp_path / "live" / "things.db", tmp_path / "things.db"
    async with await opened(live) as database:
        for number in range(20):
            await database.write(add(f"row {number}"))
        restart = "PRAGMA wal_checkpoint(RESTART)"
        await database.read(lambda connection: connection.execute(restart).fetchone())
        await database.write(add("row 20"))
        shutil.copy(live, path)
        shutil.copy(companion_path(live, "-wal"), companion_path(path, "-wal"))
    async with await opened(path) as database:
        assert len(await database.read(names)) == 21


async def test_a_wal_truncated_by_a_power_cut_opens_with_whole_commits(tmp_path: Path) -> None:
    path = await left_by_a_crash(tmp_path, 6)
    whole, log = path.read_bytes(), companion_path(path, "-wal").read_bytes()
    for cut in range(0, len(log), 1030):
        path.write_bytes(whole)
        companion_path(path, "-wal").write_bytes(log[: len(log) - cut])
        async with await opened(path) as database:
            found = await database.read(names)
        assert found == [f"row {number}" for number in range(len(found))]


@pytest.mark.process
async def test_fault_26_a_deferred_write_is_committed_once_the_full_disk_has_space(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with await opened(disk / "things.db") as database:
            await database.write(add("one"))
            ballast = fill(disk)
            await database.write(add("promised", 100_000), wait=False)
            assert await database.read(names) == ["one", "promised"]
            for _ in range(2):
                with pytest.raises(StoreFull):
                    await database.write(add("refused"))
            with pytest.raises(StoreFull):
                await database.read(names)
            ballast.unlink()
            await database.write(add("two"))
            assert await database.read(names) == ["one", "promised", "two"]
        async with await opened(disk / "things.db") as database:
            assert await database.read(names) == ["one", "promised", "two"]


@pytest.mark.process
async def test_closing_reports_a_deferred_write_that_cannot_be_committed(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        database = await opened(disk / "things.db")
        await database.write(add("one"))
        fill(disk)
        await database.write(add("promised", 100_000), wait=False)
        with pytest.raises(StoreFull):
            await database.close()


@pytest.mark.process
async def test_a_deferred_write_that_can_no_longer_apply_stops_all_writes(tmp_path: Path) -> None:
    """Who is told that it was done must never find out by chance that it was not."""
    with small_disk(tmp_path / "disk") as disk:
        database = await opened(disk / "things.db")
        await database.write(add("one"))
        ballast = fill(disk)
        await database.write(add("promised", 100_000), wait=False)
        with pytest.raises(StoreFull):
            await database.write(nothing)
        with closing(sqlite3.connect(disk / "things.db", isolation_level=None)) as other:
            # First in the line: otherwise what was promised may be done once there is room.
            other.execute("BEGIN IMMEDIATE")
            ballast.unlink()
            other.execute("INSERT INTO things (name) VALUES ('promised')")
            other.execute("COMMIT")
        for _ in range(2):
            with pytest.raises(StoreError, match="Restart it"):
                await database.write(add("two"))
        with pytest.raises(StoreError, match="Restart it"):
            await database.close()
