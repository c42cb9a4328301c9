"""Databases of growing size, filled with copies of a real run."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

from bench.growth.measure import Clock
from tests.support.databases import Place
from tests.support.postgres import Postgres, why_no_postgres

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.events import Replied, ReplyEvent, TextDelta
from evoclaw.core.ports import AllowAll, Policy, Ports, Request
from evoclaw.core.profile import Profile
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.budget.settings import BudgetSettings
from evoclaw.orchestrator.people.questions import Questions
from evoclaw.orchestrator.runs.requests import RunSettings
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.orchestrator.sessions.session_run import RunLimits
from evoclaw.providers.scripted import calls, says
from evoclaw.store import memory
from evoclaw.store.calls import command_tables
from evoclaw.store.databases.database import Connection, Database
from evoclaw.store.governance import approvals, ledger
from evoclaw.store.governance.approvals import ApprovalStore
from evoclaw.store.metrics import tables as metrics_tables
from evoclaw.store.runs import queue
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.sessions import Session, SessionStore
from evoclaw.store.sessions.statements import REQUEST_COLUMN
from evoclaw.tools.define import tool

SCHEMAS = (
    session_tables.SCHEMA,
    approvals.SCHEMA,
    queue.SCHEMA,
    metrics_tables.SCHEMA,
    command_tables.SCHEMA,
    ledger.SCHEMA,
    memory.SCHEMA,
)
LEAD = Agent(
    "lead", "scripted/model", "You lead.", frozenset({"*"}), LoopSettings(max_turns=10_000)
)
SETTINGS = RunSettings(queued=1_000_000, queued_per_tenant=1_000_000, queued_per_session=1_000_000)
"""No limit on queued runs: it is not what is measured."""
TURNS = 19
"""Turns of the copied run, which has about a hundred records."""
NUMBERS = "WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)"
# The user "old" owns only the first sessions; "ann" owns sessions throughout.
FILL = (
    f"""{NUMBERS}
    INSERT INTO sessions (tenant, id, owner, parent, agent, session)
    SELECT s.tenant, 'f' || n.i, CASE WHEN n.i < 4 THEN 'old' WHEN n.i < 8 OR n.i % 100 = 0
        THEN 'ann' ELSE 'o' || (n.i % 1000) END, '', CASE WHEN n.i < 4 THEN 'rare' ELSE s.agent END,
        s.session
    FROM n JOIN sessions s ON s.tenant = 'local' AND s.id = ?3""",
    f"""{NUMBERS}
    INSERT INTO runs (tenant, id, session_id, asked, parent_run, root_run, background, stop, turns,
        calls, tokens_in, tokens_out, cost, began_at, ended_at, label, epoch,
        {REQUEST_COLUMN}, owner)
    SELECT r.tenant, 'f' || n.i, 'f' || n.i, r.asked, '', 'f' || n.i, 0, r.stop, r.turns, r.calls,
        r.tokens_in, r.tokens_out, r.cost, 1000.0 + n.i, 1001.0 + n.i, r.label, 1,
        r.{REQUEST_COLUMN}, s.owner
    FROM n JOIN runs r ON r.tenant = 'local' AND r.id = ?3
    JOIN sessions s ON s.tenant = r.tenant AND s.id = 'f' || n.i""",
    f"""{NUMBERS}
    INSERT INTO records SELECT r.tenant, 'f' || n.i, r.seq, r.record
    FROM n JOIN records r ON r.tenant = 'local' AND r.run_id = ?3""",
    f"""{NUMBERS}
    INSERT INTO messages SELECT m.tenant, 'f' || n.i, m.number, m.message
    FROM n JOIN messages m ON m.tenant = 'local' AND m.session_id = ?3""",
)


class Model:
    """A model that calls `work` in each turn, then replies; records the time of each request."""

    model, profile = "scripted/model", Profile(context_tokens=100_000_000)

    def __init__(self, turns: int, *, pieces: int = 2, clock: Clock = time.process_time) -> None:
        self._turns, self._pieces, self._clock = turns, pieces, clock
        self.stamps: list[float] = []

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Stream the next reply in pieces; the request is not encoded, so it costs nothing."""
        done = len(self.stamps)
        self.stamps.append(self._clock())
        text = "".join(f"word {number}\n" for number in range(self._pieces))
        for word in text.splitlines(keepends=True):
            yield TextDelta(word)
        if done >= self._turns:
            yield Replied(says(text))
        else:
            yield Replied(calls(("work", {"what": f"number {done}"}), text=text))


