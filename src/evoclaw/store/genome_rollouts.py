"""Roll-outs of genomes to edges: the state of each, and of each of their edges.

One process at a time may write the progress: the owner of the lease. A write of a former owner is
refused, and the order numbers that it drew are lower than those of the next owner, so that edges
refuse its late commands too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from evoclaw.store.databases.database import (
    Connection,
    Database,
    Schema,
    StoreError,
    open_blob,
    seal_blob,
)

SCHEMA = Schema(
    "genome roll-outs",
    (
        (
            """CREATE TABLE genome_rollouts (
                id TEXT NOT NULL PRIMARY KEY,
                started_at REAL NOT NULL,
                is_open INTEGER NOT NULL,
                body BLOB NOT NULL
            ) STRICT""",
            "CREATE INDEX genome_rollouts_by_time ON genome_rollouts (started_at)",
            """CREATE TABLE genome_rollout_edges (
                rollout TEXT NOT NULL,
                agent_id TEXT NOT NULL,
                body BLOB NOT NULL,
                PRIMARY KEY (rollout, agent_id)
            ) STRICT, WITHOUT ROWID""",
            # One row: the process that drives the roll-outs, and the last order number.
            """CREATE TABLE genome_rollout_owner (
                name TEXT NOT NULL PRIMARY KEY,
                owner TEXT NOT NULL,
                lease_until REAL NOT NULL,
                last_order INTEGER NOT NULL
            ) STRICT""",
        ),
    ),
    checksummed=(("genome_rollouts", ("body",)), ("genome_rollout_edges", ("body",))),
    sealed=True,
)
_CLAIM = """
INSERT INTO genome_rollout_owner VALUES ('edges', ?1, ?2, 0) ON CONFLICT (name) DO UPDATE
SET owner = ?1, lease_until = ?2
WHERE genome_rollout_owner.owner = ?1 OR genome_rollout_owner.lease_until <= ?3
"""
_RELEASE = "UPDATE genome_rollout_owner SET lease_until = 0 WHERE owner = ?"
_OWNED = "SELECT last_order FROM genome_rollout_owner WHERE owner = ? AND lease_until > ?"
_ORDER = "UPDATE genome_rollout_owner SET last_order = ?"
_INSERT = "INSERT INTO genome_rollouts VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
_UPDATE = "UPDATE genome_rollouts SET is_open = ?, body = ? WHERE id = ?"
_PUT_EDGE = """
INSERT INTO genome_rollout_edges VALUES (?1, ?2, ?3)
ON CONFLICT (rollout, agent_id) DO UPDATE SET body = ?3
"""
_ONE = "SELECT body FROM genome_rollouts WHERE id = ?"
_OPEN = "SELECT body FROM genome_rollouts WHERE is_open = 1 ORDER BY started_at, id"
_NEWEST = "SELECT body FROM genome_rollouts ORDER BY started_at DESC, id LIMIT ?"
_NEWER = "SELECT id FROM genome_rollouts WHERE started_at > ?"
_EDGES = "SELECT body FROM genome_rollout_edges WHERE rollout = ? ORDER BY agent_id"


class StoredRollout(Struct, frozen=True):
    """A roll-out as it is stored."""

    id: str
    started_at: float
    is_open: bool
    """Whether some edge may still have to be changed."""
    body: bytes


class StoredRolloutEdge(Struct, frozen=True):
    """An edge of a roll-out as it is stored."""

    rollout: str
    agent_id: str
    body: bytes


class RolloutWrites:
    """Writes inside one transaction."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database, self._connection = database, connection

    def find(self, rollout: str) -> bytes | None:
        """The stored roll-out."""
        row = self._connection.execute(_ONE, (rollout,)).fetchone()
        return None if row is None else open_blob(self._database, row[0])

    def open_rollouts(self) -> list[bytes]:
        """The open roll-outs, the oldest first."""
        rows = self._connection.execute(_OPEN).fetchall()
        return [open_blob(self._database, row[0]) for row in rows]

    def newer_than(self, started_at: float) -> list[str]:
        """The ids of the roll-outs that started later."""
        return [row[0] for row in self._connection.execute(_NEWER, (started_at,)).fetchall()]

    def edges(self, rollout: str) -> list[bytes]:
        """The edges of a roll-out, by name."""
        rows = self._connection.execute(_EDGES, (rollout,)).fetchall()
        return [open_blob(self._database, row[0]) for row in rows]

    def add(self, new: StoredRollout) -> None:
        """Store a new roll-out; one with the same id stays as it is."""
        body = seal_blob(self._database, new.body)
        self._connection.execute(_INSERT, (new.id, new.started_at, int(new.is_open), body))

    def put(self, changed: StoredRollout) -> None:
        """Store the new state of a roll-out."""
        body = seal_blob(self._database, changed.body)
        self._connection.execute(_UPDATE, (int(changed.is_open), body, changed.id))

    def put_edges(self, edges: Iterable[StoredRolloutEdge]) -> None:
        """Store the new states of edges."""
        for edge in edges:
            values = (edge.rollout, edge.agent_id, seal_blob(self._database, edge.body))
            self._connection.execute(_PUT_EDGE, values)


