"""Metrics of stored records: folded once, live for runs in progress, deleted with their runs."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.events import (
    CallFinished,
    CallStarted,
    ContextTrimmed,
    Event,
    Record,
    Replied,
    ReplyFailed,
    RunFinished,
    RunResumed,
    StopReason,
    TurnStarted,
)
from evoclaw.core.messages import JSON, ErrorBlock, ErrorKind, Reply, TextBlock, ToolResult, Usage
from evoclaw.core.profile import Profile
from evoclaw.store.databases.database import Database
from evoclaw.store.databases.export_import import export_to, import_from, tables_of
from evoclaw.store.databases.migrations import MultiSchemaFormat, open_database
from evoclaw.store.databases.sqlite_file import FileContents, inspect_file
from evoclaw.store.metrics import tables as metrics_tables
from evoclaw.store.metrics.fold import RunFold, plain
from evoclaw.store.metrics.store import MetricsStore, MetricsWindow
from evoclaw.store.metrics.tables import CallRow
from evoclaw.store.runs import queue
from evoclaw.store.runs.queue import QueuedRun, QueueLimits, RunQueue
from evoclaw.store.sessions import changes as session_changes
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.delete_steps import TABLES_BY_RUN_ID, TABLES_BY_SESSION_ID
from evoclaw.store.sessions.expired_sessions import ExpiredSessions
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore, StoredRun
from tests.support.databases import Place

SCHEMAS = (session_tables.SCHEMA, queue.SCHEMA, metrics_tables.SCHEMA)
EVER = MetricsWindow("local", 0.0, 10_000.0)


def started(call_id: str, tool: str = "read", **arguments: JSON) -> CallStarted:
    return CallStarted(call_id, tool, arguments, f"r.1.{call_id}.1")


def finished(
    call_id: str, tool: str = "read", error: ErrorKind | None = None, **details: JSON
) -> CallFinished:
    block = TextBlock("fine") if error is None else ErrorBlock(error, "it\x1b broke\n\0here")
    return CallFinished(ToolResult(call_id, tool, (block,), error, details))


@dataclass
class Talk:
    """One run of a session, told record by record."""

    store: SessionStore
    clock: list[float]
    run: StoredRun
    seq: int = 0
    turns: int = 0
    kept: list[Record] = field(default_factory=list[Record])

    async def tell(self, *told: tuple[float, Event]) -> None:
        """Have these happen at these times."""
        records: list[Record] = []
        stop: StopReason | None = None
        for at, event in told:
            self.seq += 1
            self.clock[0] = at
            stop = event.stop if isinstance(event, RunFinished) else None
            self.turns += isinstance(event, TurnStarted)
            records.append(Record(self.run.id, self.seq, at, event))
        self.kept += records
        await self.store.append(self.run, records, [], RunUsage(turns=self.turns), stop)


@dataclass
class House:
    """A database with sessions and their metrics."""

    database: Database
    clock: list[float]
    metrics: MetricsStore

    async def talk(
        self, run_id: str = "r1", *, owner: str = "", agent: str = "helper", at: float = 100.0,
        tenant: str = "local", parent: str = "",
    ) -> Talk:  # fmt: skip
        """Begin a run in a session of its own."""
        store = SessionStore(self.database, lambda: self.clock[0], tenant)
        self.clock[0] = at
        await store.create(Session(f"s-{run_id}", agent, owner))
        run = await store.create_run(
            run_id, f"s-{run_id}", "hi", parent_run=parent, root_run=parent
        )
        return Talk(store, self.clock, run)

    async def calls(self, window: MetricsWindow = EVER) -> list[CallRow]:
        return (await self.metrics.find(window)).calls

    async def count(self, table: str) -> int:
        statement = f"SELECT count(*) FROM {table}"
        return (await self.database.read(lambda c: c.execute(statement).fetchone()))[0]


@asynccontextmanager
async def opened(place: Place) -> AsyncGenerator[House]:
    database = await place.open(*SCHEMAS)
    try:
        yield House(database, [0.0], MetricsStore(database))
    finally:
        await database.close()


def ended(stop: StopReason = StopReason.COMPLETED) -> RunFinished:
    return RunFinished(stop, "done")


async def test_a_run_that_ended_is_folded_once_from_all_its_records(place: Place) -> None:
    async with opened(place) as house:
        talk = await house.talk(owner="ann")
        asks = Reply(usage=Usage(10, 2), cost=0.5)
        await talk.tell(
            (101, TurnStarted(1)),
            (102, Replied(asks)),
            (103, started("c1")),
            (103, started("c2", "bash")),
            (104, finished("c1", "read", ErrorKind.TIMEOUT)),
            (105, finished("c2", "bash")),
            (105, finished("c3", "bash", ErrorKind.PERMISSION_DENIED)),
            (106, TurnStarted(2)),
            (107, ReplyFailed("busy", "no", Usage(1, 0))),
            (107, ContextTrimmed(1, usage=Usage(4, 4), cost=0.25)),
            (108, Replied(Reply("so", usage=Usage(20, 3), cost=None))),
            (110, ended()),
        )
        found = await house.metrics.find(EVER)
        (run,) = found.runs
        assert (run.run_id, run.owner, run.agent, run.stop) == ("r1", "ann", "helper", "completed")
        assert (run.at, run.turns, run.seconds) == (110, 2, 10)
        assert (run.tokens_in, run.tokens_out, run.cost, run.unpriced) == (35, 9, 0.75, 2)
        assert run.saved == pytest.approx(1.0), "1 s and 2 s of work in 2 s"
        first, second, third = found.calls
        assert (first.tool, first.ms, first.error, first.denied) == ("read", 1000, "timeout", False)
        assert first.said == "it broke here", "nothing that a terminal or a database minds"
        assert (second.error, second.ms, second.bytes, second.said) == ("", 2000, 4, "")
        assert (third.ms, third.denied) == (None, True)
        await house.database.write(lambda c: c.execute("DELETE FROM records"))
        assert await house.metrics.find(EVER) == found, "they were not needed a second time"


async def test_a_failed_call_is_recovered_by_a_later_turn_unless_the_run_ends_badly() -> None:
    events: Sequence[Event] = (
        TurnStarted(1),
        started("a"),
        started("b"),
        finished("a", error=ErrorKind.NOT_FOUND),
        finished("b"),
        TurnStarted(2),
        started("c"),
        finished("c"),
        TurnStarted(3),
        started("d"),
        finished("d", error=ErrorKind.INTERNAL),
    )
    fold = RunFold()
    for number, event in enumerate(events[:5], 1):
        fold.receive(Record("r", number, float(number), event))
    (failed, _) = fold.calls
    assert not fold.recovered(failed, None), "what went on beside it is no recovery"
    for number, event in enumerate(events[5:], 6):
        fold.receive(Record("r", number, float(number), event))
    first, beside, later, last = fold.calls
    assert fold.recovered(first, StopReason.COMPLETED) and fold.recovered(first, None)
    assert not fold.recovered(first, StopReason.MAX_ITERATIONS)
    assert not fold.recovered(last, StopReason.COMPLETED), "nothing came after it"
    assert not fold.recovered(beside, None) and not fold.recovered(later, None)


async def test_a_run_in_progress_is_found_and_not_stored(place: Place) -> None:
    async with opened(place) as house:
        talk = await house.talk()
        await talk.tell((101, TurnStarted(1)), (102, started("c1")), (103, finished("c1")))
        queued = await house.talk("queued")
        assert queued.seq == 0
        found = await house.metrics.find(EVER)
        assert [(run.run_id, run.stop, run.at) for run in found.runs] == [("r1", "running", 103)]
        assert len(found.calls) == 1
        assert await house.count("figures_runs") == await house.count("figures_calls") == 0
        await talk.tell((104, started("c2")), (105, finished("c2")))
        assert len(await house.calls()) == 2, "the rest is taken in"
        await talk.tell((106, ended()))
        found = await house.metrics.find(EVER)
        assert [run.stop for run in found.runs] == ["completed"] and len(found.calls) == 2
        assert await house.count("figures_calls") == 2


async def test_a_run_that_waited_and_was_resumed_is_folded_again(place: Place) -> None:
    async with opened(place) as house:
        talk = await house.talk()
        await talk.tell(
            (101, TurnStarted(1)),
            (102, started("c1")),
            (103, finished("c1", error=ErrorKind.NOT_FOUND)),
            (104, ended(StopReason.WAITING)),
        )
        (run,) = (await house.metrics.find(EVER)).runs
        assert (run.stop, await house.count("figures_runs")) == ("waiting", 1)
        await talk.tell((904, RunResumed("m", LoopSettings(), Profile())), (905, TurnStarted(2)))
        (run,) = (await house.metrics.find(EVER)).runs
        assert run.stop == "running"
        assert await house.count("figures_runs") == await house.count("figures_calls") == 0
        await talk.tell((906, started("c2")), (907, finished("c2")), (910, ended()))
        found = await house.metrics.find(EVER)
        (run,) = found.runs
        assert (run.stop, run.seconds) == ("completed", 10), "nobody waited 800 s for the machine"
        assert [call.recovered for call in found.calls] == [True, False]


async def test_a_window_is_narrowed_by_time_owner_agent_and_tenant(place: Place) -> None:
    async with opened(place) as house:
        for name, owner, agent, tenant, at in (
            ("a", "ann", "helper", "local", 100),
            ("b", "bob", "helper", "local", 200),
            ("c", "ann", "coder", "local", 300),
            ("d", "ann", "helper", "acme", 100),
        ):
            talk = await house.talk(name, owner=owner, agent=agent, tenant=tenant, at=at)
            await talk.tell((at, started("x", name)), (at + 10, finished("x", name)))
            if name != "c":
                await talk.tell((at + 20, ended()))

        async def tools(window: MetricsWindow) -> list[str]:
            return sorted(call.tool for call in await house.calls(window))

        assert await tools(EVER) == ["a", "b", "c"]
        assert await tools(MetricsWindow("local", 0, 9_000, owner="ann")) == ["a", "c"]
        assert await tools(MetricsWindow("local", 0, 9_000, agent="helper")) == ["a", "b"]
        assert await tools(MetricsWindow("local", 0, 9_000, "ann", "coder")) == ["c"]
        assert await tools(MetricsWindow("local", 110, 210)) == ["a"], "the end is not in it"
        assert await tools(MetricsWindow("local", 110.5, 210.5)) == ["b"]
        assert await tools(MetricsWindow("acme", 0, 9_000)) == ["d"]
        assert await tools(MetricsWindow("nobody", 0, 9_000)) == []


async def test_calls_in_a_window_count_even_if_their_run_ended_later(place: Place) -> None:
    async with opened(place) as house:
        talk = await house.talk()
        await talk.tell((150, started("x")), (160, finished("x")), (900, ended()))
        found = await house.metrics.find(MetricsWindow("local", 155, 200))
        assert (found.runs, len(found.calls)) == ([], 1)


async def test_more_than_a_page_of_runs_and_calls_is_read_completely(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evoclaw.store.metrics.store.PAGE_ROWS", 7)
    async with opened(place) as house:
        for number in range(60):
            talk = await house.talk(f"r{number}")
            same = [(200.0, finished(f"c{one}")) for one in range(3)]
            await talk.tell(*same, (200, ended()))
        found = await house.metrics.find(EVER)
        assert len({run.run_id for run in found.runs}) == len(found.runs) == 60
        assert len(found.calls) == 180


async def test_delegations_to_edges_and_agents_are_found(place: Place) -> None:
    async with opened(place) as house:
        talk = await house.talk(agent="boss")
        spread: JSON = {"pi": "ok", "van": "timeout"}
        await talk.tell(
            (101, started("a", "temperature")),
            (102, finished("a", "temperature", agent="pi")),
            (103, started("b", "edge_call", agent_id="*")),
            (104, finished("b", "edge_call", agents=spread)),
            (105, started("c", "edge_call", agent_id=["gone", "type:x"])),
            (106, finished("c", "edge_call", ErrorKind.AGENT_OFFLINE)),
            (107, started("d", "task")),
            (108, finished("d", "task", agent="coder", session_id="s-sub")),
            (109, finished("e", "temperature", ErrorKind.PERMISSION_DENIED, agent="pi")),
            (110, started("f", "odd")),
            (111, finished("f", "odd", agent="no\x1b[2Jname")),
            (120, ended()),
        )
        below = await house.talk("sub", agent="coder", parent="r1")
        await below.tell((130, ended(StopReason.ERROR)))
        for _ in range(2):
            runs, hops = await house.metrics.edge_calls(EVER)
            told = [(hop.agent, hop.edge, hop.error) for hop in hops]
            assert told == [
                ("boss", "pi", ""),
                ("boss", "pi", ""),
                ("boss", "van", "timeout"),
                ("boss", "gone", "agent_offline"),
            ]
            (run,) = runs
            assert (run.parent_agent, run.agent, run.stop) == ("boss", "coder", "error")


@pytest.mark.parametrize("by", ["hand", "age"])
async def test_metrics_are_deleted_with_their_session(place: Place, by: str) -> None:
    async with opened(place) as house:
        talk = await house.talk()
        runs = RunQueue(talk.store, "us", clock=lambda: 100.0)
        entry = QueuedRun("q1", Session("s-q1", "helper"), True, "hi", b"{}", key="k", digest="d")
        await runs.enqueue("local", entry, QueueLimits(9, 9, 9), claim=False)
        for run_id in ("r1", "q1"):
            filled = [
                ("INSERT INTO queue_pending VALUES ('local', ?, 'here')", (run_id,)),
                ("INSERT INTO queue_cancels VALUES ('local', ?)", (run_id,)),
                ("INSERT INTO queue_inbox VALUES ('local', ?, 1, ?)", (run_id, b"1234")),
            ]
            for statement, values in filled:
                await house.database.write(lambda c, s=statement, v=values: c.execute(s, v))
        spread: JSON = {"pi": "ok"}
        asked = Talk(talk.store, house.clock, await _run(talk.store, "q1"))
        for one in (talk, asked):
            await one.tell(
                (101, started("a", "edge_call", agent_id="*")),
                (102, finished("a", "edge_call", agents=spread)),
                (103, ended()),
            )
        await house.metrics.find(EVER)
        for table in TABLES_BY_RUN_ID:
            assert await house.count(table), f"{table} has nothing to delete"
        if by == "hand":
            for session in ("s-r1", "s-q1"):
                gone = await session_changes.delete_session(talk.store, session)
                assert gone is not None and gone.runs == (session.removeprefix("s-"),)
        else:
            assert await ExpiredSessions(house.database).delete(5_000.0) == 2
        for schema in SCHEMAS:
            for table in tables_of(schema):
                assert not await house.count(table.name), f"{table.name} is left"
        assert (await house.metrics.find(EVER)).runs == []


async def _run(store: SessionStore, run_id: str) -> StoredRun:
    found = await store.run(run_id)
    assert found is not None
    return found


async def test_every_table_with_a_run_or_session_id_is_cleared_on_deletion() -> None:
    for schema in SCHEMAS:
        for table in tables_of(schema):
            if "run_id" in table.columns:
                assert table.name in (*TABLES_BY_RUN_ID, *TABLES_BY_SESSION_ID), table.name
            elif "session_id" in table.columns:
                assert table.name in TABLES_BY_SESSION_ID, table.name


async def test_a_session_can_be_deleted_without_metrics_tables(place: Place) -> None:
    database = await place.open(session_tables.SCHEMA)
    store = SessionStore(database, lambda: 1.0)
    await store.create(Session("s1", "a"))
    gone = await session_changes.delete_session(store, "s1")
    assert gone is not None and gone.sessions == ("s1",)
    await database.close()


async def test_metrics_are_not_exported_and_are_derived_after_an_import(
    place: Place, tmp_path: Path
) -> None:
    async with opened(place) as house:
        talk = await house.talk()
        await talk.tell((101, started("x")), (102, finished("x")), (103, ended()))
        found = await house.metrics.find(EVER)
        file = tmp_path / "all.zip"
        manifest = await export_to(file, house.database, SCHEMAS)
        moved = {table.name for part in manifest.parts for table in part.tables}
        assert "runs" in moved and not moved & set(metrics_tables.TABLES)
        await session_changes.delete_session(talk.store, "s-r1")
        await import_from(file, house.database, SCHEMAS)
        assert await house.metrics.find(EVER) == found


def test_untrusted_text_is_stored_as_one_short_line() -> None:
    assert plain("a\n\tb\x1b[31m\u202e\0 c", 100) == "a b [31m c"
    assert plain("x" * 500, 200) == "x" * 200
    plain("\ud800", 10).encode()


class Overtaken(MultiSchemaFormat, frozen=True):
    """A file that somebody else brings up to date while we look at it."""

    def held(self, connection: sqlite3.Connection) -> FileContents:
        """How far it is; figures are added right after that was found out."""
        found = super().read_contents(connection)
        file = Path(connection.execute("PRAGMA database_list").fetchone()[2])
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            MultiSchemaFormat(SCHEMAS).migrate(other)
        return found


async def test_a_file_that_gains_a_schema_during_inspection_is_not_damaged(
    tmp_path: Path,
) -> None:
    file = tmp_path / "evoclaw.db"
    await (await open_database(file, [session_tables.SCHEMA])).close()
    inspect_file(file, Overtaken((session_tables.SCHEMA,)))
    inspect_file(file, MultiSchemaFormat(SCHEMAS))
