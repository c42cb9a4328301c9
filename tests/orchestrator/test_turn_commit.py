"""A reply, what is set aside for its calls, and the start of those calls: one commit, before they
do anything.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import pytest

from evoclaw.core.agent import Agent
from evoclaw.core.events import CallStarted, Replied, ReplyEvent
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import AllowAll, Ports, Request
from evoclaw.core.profile import Profile
from evoclaw.core.routes import Route
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.providers.scripted import calls, says
from evoclaw.providers.wrappers import WriteBarrierProvider as SettledProvider
from evoclaw.store.databases.database import Database
from evoclaw.store.governance import ledger
from evoclaw.store.governance.ledger import StoredLedger
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.sessions import Session, SessionStore
from evoclaw.tools.define import tool
from tests.support.databases import Place, hold_deferred_commits

SCHEMAS = (session_tables.SCHEMA, ledger.SCHEMA)
LEAD = Agent("lead", "test/model", capabilities=frozenset({"shell"}))


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
                    lambda c: c.execute("SELECT count(*) FROM holds WHERE open = 1").fetchone()
                )
            kinds = {type(record.event).__name__ for record in kept}
            seen.append((commits, kinds, held[0]))
            return "worked"

        async def settle() -> None:
            await database.write(lambda connection: None)

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
        async for _ in talks.send("s1", "work", run_id="r1"):
            pass
    commits, kinds, held = seen[0]
    assert commits == 1
    assert {Replied.__name__, CallStarted.__name__} <= kinds  # another process sees them
    assert held >= 1  # and what is set aside for the call
