"""Conversations that outlive a process: sessions, their runs and records, todos and questions.

A store is one tenant's: whatever it is asked for, an id of another tenant is as one that nobody
has. So nobody can forget to say whose something is.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from evoclaw.core.events import Record, StopReason
from evoclaw.core.labels import CLEAN, LOCAL, Label
from evoclaw.core.messages import Message
from evoclaw.store.questions import QuestionStore
from evoclaw.store.session_tables import SCHEMA
from evoclaw.store.sqlite import Database, sealed, unsealed


class Session(Struct, frozen=True):
    """A conversation with an agent."""

    id: str
    agent: str
    owner: str = ""
    """Whose it is."""
    title: str = ""
    parent: str = ""
    """The session that began it, if one did."""
    depth: int = 0
    """How many sessions are above it."""
    capabilities: frozenset[str] = frozenset()
    """The most its runs may hold."""
    tools: frozenset[str] | None = None
    """The most its runs may use by name; None is all that the capabilities allow."""
    created_at: float = 0.0
    tenant: str = LOCAL.tenant
    """Whose its owner is. The store that keeps it says so, not the caller."""


class Spent(Struct, frozen=True):
    """What runs have used up."""

    turns: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = 0.0
    """None when a part of it has no known price."""


class StoredRun(Struct, frozen=True):
    """One message answered, or being answered."""

    id: str
    session_id: str
    asked: str
    """What the user, or the session above, said."""
    parent_run: str
    root_run: str
    """The run that all of them spend for."""
    background: bool
    """Nobody waits for it."""
    stop: StopReason | None
    spent: Spent
    began_at: float
    ended_at: float | None
    label: Label = CLEAN
    """Of what whoever asked had seen."""

    @property
    def is_open(self) -> bool:
        """Whether it is to be gone on with."""
        return self.stop is None or self.stop is StopReason.WAITING


class Listed(Struct, frozen=True):
    """A session and the last of its runs."""

    session: Session
    last: StoredRun | None
    messages: int


RUN = (
    "id, session_id, asked, parent_run, root_run, background, stop, "
    "turns, calls, tokens_in, tokens_out, cost, began_at, ended_at, label"
)
LAST = f"SELECT {RUN} FROM runs WHERE tenant = ? AND session_id = ? ORDER BY seq DESC LIMIT 1"
COUNT = "SELECT coalesce(max(number) + 1, 0) FROM messages WHERE tenant = ? AND session_id = ?"
BELOW = """
WITH RECURSIVE below (id) AS (
    SELECT ?1 UNION
    SELECT sessions.id FROM sessions JOIN below
    ON sessions.tenant = ?4 AND sessions.parent = below.id
)
SELECT session FROM sessions
WHERE tenant = ?4 AND owner = ?2 AND (?1 = '' OR id IN below) AND (?3 = '' OR agent = ?3)
ORDER BY seq DESC
"""
PROGRESS = """
UPDATE runs SET stop = ?, turns = ?, calls = ?, tokens_in = ?, tokens_out = ?, cost = ?,
    ended_at = CASE WHEN ?1 IS NULL THEN NULL ELSE ?7 END
WHERE tenant = ?8 AND id = ?9
"""
# A run without a known price makes the sum unknown: never report less than was spent.
SPENT = """
SELECT coalesce(sum(turns), 0), coalesce(sum(calls), 0), coalesce(sum(tokens_in), 0),
    coalesce(sum(tokens_out), 0), CASE WHEN count(*) = count(cost) THEN total(cost) END
