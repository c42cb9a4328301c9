"""Conversations that outlive a process: sessions, their runs and records, todos and questions."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from evoclaw.core.events import Record, StopReason
from evoclaw.core.messages import Message
from evoclaw.store.questions import QUESTIONS, QuestionStore
from evoclaw.store.sqlite import Database, Schema, sealed, unsealed


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

    @property
    def is_open(self) -> bool:
        """Whether it is to be gone on with."""
        return self.stop is None or self.stop is StopReason.WAITING


class Listed(Struct, frozen=True):
    """A session and the last of its runs."""

    session: Session
    last: StoredRun | None
    messages: int


SCHEMA = Schema(
    "session store",
    (
        (
            """CREATE TABLE sessions (
                seq INTEGER PRIMARY KEY,
                id TEXT NOT NULL UNIQUE,
                owner TEXT NOT NULL,
                parent TEXT NOT NULL,
                agent TEXT NOT NULL,
                session BLOB NOT NULL
            ) STRICT""",
            "CREATE INDEX sessions_below ON sessions (parent)",
            "CREATE INDEX sessions_of ON sessions (owner, seq)",
            """CREATE TABLE runs (
                seq INTEGER PRIMARY KEY,
                id TEXT NOT NULL UNIQUE,
                session_id TEXT NOT NULL,
                asked BLOB NOT NULL,
                parent_run TEXT NOT NULL,
                root_run TEXT NOT NULL,
                background INTEGER NOT NULL,
                stop TEXT,
                turns INTEGER NOT NULL DEFAULT 0,
                calls INTEGER NOT NULL DEFAULT 0,
                tokens_in INTEGER NOT NULL DEFAULT 0,
                tokens_out INTEGER NOT NULL DEFAULT 0,
                cost REAL DEFAULT 0,
                began_at REAL NOT NULL,
                ended_at REAL
            ) STRICT""",
            "CREATE INDEX runs_of ON runs (session_id, seq)",
            "CREATE INDEX runs_below ON runs (parent_run)",
            "CREATE INDEX runs_under ON runs (root_run)",
            """CREATE TABLE records (
                run_id TEXT NOT NULL, seq INTEGER NOT NULL, record BLOB NOT NULL,
                PRIMARY KEY (run_id, seq)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE messages (
                session_id TEXT NOT NULL, number INTEGER NOT NULL, message BLOB NOT NULL,
                PRIMARY KEY (session_id, number)
            ) STRICT, WITHOUT ROWID""",
            "CREATE TABLE todos (session_id TEXT PRIMARY KEY, todos BLOB NOT NULL) STRICT",
            *QUESTIONS,
        ),
    ),
    sealed=(
        ("sessions", ("session",)),
        ("runs", ("asked",)),
        ("records", ("record",)),
        ("messages", ("message",)),
        ("todos", ("todos",)),
        ("questions", ("question", "answer")),
    ),
)

RUN = (
    "id, session_id, asked, parent_run, root_run, background, stop, "
    "turns, calls, tokens_in, tokens_out, cost, began_at, ended_at"
)
LAST = f"SELECT {RUN} FROM runs WHERE session_id = ? ORDER BY seq DESC LIMIT 1"
COUNT = "SELECT coalesce(max(number) + 1, 0) FROM messages WHERE session_id = ?"
BELOW = """
WITH RECURSIVE below (id) AS (
    SELECT ?1 UNION SELECT sessions.id FROM sessions JOIN below ON sessions.parent = below.id
)
SELECT session FROM sessions
WHERE owner = ?2 AND (?1 = '' OR id IN below) AND (?3 = '' OR agent = ?3)
ORDER BY seq DESC
"""
PROGRESS = """
UPDATE runs SET stop = ?, turns = ?, calls = ?, tokens_in = ?, tokens_out = ?, cost = ?,
    ended_at = CASE WHEN ?1 IS NULL THEN NULL ELSE ?7 END
WHERE id = ?8
"""
# A run without a known price makes the sum unknown: never report less than was spent.
SPENT = """
SELECT coalesce(sum(turns), 0), coalesce(sum(calls), 0), coalesce(sum(tokens_in), 0),
    coalesce(sum(tokens_out), 0), CASE WHEN count(*) = count(cost) THEN total(cost) END
FROM runs WHERE root_run = ?
"""


class SessionStore:
    """What was said, done and asked in conversations."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self.database = database
        self._path, self._clock = database.path, clock
        self.questions = QuestionStore(database, clock)
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
        """Open or create a store; see `Database.open`, also on what raises."""
        return cls(await Database.open(path, SCHEMA, durable=durable, set_aside=set_aside), clock)

    async def __aenter__(self) -> SessionStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.database.close()

    async def create(self, session: Session) -> Session:
        """Keep a session; one of that id that is there already stays as it is, and is given."""
        new = msgspec.structs.replace(session, created_at=self._clock())
        values = (new.id, new.owner, new.parent, new.agent, sealed(msgspec.json.encode(new)))
        put = (
            "INSERT INTO sessions (id, owner, parent, agent, session) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO NOTHING"
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
            rows = connection.execute(BELOW, (within, owner, agent)).fetchall()
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
    ) -> StoredRun:
        """Keep a run; one of that id that is there already stays as it is, and is given."""
        put = (
            "INSERT INTO runs (id, session_id, asked, parent_run, root_run, background, began_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
        )
        blob = sealed(asked.encode())
        root = root_run or run_id
        values = (run_id, session_id, blob, parent_run, root, background, self._clock())

        def work(connection: sqlite3.Connection) -> StoredRun:
            connection.execute(put, values)
            (found,) = self._runs(connection, "WHERE id = ?", run_id)
            return found

        return await self.database.write(work)

    async def run(self, run_id: str) -> StoredRun | None:
        """One run."""
        found = await self.database.read(lambda c: self._runs(c, "WHERE id = ?", run_id))
        return found[0] if found else None

    async def left_behind(self, parent_run: str) -> list[StoredRun]:
        """The runs nobody waited for that this one began and that did not come to an end."""
        condition = "WHERE parent_run = ? AND background AND stop IS NULL ORDER BY seq"
        return await self.database.read(lambda c: self._runs(c, condition, parent_run))

    async def spent(self, root_run: str) -> Spent:
        """What a run and all below it have used up."""
        return Spent(*await self.database.read(lambda c: c.execute(SPENT, (root_run,)).fetchone()))

    async def append(
        self,
        run: StoredRun,
        records: Sequence[Record],
        messages: Sequence[tuple[int, Message]],
        spent: Spent,
        stop: StopReason | None,
    ) -> None:
        """Keep what happened in a run, all of it or nothing."""
        encode = msgspec.json.encode
        kept = [(run.id, record.seq, sealed(encode(record))) for record in records]
        said = [(run.session_id, number, sealed(encode(one))) for number, one in messages]
        now = self._clock()
        figures = (stop, spent.turns, spent.calls, spent.tokens_in, spent.tokens_out, spent.cost)

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT INTO records VALUES (?, ?, ?)", kept)
            connection.executemany("INSERT OR REPLACE INTO messages VALUES (?, ?, ?)", said)
            connection.execute(PROGRESS, (*figures, now, run.id))

        await self.database.write(work)

    async def records(self, run_id: str) -> list[Record]:
        """What happened in a run, in order."""
        statement = "SELECT record FROM records WHERE run_id = ? ORDER BY seq"
        rows = await self.database.read(lambda c: c.execute(statement, (run_id,)).fetchall())
        return [self._record.decode(unsealed(row[0], self._path)) for row in rows]

    async def last_record(self, run_id: str) -> Record | None:
        """What happened last in a run."""
        statement = "SELECT record FROM records WHERE run_id = ? ORDER BY seq DESC LIMIT 1"
        row = await self.database.read(lambda c: c.execute(statement, (run_id,)).fetchone())
        return None if row is None else self._record.decode(unsealed(row[0], self._path))

    async def messages(
        self, session_id: str, start: int = 0, limit: int = -1
    ) -> list[tuple[int, Message]]:
        """The messages of a session from one number on."""
        statement = (
            "SELECT number, message FROM messages WHERE session_id = ? AND number >= ? "
            "ORDER BY number LIMIT ?"
        )
        values = (session_id, start, limit)
        rows = await self.database.read(lambda c: c.execute(statement, values).fetchall())
        return [(number, self._message.decode(unsealed(b, self._path))) for number, b in rows]

    async def todos(self, session_id: str) -> bytes | None:
        """The todos of a session, as they were put."""
        statement = "SELECT todos FROM todos WHERE session_id = ?"
        row = await self.database.read(lambda c: c.execute(statement, (session_id,)).fetchone())
        return None if row is None else unsealed(row[0], self._path)

    async def put_todos(self, session_id: str, todos: bytes) -> None:
        """Keep these todos instead of what was there."""
        values = (session_id, sealed(todos))
        await self.database.write(
            lambda c: c.execute("INSERT OR REPLACE INTO todos VALUES (?, ?)", values)
        )

    def _find(self, connection: sqlite3.Connection, session_id: str) -> Session | None:
        statement = "SELECT session FROM sessions WHERE id = ?"
        row = connection.execute(statement, (session_id,)).fetchone()
        return None if row is None else self._decoded(row[0])

    def _decoded(self, blob: bytes) -> Session:
        return self._session.decode(unsealed(blob, self._path))

    def _listed(self, connection: sqlite3.Connection, session: Session) -> Listed:
        row = connection.execute(LAST, (session.id,)).fetchone()
        count = connection.execute(COUNT, (session.id,)).fetchone()[0]
        return Listed(session, None if row is None else self._run(row), count)

    def _runs(self, connection: sqlite3.Connection, condition: str, value: str) -> list[StoredRun]:
        rows = connection.execute(f"SELECT {RUN} FROM runs {condition}", (value,)).fetchall()
        return [self._run(row) for row in rows]

    def _run(self, row: tuple[Any, ...]) -> StoredRun:
        id_, session, asked, parent, root, background, stop, *spent, began, ended = row
        said = unsealed(asked, self._path).decode()
        reason = None if stop is None else StopReason(stop)
        return StoredRun(
            id_, session, said, parent, root, bool(background), reason, Spent(*spent), began, ended
        )
