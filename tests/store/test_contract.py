"""What every database promises, whichever it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.store.databases.database import (
    Conflict,
    Connection,
    Database,
    Schema,
    StoreError,
    Work,
    add_checksum,
    verify_checksum,
)
from evoclaw.store.databases.steps import Procedure, Step
from evoclaw.store.databases.write_requests import write_scope
from tests.support.databases import Place, hold_deferred_commits
from tests.support.waiting import until


def _add_thing(connection: Connection, name: str, value: bytes, most: int) -> int | None:
    count = connection.execute("SELECT count(*) FROM things").fetchone()[0]
    if count >= most:
        return None
    statement = "INSERT INTO things (name, value) VALUES (?, ?) RETURNING id"
    return connection.execute(statement, (name, value)).fetchone()[0]


ADD_THING = Procedure(
    name="add_thing",
    sqlite=_add_thing,
    postgres="""
DECLARE
    number bigint;
BEGIN
    IF (SELECT count(*) FROM things) >= (a->>2)::bigint THEN
        RETURN NULL;
    END IF;
    INSERT INTO things (name, value) VALUES (a->>0, decode(a->>1, 'base64'))
    RETURNING id INTO number;
    RETURN to_jsonb(number);
END
""",
)
THINGS = Schema(
    "things",
    (
        (
            "CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT UNIQUE, value BLOB, "
            "size REAL, n INTEGER, CHECK (name <> 'what is ? ''INTEGER''')) STRICT",
        ),
    ),
    checksummed=(("things", ("value",)),),
    procedures=(ADD_THING,),
)
WAIT = 20.0


@asynccontextmanager
async def opened(place: Place, *, durable: bool = False) -> AsyncGenerator[Database]:
    database = await place.open(THINGS, durable=durable)
    try:
        yield database
    finally:
        await database.close()


def add(name: str, n: int = 0) -> Work[int]:
    statement = "INSERT INTO things (name, value, n) VALUES (?, ?, ?) RETURNING id"
    values = (name, add_checksum(name.encode()), n)
    return lambda connection: connection.execute(statement, values).fetchone()[0]


def adding(name: str, most: int = 1_000) -> Step:
    return Step(ADD_THING, (name, add_checksum(name.encode()), most))


def names(connection: Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT name FROM things ORDER BY id")]


def nothing(_: Connection) -> None:
    """A write that changes nothing, and is committed like any other."""


async def seen_by_others(place: Place) -> list[str]:
    """What is committed."""
    async with opened(place) as other:
        return await other.read(names)


async def batch(database: Database, *works: Work[Any]) -> list[Any]:
    """Have writes asked for while another one is committed, so that they share the next commit."""
    tasks = [asyncio.create_task(database.write(work)) for work in (nothing, *works)]
    _, *answers = await asyncio.gather(*tasks, return_exceptions=True)
    return answers


async def test_written_rows_are_read_back_after_reopening(place: Place) -> None:
    async with opened(place) as database:
        assert database.dialect == ("sqlite" if place.is_file else "postgres")
        first = await database.write(add("one"))
        assert await database.write(add("two")) == first + 1
        assert await database.read(names) == ["one", "two"]
        assert await seen_by_others(place) == ["one", "two"]
    assert await seen_by_others(place) == ["one", "two"]


async def test_values_round_trip_unchanged(place: Place) -> None:
    put = (
        "INSERT INTO things (name, value, size, n) VALUES (?4, ?3, ?2, ?1) RETURNING n, size, value"
    )

    def kept(*values: Any) -> Work[tuple[Any, ...]]:
        return lambda connection: tuple(connection.execute(put, values).fetchone())

    async with opened(place) as database:
        for number, values in enumerate(
            (
                (0, 0.1 + 0.2, b""),
                ((1 << 63) - 1, 1e308, bytes(range(256))),
                (-(1 << 63), -0.0, b"%s ?1 $1 'x'"),
                (True, 5e-324, None),
                (None, None, b"x" * 1_000_000),
            )
        ):
            text = f"{number} ü 🙂 % %s ? $1 ' \" \\ \u007f"
            assert await database.write(kept(*values, text)) == values
            assert text in await database.read(names)
        assert (
            await database.read(
                lambda c: c.execute("SELECT sum(n) FROM things WHERE n < 2 AND n >= 0").fetchone()[
                    0
                ]
            )
            == 1
        )
        for values in ((1 << 63, 0.0, b"", "big"), (0, 0.0, b"", "\ud800")):
            with pytest.raises((OverflowError, UnicodeEncodeError)):
                await database.write(kept(*values))
        assert len(await database.read(names)) == 5


async def test_a_nul_character_in_text_is_stored_or_refused_never_altered(place: Place) -> None:
    async with opened(place) as database:
        if place.is_file:
            await database.write(add("a\0b"))
            assert await database.read(names) == ["a\0b"]
        else:
            with pytest.raises(StoreError, match="NUL"):
                await database.write(add("a\0b"))
            assert await database.read(names) == []


async def test_text_is_sorted_by_code_point(place: Place) -> None:
    """Ids are looked for by what they begin with: no language's order may be in between."""
    given = ["run.1", "run/", "Run.1", "ä", "z", "run", "run-1", "_", "A", "a"]
    async with opened(place) as database:
        await asyncio.gather(*(database.write(add(name)) for name in given))
        found = await database.read(
            lambda c: c.execute("SELECT name FROM things ORDER BY name").fetchall()
        )
        assert [name for (name,) in found] == sorted(given)
        within = "SELECT name FROM things WHERE name >= ? AND name < ?"
        assert await database.read(lambda c: c.execute(within, ("run.", "run/")).fetchall()) == [
            ("run.1",)
        ]


