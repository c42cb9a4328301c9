"""A reply, what is set aside for its calls, and the start of those calls: one commit, before they
do anything. Calls that only read here wait for none: one commit for the whole turn.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager

import pytest

from evoclaw.core.agent import Agent
from evoclaw.core.events import CallStarted, Replied, ReplyEvent
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import AllowAll, Ports, Request
from evoclaw.core.profile import Profile
from evoclaw.core.routes import Route
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.sessions import session_run
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.orchestrator.sessions.dependencies import PortsFactory
from evoclaw.providers.scripted import calls, says
from evoclaw.providers.wrappers import WriteBarrierProvider as SettledProvider
from evoclaw.store.databases.database import Database
from evoclaw.store.databases.write_requests import write_scope
from evoclaw.store.governance import ledger
from evoclaw.store.governance.ledger import StoredLedger
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.sessions import Session, SessionStore
from evoclaw.tools.define import tool
from tests.support.databases import Place, hold_deferred_commits

SCHEMAS = (session_tables.SCHEMA, ledger.SCHEMA)
LEAD = Agent("lead", "test/model", capabilities=frozenset({"shell", "file_read"}))


@asynccontextmanager
async def opened(place: Place) -> AsyncGenerator[Database]:
    database = await place.open(*SCHEMAS)
    try:
        yield database
    finally:
        await database.close()


class Counting:
    """Replies with a call, then with an answer; notes how many commits there were."""

    model, profile = "test/model", Profile()

    def __init__(self, database: Database) -> None:
        self._database, self.commits = database, list[int]()

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        self.commits.append(self._database.commits)
        first = len(self.commits) == 1
        yield Replied(calls(("work", {})) if first else says("done"))


async def test_a_reply_its_reservations_and_call_starts_are_one_commit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_deferred_commits(monkeypatch)
    async with opened(place) as database:
        model, store = Counting(database), SessionStore(database)
        seen: list[tuple[int, set[str], int]] = []

        @tool("shell", resources=())
        async def work() -> str:
            """Work."""
            commits = database.commits - model.commits[0]
            async with opened(place) as other:
                kept = await SessionStore(other).records("r1")
                held = await other.read(
                    lambda c: c.execute(
                        "SELECT count(*) FROM ledger_holds WHERE open = 1"
                    ).fetchone()
                )
            kinds = {type(record.event).__name__ for record in kept}
            seen.append((commits, kinds, held[0]))
            return "worked"

        async def settle() -> None:
            await database.flush()

        def equip(agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
            here = Pipeline([Route(LocalExecutor([work]), ready=settle)])
            return Ports(SettledProvider(model, settle), here, AllowAll())

        talks = Conversations(
            store,
            {"lead": LEAD},
            equip,
            ledger=StoredLedger(database, wait=False),
            defer_commits=True,
        )
        await talks.open("lead", session_id="s1")
        with write_scope():  # as the driver of a run does
            async for _ in talks.send("s1", "work", run_id="r1"):
                pass
    commits, kinds, held = seen[0]
    assert commits == 1
    assert {Replied.__name__, CallStarted.__name__} <= kinds  # another process sees them
    assert held >= 1  # and what is set aside for the call


def reading(database: Database, model: Counting, seen: list[int]) -> PortsFactory:
    """Ports with a tool that only reads here; it notes how many commits there were."""

    @tool("file_read", effect="read", resources=())
    async def work() -> str:
        """Look."""
        seen.append(database.commits)
        return "seen"

    def equip(agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        here = Pipeline([Route(LocalExecutor([work]), ready=database.flush)])
        return Ports(SettledProvider(model, database.flush), here, AllowAll())

    return equip


async def test_a_turn_that_only_reads_here_is_one_row_and_one_commit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_deferred_commits(monkeypatch)
    monkeypatch.setattr(session_run, "UNCOMMITTED_TIMEOUT_S", 60.0)
    seen: list[int] = []
    async with opened(place) as database:
        model, store = Counting(database), SessionStore(database)
        talks = Conversations(
            store,
            {"lead": LEAD},
            reading(database, model, seen),
            ledger=StoredLedger(database, wait=False),
            defer_commits=True,
        )
        await talks.open("lead", session_id="s1")
        with write_scope():
            sent = [record async for record in talks.send("s1", "look", run_id="r1")]
        before_first, before_second = model.commits
        assert seen == [before_first]
        assert before_second == before_first + 1
        assert await store.records("r1") == sent
        count = "SELECT seq FROM records WHERE run_id = ? ORDER BY seq"
        rows = await database.read(lambda c: c.execute(count, ("r1",)).fetchall())
        kinds = {record.seq: type(record.event).__name__ for record in sent}
        # The start, all of the turn and the request for the next one, the answer and the end.
        assert [kinds[seq] for (seq,) in rows][1:] == ["TurnStarted", "RunFinished"]
        assert len(await store.messages("s1")) == 4


async def test_an_interrupted_run_keeps_what_it_had_not_sent_yet(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_deferred_commits(monkeypatch)
    monkeypatch.setattr(session_run, "UNCOMMITTED_TIMEOUT_S", 60.0)
    async with opened(place) as database:
        model, store = Counting(database), SessionStore(database)
        talks = Conversations(
            store, {"lead": LEAD}, reading(database, model, []), defer_commits=True
        )
        await talks.open("lead", session_id="s1")
        with write_scope():
            async with aclosing(talks.send("s1", "look", run_id="r1")) as records:
                async for record in records:
                    if isinstance(record.event, Replied):
                        break
        await database.flush()
        kept = [type(record.event).__name__ for record in await store.records("r1")]
        assert kept[-1] == "Replied"
        assert len(await store.messages("s1")) == 2