@tool("shell", resources=(), timeout=60)
async def work(what: str = "") -> str:
    """Work."""
    return f"worked on {what}"


class RunService:
    """Conversations and runs on a database."""

    def __init__(self, database: Database) -> None:
        self.store = SessionStore(database)
        self.model = Model(TURNS)
        """The model of runs that are started from now on."""
        self.policy: Policy = AllowAll()
        budget = BudgetSettings(turns=1_000_000, calls=1_000_000)
        self.conversations = Conversations(
            self.store,
            {LEAD.name: LEAD},
            self._build_ports,
            questions=Questions(self.store.questions, suspends_runs=True),
            approvals=ApprovalStore(database),
            limits=RunLimits(budget=budget),
        )
        self.runs = Runs(
            self.conversations, agent=LEAD.name, settings=SETTINGS, process_identity="growth"
        )

    def _build_ports(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        return Ports(self.model, LocalExecutor((work,), given=given), self.policy)


@asynccontextmanager
async def open_databases(*, postgres: bool = True) -> AsyncGenerator[list[Place]]:
    """An SQLite file and, if PostgreSQL is installed, a schema of a new server."""
    server = None if not postgres or why_no_postgres() else Postgres()
    with TemporaryDirectory(prefix="growth-") as folder:
        found = [Place(Path(folder) / "evoclaw.db")]
        try:
            if server is not None:
                server.start()
                found.append(Place(server.url, f"growth_{token_hex(6)}"))
            yield found
        finally:
            if server is not None:
                server.close()


@asynccontextmanager
async def open_run_service(location: Place, *, serve: bool = False) -> AsyncGenerator[RunService]:
    """A run service on the database at a location."""
    database = await location.open(*SCHEMAS)
    try:
        service = RunService(database)
        if serve:
            async with service.runs.serving():
                yield service
        else:
            yield service
    finally:
        await database.close()


class StoreFiller:
    """Fills the store with ended runs, all copies of one real run."""

    def __init__(self, service: RunService, location: Place) -> None:
        self._service, self._database, self._place = service, service.store.database, location
        self._session = self._run = ""
        self.records_per_run = 0
        self.runs = 0

    async def create_template(self) -> None:
        """Create the run that is copied."""
        conversations = self._service.conversations
        self._session = (await conversations.open("lead", owner="ann")).id
        async for record in conversations.send(self._session, "go on"):
            self._run = record.run_id
            self.records_per_run += 1

    async def grow(self, records: int) -> None:
        """Add copies until the store has at least this many records."""
        runs = -(-records // self.records_per_run)
        if runs <= self.runs:
            return
        first, last = self.runs + 1, runs
        self.runs = runs

        def work(connection: Connection) -> None:
            for statement in FILL:
                run = "runs r" in statement or "records r" in statement
                connection.execute(statement, (first, last, self._run if run else self._session))

        await self._database.write(work)
        await settle(self._place)


async def settle(location: Place) -> None:
    """Vacuum and analyze a PostgreSQL, as autovacuum would do after many inserts."""
    if isinstance(location.at, str):
        import psycopg

        async with await psycopg.AsyncConnection.connect(
            location.at, autocommit=True
        ) as connection:
            await connection.execute("VACUUM ANALYZE")