class RolloutLeaseLost(StoreError):
    """Another orchestrator drives the roll-outs now; nothing was stored."""

    def __init__(self) -> None:
        super().__init__("another orchestrator drives the roll-outs of genomes now")


class RolloutStore:
    """The roll-outs of all edges."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self.database, self._clock = database, clock

    async def claim(self, owner: str, lease_s: float, *, alone: bool = False) -> bool:
        """Claim or renew the right to drive roll-outs; False if another process has it.

        `alone` says that no other process can be alive: the lease of the last one is void.
        """
        now = self._clock()
        values = (owner, now + lease_s, float("1e18") if alone else now)
        return await self.database.write(lambda c: c.execute(_CLAIM, values).rowcount) > 0

    async def release(self, owner: str) -> None:
        """Let another process drive at once."""
        await self.database.write(lambda c: c.execute(_RELEASE, (owner,)))

    async def write(self, work: Callable[[RolloutWrites], None]) -> None:
        """Write what a person asked for, in one transaction; `work` may raise to store nothing."""
        await self.database.write(lambda c: work(RolloutWrites(self.database, c)))

    async def advance(self, owner: str, work: Callable[[RolloutWrites], None]) -> int:
        """Write progress in one transaction, and return a new order number.

        Raises `RolloutLeaseLost` unless `owner` has the lease. Order numbers grow for ever: they
        start at the time in milliseconds, so that those of a new database are higher than old ones.
        """

        def run(connection: Connection) -> int:
            now = self._clock()
            row = connection.execute(_OWNED, (owner, now)).fetchone()
            if row is None:
                raise RolloutLeaseLost
            number = max(int(row[0]) + 1, round(now * 1000))
            connection.execute(_ORDER, (number,))
            work(RolloutWrites(self.database, connection))
            return number

        return await self.database.write(run)

    async def open_rollouts(self) -> list[bytes]:
        """The open roll-outs, the oldest first."""
        return await self._bodies(_OPEN)

    async def newest(self, limit: int) -> list[bytes]:
        """The newest roll-outs, the newest first."""
        return await self._bodies(_NEWEST, limit)

    async def find(self, rollout: str) -> bytes | None:
        """A roll-out."""
        found = await self._bodies(_ONE, rollout)
        return found[0] if found else None

    async def edges(self, rollout: str) -> list[bytes]:
        """The edges of a roll-out, by name."""
        return await self._bodies(_EDGES, rollout)

    async def _bodies(self, statement: str, *values: object) -> list[bytes]:
        rows: Sequence[Any] = await self.database.read(
            lambda c: c.execute(statement, values).fetchall()
        )
        return [open_blob(self.database, row[0]) for row in rows]