FROM runs WHERE tenant = ? AND root_run = ?
"""


class SessionStore:
    """What was said, done and asked in the conversations of one tenant."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        tenant: str = LOCAL.tenant,
    ) -> None:
        self.database, self.tenant = database, tenant
        self._path, self._clock = database.path, clock
        self.questions = QuestionStore(database, clock, tenant)
        """What people are asked."""
        self._session = msgspec.json.Decoder(Session)
        self._record = msgspec.json.Decoder(Record)
        self._message: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        durable: bool = True,
        set_aside: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> SessionStore:
        """Open or create a store, as the tenant `local`; see `Database.open` on what raises."""
        return cls(await Database.open(path, SCHEMA, durable=durable, set_aside=set_aside), clock)

    def of(self, tenant: str) -> SessionStore:
        """The same file for another tenant; it is closed with the one that was opened."""
        return SessionStore(self.database, self._clock, tenant)

    async def __aenter__(self) -> SessionStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.database.close()

    async def create(self, session: Session) -> Session:
        """Keep a session; one of that id that is there already stays as it is, and is given."""
        new = msgspec.structs.replace(session, created_at=self._clock(), tenant=self.tenant)
        blob = sealed(msgspec.json.encode(new))
        values = (self.tenant, new.id, new.owner, new.parent, new.agent, blob)
        put = (
            "INSERT INTO sessions (tenant, id, owner, parent, agent, session) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, id) DO NOTHING"
        )

        def work(connection: sqlite3.Connection) -> Session:
            connection.execute(put, values)
            return self._find(connection, new.id) or new

        return await self.database.write(work)

    async def session(self, session_id: str) -> Session | None:
        """One session."""
        return await self.database.read(lambda connection: self._find(connection, session_id))

    async def sessions(self, owner: str, *, within: str = "", agent: str = "") -> list[Listed]:
        """The sessions of somebody, newest first.

        Args:
            owner: Whose.
            within: Only this one and those below it.
            agent: Only those with this agent.
        """

        def work(connection: sqlite3.Connection) -> list[Listed]:
            rows = connection.execute(BELOW, (within, owner, agent, self.tenant)).fetchall()
            return [self._listed(connection, self._decoded(row[0])) for row in rows]

        return await self.database.read(work)

    async def look(self, session_id: str) -> Listed | None:
        """One session, with the last of its runs."""

        def work(connection: sqlite3.Connection) -> Listed | None:
            session = self._find(connection, session_id)
            return None if session is None else self._listed(connection, session)

        return await self.database.read(work)

    async def begin(
        self,
        run_id: str,
        session_id: str,
        asked: str,
        *,
        parent_run: str = "",
        root_run: str = "",
        background: bool = False,
        label: Label = CLEAN,
    ) -> StoredRun:
        """Keep a run; one of that id that is there already stays as it is, and is given."""
        put = (
            "INSERT INTO runs "
            "(tenant, id, session_id, asked, parent_run, root_run, background, began_at, label) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, id) DO NOTHING"
        )
        values = (
            *(self.tenant, run_id, session_id, sealed(asked.encode())),
            *(parent_run, root_run or run_id, background, self._clock()),
            msgspec.json.encode(label).decode(),
        )

        def work(connection: sqlite3.Connection) -> StoredRun:
            connection.execute(put, values)
            (found,) = self._runs(connection, "AND id = ?", run_id)
            return found

        return await self.database.write(work)

    async def run(self, run_id: str) -> StoredRun | None:
        """One run."""
        found = await self.database.read(lambda c: self._runs(c, "AND id = ?", run_id))
        return found[0] if found else None

    async def left_behind(self, parent_run: str) -> list[StoredRun]:
        """The runs nobody waited for that this one began and that did not come to an end."""
        condition = "AND parent_run = ? AND background AND stop IS NULL ORDER BY seq"
        return await self.database.read(lambda c: self._runs(c, condition, parent_run))

    async def spent(self, root_run: str) -> Spent:
        """What a run and all below it have used up."""
        values = (self.tenant, root_run)
        return Spent(*await self.database.read(lambda c: c.execute(SPENT, values).fetchone()))

    async def append(
        self,
        run: StoredRun,
        records: Sequence[Record],
        messages: Sequence[tuple[int, Message]],
        spent: Spent,
        stop: StopReason | None,
    ) -> None:
        """Keep what happened in a run, all of it or nothing."""
        encode, ours = msgspec.json.encode, self.tenant
        kept = [(ours, run.id, record.seq, sealed(encode(record))) for record in records]
        said = [(ours, run.session_id, number, sealed(encode(one))) for number, one in messages]
        now = self._clock()
        figures = (stop, spent.turns, spent.calls, spent.tokens_in, spent.tokens_out, spent.cost)

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", kept)
            connection.executemany("INSERT OR REPLACE INTO messages VALUES (?, ?, ?, ?)", said)
            connection.execute(PROGRESS, (*figures, now, ours, run.id))

        await self.database.write(work)

    async def records(self, run_id: str) -> list[Record]:
        """What happened in a run, in order."""
        statement = "SELECT record FROM records WHERE tenant = ? AND run_id = ? ORDER BY seq"
        values = (self.tenant, run_id)
        rows = await self.database.read(lambda c: c.execute(statement, values).fetchall())
        return [self._record.decode(unsealed(row[0], self._path)) for row in rows]

    async def last_record(self, run_id: str) -> Record | None:
        """What happened last in a run."""
        statement = (
            "SELECT record FROM records WHERE tenant = ? AND run_id = ? ORDER BY seq DESC LIMIT 1"
        )
        values = (self.tenant, run_id)
        row = await self.database.read(lambda c: c.execute(statement, values).fetchone())
        return None if row is None else self._record.decode(unsealed(row[0], self._path))

    async def messages(
        self, session_id: str, start: int = 0, limit: int = -1
    ) -> list[tuple[int, Message]]:
        """The messages of a session from one number on."""
        statement = (
            "SELECT number, message FROM messages WHERE tenant = ? AND session_id = ? "
            "AND number >= ? ORDER BY number LIMIT ?"
        )
        values = (self.tenant, session_id, start, limit)
        rows = await self.database.read(lambda c: c.execute(statement, values).fetchall())
        return [(number, self._message.decode(unsealed(b, self._path))) for number, b in rows]

    async def todos(self, session_id: str) -> bytes | None:
        """The todos of a session, as they were put."""
        statement = "SELECT todos FROM todos WHERE tenant = ? AND session_id = ?"
        values = (self.tenant, session_id)
        row = await self.database.read(lambda c: c.execute(statement, values).fetchone())
        return None if row is None else unsealed(row[0], self._path)

    async def put_todos(self, session_id: str, todos: bytes) -> None:
        """Keep these todos instead of what was there."""
        values = (self.tenant, session_id, sealed(todos))
        put = "INSERT OR REPLACE INTO todos VALUES (?, ?, ?)"
        await self.database.write(lambda c: c.execute(put, values))

    def _find(self, connection: sqlite3.Connection, session_id: str) -> Session | None:
        statement = "SELECT session FROM sessions WHERE tenant = ? AND id = ?"
        row = connection.execute(statement, (self.tenant, session_id)).fetchone()
        return None if row is None else self._decoded(row[0])

    def _decoded(self, blob: bytes) -> Session:
        return self._session.decode(unsealed(blob, self._path))

    def _listed(self, connection: sqlite3.Connection, session: Session) -> Listed:
        row = connection.execute(LAST, (self.tenant, session.id)).fetchone()
        count = connection.execute(COUNT, (self.tenant, session.id)).fetchone()[0]
        return Listed(session, None if row is None else self._run(row), count)

    def _runs(self, connection: sqlite3.Connection, condition: str, value: str) -> list[StoredRun]:
        statement = f"SELECT {RUN} FROM runs WHERE tenant = ? {condition}"
        rows = connection.execute(statement, (self.tenant, value)).fetchall()
        return [self._run(row) for row in rows]

    def _run(self, row: tuple[Any, ...]) -> StoredRun:
        id_, session, asked, parent, root, background, stop, *spent, began, ended, seen = row
        said = unsealed(asked, self._path).decode()
        reason = None if stop is None else StopReason(stop)
        label = msgspec.json.decode(seen, type=Label)
        return StoredRun(
            id_, session, said, parent, root, bool(background), reason, Spent(*spent), began, ended,
            label if label != CLEAN else CLEAN,
        )  # fmt: skip