async def test_steps_that_are_ready_together_share_a_commit(place: Place) -> None:
    async with opened(place, durable=True) as database:
        before = database.commits
        steps = [database.apply(adding(f"row {n}")) for n in range(60)]
        numbers = await asyncio.gather(*steps)
        assert sorted(numbers) == numbers and len(set(numbers)) == 60
        assert database.commits - before <= 4


async def test_a_step_that_is_refused_changes_nothing_and_does_not_affect_others(
    place: Place,
) -> None:
    async with opened(place) as database:
        answers = await asyncio.gather(
            database.apply(adding("one")),
            database.apply(adding("refused", most=1)),
            database.apply(adding("two")),
        )
        assert [answer is None for answer in answers] == [False, True, False]
        assert await seen_by_others(place) == ["one", "two"]


async def test_a_step_that_fails_does_not_affect_the_others_in_its_commit(place: Place) -> None:
    async with opened(place, durable=True) as database:
        steps = ("one", "two", "one", "three")
        answers = await asyncio.gather(
            *(database.apply(adding(name)) for name in steps), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [int, int, Conflict, int]
        assert await seen_by_others(place) == ["one", "two", "three"]


async def test_deferred_steps_are_committed_with_the_next_awaited_one_in_order(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_deferred_commits(monkeypatch)
    async with opened(place, durable=True) as database:
        before, answers = database.commits, list[int]()
        for n in range(5):
            database.defer(adding(f"record {n}"), on_result=answers.append)
        await database.apply(adding("command"))
        assert database.commits - before == 1
        assert len(answers) == 5 and answers == sorted(answers)
        assert await seen_by_others(place) == [f"record {n}" for n in range(5)] + ["command"]


async def test_a_deferred_step_is_committed_soon_and_seen_by_a_read(place: Place) -> None:
    async with opened(place, durable=True) as database:
        database.defer(adding("one"))
        assert await database.read(names) == ["one"]
        database.defer(adding("two"))
        async with asyncio.timeout(WAIT):
            while await seen_by_others(place) != ["one", "two"]:
                pass


async def test_what_refuses_a_deferred_step_fails_its_scope_and_no_other(place: Place) -> None:
    def refuse(_: object) -> None:
        raise StoreError("refused")

    async with opened(place, durable=True) as database:
        with write_scope():
            database.defer(adding("one"), on_result=refuse)
            with pytest.raises(StoreError, match="refused"):
                await database.flush()
            database.defer(adding("late"))
            with pytest.raises(StoreError, match="refused"):
                await database.apply(adding("later"))
        with write_scope():
            await database.apply(adding("two"))
            await database.flush()
        await database.flush()
        assert await seen_by_others(place) == ["one", "two"]


async def test_a_write_of_a_scope_never_overtakes_what_the_scope_held_back(place: Place) -> None:
    async with opened(place) as database:
        with write_scope() as scope:
            scope.hold(lambda: database.defer(adding("held 1")))
            await database.apply(adding("applied"))
            scope.hold(lambda: database.defer(adding("held 2")))
            database.defer(adding("deferred"))
            scope.hold(lambda: database.defer(adding("held 3")))
            assert (await database.read(names))[-1] == "held 3"
            scope.hold(lambda: database.defer(adding("held 4")))
            await database.flush()
        assert await seen_by_others(place) == [
            *("held 1", "applied", "held 2", "deferred", "held 3", "held 4")
        ]


async def test_a_shared_step_does_not_send_what_its_scope_held_back(place: Place) -> None:
    async with opened(place) as database:
        with write_scope() as scope:
            sent: list[str] = []
            scope.hold(lambda: sent.append("held"))
            shared = ("shared", add_checksum(b"shared"), 1)
            database.defer(Step(ADD_THING, lambda: shared))
            assert sent == []
            await database.flush()
            assert sent == ["held"]


async def test_steps_with_arguments_made_when_they_are_sent_join_each_other(place: Place) -> None:
    waiting, batches = ["a", "b", "c"], list[int]()

    def arguments() -> tuple[str, bytes, int]:
        name = "+".join(waiting)
        waiting.clear()
        return name, add_checksum(name.encode()), 1_000

    async with opened(place) as database:
        for _ in ("a", "b", "c"):
            database.defer(Step(ADD_THING, arguments), on_result=batches.append)
        await database.flush()
        assert len(batches) == 1
        assert await seen_by_others(place) == ["a+b+c"]


async def test_a_shared_step_comes_before_what_is_asked_for_after_it(place: Place) -> None:
    def shared(name: str) -> Step:
        return Step(ADD_THING, lambda: (name, add_checksum(name.encode()), 1_000))

    async with opened(place) as database:
        database.defer(shared("one"))
        database.defer(adding("two"))
        assert await database.read(names) == ["one", "two"]
        database.defer(shared("three"))
        await database.apply(adding("four"))
        database.defer(shared("five"))
    assert await seen_by_others(place) == ["one", "two", "three", "four", "five"]


async def test_a_failing_write_does_not_affect_the_others_in_its_commit(place: Place) -> None:
    def half_done(error: BaseException) -> Work[None]:
        def work(connection: Connection) -> None:
            add("half")(connection)
            raise error

        return work

    async with opened(place, durable=True) as database:
        answers = await batch(
            database,
            add("good"),
            half_done(StoreError("ours")),
            add("good"),
            half_done(ValueError("a bug")),
            half_done(StopIteration()),
            lambda c: c.execute("SELECT * FROM elsewhere").fetchall(),
            add("better"),
        )
        assert [isinstance(one, Exception) for one in answers] == [False, *[True] * 5, False]
        assert [type(answers[n]) for n in (1, 3, 4)] == [StoreError, ValueError, RuntimeError]
        assert await database.read(names) == ["good", "better"]
        with pytest.raises(StoreError, match="ours"):
            await database.write(half_done(StoreError("ours")))
        assert await seen_by_others(place) == ["good", "better"]


async def test_a_failing_read_does_not_affect_other_requests(place: Place) -> None:
    async with opened(place) as database:
        await database.write(add("one"), wait=False)
        with pytest.raises(Exception, match="elsewhere"):
            await database.read(lambda c: c.execute("SELECT * FROM elsewhere").fetchall())
        await database.write(add("two"))
        assert await seen_by_others(place) == ["one", "two"]


async def test_a_cancelled_write_does_not_affect_other_writes(place: Place) -> None:
    async with opened(place, durable=True) as database:
        tasks = [asyncio.create_task(database.write(add(f"row {n}"))) for n in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers[1], asyncio.CancelledError)
        found = await database.read(names)
        assert [name for name in found if name != "row 1"] == ["row 0", "row 2", "row 3"]


async def test_a_deferred_write_is_visible_at_once_and_committed_soon(place: Place) -> None:
    async with opened(place, durable=True) as database:
        before = database.commits
        await database.write(add("one"), wait=False)
        assert await database.read(names) == ["one"]
        async with asyncio.timeout(WAIT):
            while not await seen_by_others(place):
                pass
        # Others may see the commit a moment before the thread that made it has counted it.
        await until(lambda: database.commits > before)
        assert database.commits - before == 1


async def test_a_failing_deferred_write_does_not_undo_the_others(place: Place) -> None:
    async with opened(place, durable=True) as database:
        await database.write(add("one"), wait=False)
        with pytest.raises(Conflict):
            await database.write(add("one"), wait=False)
        await database.write(add("two"), wait=False)
        with pytest.raises(Conflict):
            await database.write(add("one"))
        await database.write(add("three"))
        assert await seen_by_others(place) == ["one", "two", "three"]


async def test_closing_commits_deferred_writes(place: Place) -> None:
    database = await place.open(THINGS, durable=True)
    await database.write(add("one"), wait=False)
    database.defer(adding("two"))
    await database.close()
    assert await seen_by_others(place) == ["one", "two"]
    with pytest.raises(StoreError, match="is closed"):
        await database.write(add("two"))
    await database.close()


async def test_read_modify_write_work_is_isolated(place: Place) -> None:
    """As a ledger does: no update may be lost, whoever else writes at the same time."""

    def more(connection: Connection) -> None:
        n = connection.execute("SELECT n FROM things WHERE name = 'sum'").fetchone()[0]
        connection.execute("UPDATE things SET n = ? WHERE name = 'sum'", (n + 1,))

    async with opened(place) as one, opened(place) as other:
        await one.write(add("sum"))

        async def count(database: Database) -> None:
            for number in range(20):
                await database.write(more, wait=bool(number % 3))

        await asyncio.gather(count(one), count(other), count(one))
        await asyncio.gather(one.write(nothing), other.write(nothing))
        total = await one.read(lambda c: c.execute("SELECT n FROM things").fetchone()[0])
        assert total == 60


async def test_each_schema_is_migrated_separately(place: Place) -> None:
    first = Schema("first", (("CREATE TABLE one (id TEXT PRIMARY KEY) STRICT",),))
    second = Schema("second", (("CREATE TABLE two (id TEXT PRIMARY KEY) STRICT",),))
    await (await place.open(first)).close()
    database = await place.open(first, second)
    await database.write(lambda c: c.execute("INSERT INTO one VALUES ('a')"))
    await database.close()
    newer = Schema("first", (*first.migrations, ("ALTER TABLE one ADD COLUMN n INTEGER",)))
    database = await place.open(newer)
    assert await database.read(lambda c: c.execute("SELECT * FROM one").fetchall()) == [("a", None)]
    await database.close()
    await (await place.open(second)).close()
    with pytest.raises(ConfigError, match="newer version"):
        await place.open(second, first)


async def test_a_failing_migration_leaves_the_schema_unchanged(place: Place) -> None:
    first = Schema("first", (("CREATE TABLE one (id TEXT PRIMARY KEY) STRICT",),))
    await (await place.open(first)).close()
    broken = Schema("first", (*first.migrations, ("CREATE TABLE more (n INTEGER)", "no statement")))
    with pytest.raises(Exception, match="no"):
        await place.open(broken)
    mended = Schema("first", (*first.migrations, ("CREATE TABLE more (n INTEGER)",)))
    database = await place.open(mended)
    assert await database.read(lambda c: c.execute("SELECT * FROM more").fetchall()) == []
    await database.close()


async def test_concurrent_first_opens_share_one_database(place: Place) -> None:
    opening = [place.open(THINGS) for _ in range(6)]
    databases = await asyncio.gather(*opening)
    await asyncio.gather(*(one.write(add(f"{n}")) for n, one in enumerate(databases)))
    assert sorted(await databases[0].read(names)) == [str(n) for n in range(6)]
    for database in databases:
        await database.close()


async def test_a_tampered_value_fails_its_checksum(place: Place) -> None:
    async with opened(place) as database:
        await database.write(add("one"))
        await database.write(lambda c: c.execute("UPDATE things SET value = ?", (b"onx1234",)))
        blob = await database.read(lambda c: c.execute("SELECT value FROM things").fetchone()[0])
        with pytest.raises(StoreError, match="checksum"):
            verify_checksum(blob, database.name)
    if place.is_file:
        with pytest.raises(StoreError, match="checksum"):
            await place.open(THINGS)


async def test_a_stale_read_sees_awaited_writes_and_cannot_write(
    place: Place,
) -> None:
    async with opened(place) as database, asyncio.timeout(WAIT):
        await database.write(add("waited for"))
        assert await database.read(names, allow_stale=True) == ["waited for"]
        await database.write(add("promised"), wait=False)
        assert (await database.read(names, allow_stale=True))[0] == "waited for"
        assert await database.read(names) == ["waited for", "promised"]
        await database.write(nothing)
        assert await database.read(names, allow_stale=True) == ["waited for", "promised"]
        if database.dialect == "postgres":
            with pytest.raises(Exception, match="read-only transaction"):
                await database.read(add("never"), allow_stale=True)
        assert await database.read(names) == ["waited for", "promised"]


async def test_busy_seconds_grow_with_reads_and_writes(place: Place) -> None:
    async with opened(place) as database, asyncio.timeout(WAIT):
        for work in (database.write(add("one")), database.read(names)):
            before = database.busy_s
            await work
            await database.write(nothing)  # it counts when it has answered, and before the next
            assert database.busy_s > before


@pytest.mark.parametrize("count", [0, 1, 2, 32, 33, 100])
async def test_executemany_upserts_like_single_statements(place: Place, count: int) -> None:
    rows = [(n, f"row {n}", n % 3) for n in range(count)]
    put = (
        "INSERT INTO things (id, name, n) VALUES (?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET n = excluded.n + 10"
    )
    async with opened(place) as database, asyncio.timeout(WAIT):
        for _ in range(2):
            await database.write(lambda c: c.executemany(put, rows) and None)
        found = await database.read(
            lambda c: c.execute("SELECT id, name, n FROM things ORDER BY id").fetchall()
        )
        assert [tuple(row) for row in found] == [(i, name, n + 10) for i, name, n in rows]


async def test_postgres_can_replace_a_migration_step_with_its_own(place: Place) -> None:
    tables = ("CREATE TABLE one (id TEXT PRIMARY KEY) STRICT",)
    first = Schema("first", (tables,))
    await (await place.open(first)).close()
    here, there = (f"INSERT INTO one VALUES ('{name}')" for name in ("sqlite", "postgres"))
    more = "INSERT INTO one VALUES ('both')"
    newer = Schema("first", (tables, (here,), (more,)), postgres_migrations=(None, (there,)))
    for _ in range(2):
        database = await place.open(newer)
        found = await database.read(lambda c: c.execute("SELECT id FROM one").fetchall())
        assert sorted(found) == [("both",), (database.dialect,)]
        await database.close()
