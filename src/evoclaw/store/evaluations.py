"""Evaluations that a service runs in the background: at most one at a time for each agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from evoclaw.store.databases.database import (
    NO_LIMIT,
    Connection,
    Database,
    Schema,
    open_blob,
    seal_blob,
)

MAX_KEPT_EVALUATIONS = 50
"""Of each agent; the results stay in the lineage."""
RUNNING, INTERRUPTED = "running", "interrupted"

SCHEMA = Schema(
    "evaluation store",
    (
        (
            """CREATE TABLE evaluations (
                id TEXT NOT NULL PRIMARY KEY,
                agent TEXT NOT NULL,
                state TEXT NOT NULL,
                owner TEXT NOT NULL,
                started REAL NOT NULL,
                renewed REAL NOT NULL,
                cancelled INTEGER NOT NULL,
                body BLOB NOT NULL
            ) STRICT, WITHOUT ROWID""",
            "CREATE INDEX evaluations_of ON evaluations (agent, started)",
            "CREATE UNIQUE INDEX evaluations_running ON evaluations (agent) "
            "WHERE state = 'running'",
        ),
    ),
    checksummed=(("evaluations", ("body",)),),
    sealed=True,
)
_COLUMNS = "id, agent, state, owner, started, renewed, cancelled, body"
PUT = f"""
INSERT INTO evaluations ({_COLUMNS}) VALUES (?, ?, 'running', ?, ?, ?, 0, ?) ON CONFLICT DO NOTHING
"""
LIST = f"SELECT {_COLUMNS} FROM evaluations WHERE agent = ? ORDER BY started DESC, id"
GET = f"SELECT {_COLUMNS} FROM evaluations WHERE agent = ? AND id = ?"
RENEW = """
UPDATE evaluations SET renewed = ?, body = ? WHERE id = ? AND owner = ? AND state = 'running'
"""
IS_CANCELLED = "SELECT cancelled FROM evaluations WHERE id = ?"
FINISH = """
UPDATE evaluations SET state = ?, renewed = ?, body = ?
WHERE id = ? AND owner = ? AND state = 'running'
"""
CANCEL = "UPDATE evaluations SET cancelled = 1 WHERE agent = ? AND id = ? AND state = 'running'"
INTERRUPT = "UPDATE evaluations SET state = 'interrupted' WHERE state = 'running' AND renewed < ?"
PRUNE = """
DELETE FROM evaluations WHERE agent = ? AND state <> 'running' AND id IN (
    SELECT id FROM evaluations WHERE agent = ? ORDER BY started DESC, id LIMIT ? OFFSET ?)
"""


class StoredEvaluation(Struct, frozen=True):
    """An evaluation that a service runs, or ran."""

    id: str
    agent: str
    state: str
    owner: str
    """The process that runs it."""
    started: float
    """Unix time, seconds."""
    renewed: float
    """When its owner last said that it runs."""
    cancelled: bool
    """Whether a person asked to cancel it."""
    body: bytes


class EvaluationStore:
    """The evaluations of all agents that run, and the last ones that ran."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def start(
        self, id: str, agent: str, owner: str, body: bytes, *, lapsed_before: float
    ) -> bool:
        """Store a new evaluation; False if one of the agent runs.

        One that was not renewed since `lapsed_before` does not run any more: its owner is dead.
        """
        now = self.database.time()
        sealed = seal_blob(self.database, body)

        def work(connection: Connection) -> bool:
            connection.execute(INTERRUPT, (lapsed_before,))
            if connection.execute(PUT, (id, agent, owner, now, now, sealed)).rowcount != 1:
                return False
            connection.execute(PRUNE, (agent, agent, NO_LIMIT, MAX_KEPT_EVALUATIONS))
            return True

        return await self.database.write(work)

    async def renew(self, id: str, owner: str, body: bytes) -> str:
        """Say that it still runs, with its progress.

        Returns what its owner has to do: `continue`, `cancel`, or `stop`, as another process has
        taken it for interrupted.
        """
        values = (self.database.time(), seal_blob(self.database, body), id, owner)

        def work(connection: Connection) -> str:
            if connection.execute(RENEW, values).rowcount != 1:
                return "stop"
            row = connection.execute(IS_CANCELLED, (id,)).fetchone()
            return "cancel" if row and row[0] else "continue"

        return await self.database.write(work)

    async def finish(self, id: str, owner: str, state: str, body: bytes) -> None:
        """Store how it ended, unless another process has taken it for interrupted."""
        values = (state, self.database.time(), seal_blob(self.database, body), id, owner)
        await self.database.write(lambda c: c.execute(FINISH, values))

    async def cancel(self, agent: str, id: str) -> bool:
        """Ask its owner to cancel it; False if it does not run."""
        return await self.database.write(lambda c: c.execute(CANCEL, (agent, id)).rowcount == 1)

    async def interrupt(self, before: float) -> None:
        """Mark those that were not renewed since then as interrupted."""
        await self.database.write(lambda c: c.execute(INTERRUPT, (before,)))

    async def of_agent(self, agent: str) -> Sequence[StoredEvaluation]:
        """Those of an agent, the newest first."""
        rows = await self.database.read(lambda c: c.execute(LIST, (agent,)).fetchall())
        return [self._row(row) for row in rows]

    async def get(self, agent: str, id: str) -> StoredEvaluation | None:
        """One of an agent."""
        row = await self.database.read(lambda c: c.execute(GET, (agent, id)).fetchone())
        return None if row is None else self._row(row)

    def _row(self, row: Sequence[Any]) -> StoredEvaluation:
        *columns, cancelled, body = row
        return StoredEvaluation(
            *columns, cancelled=bool(cancelled), body=open_blob(self.database, body)
        )
