"""The run queue: idempotency keys, queue limits, pending calls and control requests of runs.

Runs themselves are in the session store. Both share one database, so that a run, its session and
its key are stored in one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from evoclaw.core.labels import CLEAN, Label
from evoclaw.store.databases.database import Connection, Schema, Work
from evoclaw.store.runs.claims import OPEN, SAME, Claim, Claims, adopt
from evoclaw.store.sessions.sessions import Session, SessionStore, StoredRun

__all__ = [
    "OPEN",
    "SAME",
    "SCHEMA",
    "Bounds",
    "Claim",
    "Entry",
    "Outcome",
    "Placed",
    "RunQueue",
    "adopt",
]

SCHEMA = Schema(
    "run queue",
    (
        (
            """CREATE TABLE queue_keys (
                tenant TEXT NOT NULL, owner TEXT NOT NULL, key TEXT NOT NULL,
                digest TEXT NOT NULL, run_id TEXT NOT NULL, at REAL NOT NULL,
                PRIMARY KEY (tenant, owner, key)
            ) STRICT, WITHOUT ROWID""",
            "CREATE INDEX queue_keys_old ON queue_keys (at)",
            """CREATE TABLE queue_inbox (
                tenant TEXT NOT NULL, run_id TEXT NOT NULL, number INTEGER NOT NULL,
                message BLOB NOT NULL,
                PRIMARY KEY (tenant, run_id, number)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE queue_pending (
                tenant TEXT NOT NULL, run_id TEXT NOT NULL, place TEXT NOT NULL,
                PRIMARY KEY (tenant, run_id, place)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE queue_cancels (
                tenant TEXT NOT NULL, run_id TEXT NOT NULL,
                PRIMARY KEY (tenant, run_id)
            ) STRICT, WITHOUT ROWID""",
        ),
    ),
    sealed=(("queue_inbox", ("message",)),),
)
# The run that a key was used for may have been deleted since.
KEEP_KEY = """
INSERT INTO queue_keys VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, owner, key) DO UPDATE SET run_id = excluded.run_id, at = excluded.at
"""
ORPHANS = """
SELECT r.tenant, r.id FROM runs r JOIN runs t ON t.tenant = r.tenant AND t.id = r.root_run
WHERE r.stop IS NULL AND r.parent_run <> '' AND r.holder = ''
    AND t.stop IS NOT NULL AND t.stop <> 'waiting' LIMIT 100
"""


class Outcome(StrEnum):
    """What happened to a run that was to be stored."""

    NEW = "new"
    SAME = "same"
    """The same run is stored already."""
    OTHER = "other"
    """The key was used for another request."""
    NO_SESSION = "no_session"
    NOT_EMPTY = "not_empty"
    """The session already has runs."""
    FULL = "full"
    FULL_TENANT = "full_tenant"
    FULL_SESSION = "full_session"


class Entry(Struct, frozen=True):
    """A run to be stored."""

    run_id: str
    session: Session
    """Its session; created if `creates_session`."""
    opens: bool
    asked: str
    errand: bytes
    owner: str = ""
    """The user who owns the key."""
    key: str = ""
    digest: str = ""
    label: Label = CLEAN
    empty: bool = False
    """Only allowed in a session without runs."""

    def beginning(self, store: SessionStore) -> Work[StoredRun]:
        """The statement that stores the run."""
        return store.beginning(
            self.run_id, self.session.id, self.asked, label=self.label, errand=self.errand
        )


class Bounds(Struct, frozen=True):
    """How many runs may be queued in all, of a tenant, and in a session."""

    all: int
    tenant: int
    session: int


class Placed(Struct, frozen=True):
    """A stored run, or why it was not stored."""

    outcome: Outcome
    run: StoredRun | None = None
    epoch: int = 0
    """Above 0 if this process has claimed the run and may drive it at once."""


class RunQueue(Claims):
    """The run queue of all tenants, as one process stores and claims runs."""

    async def put(self, tenant: str, entry: Entry, bounds: Bounds, *, claim: bool) -> Placed:
        """Store a run, its session and its key in one transaction.

        Args:
            tenant: The tenant.
            entry: The run.
            limits: How many runs may be queued.
            claim: Whether to claim the run at once, if it is the first open run of its session.
        """
        store = self._sessions.of(tenant)

        def work(connection: Connection) -> Placed:
            known = self._known(connection, store, entry)
            if known is None and not entry.opens:
                known = self._refused(connection, store, entry)
            known = known or self._full(connection, store, entry, bounds)
            if known is not None:
                return known
            if entry.opens:
                store.creating(entry.session)(connection)
            run = entry.beginning(store)(connection)
            if entry.key:
                values = (tenant, entry.owner, entry.key, entry.digest, run.id, self._clock())
                connection.execute(KEEP_KEY, values)
            return Placed(Outcome.NEW, run, self._placed(connection, tenant, entry, claim))

        return await self._database.write(work)

    def _known(self, connection: Connection, store: SessionStore, entry: Entry) -> Placed | None:
        run_id = entry.run_id
        if entry.key:
            find = (
                "SELECT digest, run_id FROM queue_keys WHERE tenant = ? AND owner = ? AND key = ?"
            )
            values = (store.tenant, entry.owner, entry.key)
            row = connection.execute(find, values).fetchone()
            if row is not None and row[0] != entry.digest:
                return Placed(Outcome.OTHER, store.find_run(connection, row[1]))
            run_id = row[1] if row is not None else run_id
        found = store.find_run(connection, run_id)
        return None if found is None else Placed(Outcome.SAME, found)

    def _refused(self, connection: Connection, store: SessionStore, entry: Entry) -> Placed | None:
        if store.find_session(connection, entry.session.id) is None:
            return Placed(Outcome.NO_SESSION)
        values = (store.tenant, entry.session.id)
        has_runs = "SELECT 1 FROM runs WHERE tenant = ? AND session_id = ? LIMIT 1"
        if entry.empty and connection.execute(has_runs, values).fetchone():
            return Placed(Outcome.NOT_EMPTY)
        return None

    def _full(
        self, connection: Connection, store: SessionStore, entry: Entry, bounds: Bounds
    ) -> Placed | None:
        queued = "SELECT count(*) FROM runs WHERE stop IS NULL AND epoch = 0 AND parent_run = ''"
        # Not `=`: SQLite would then scan all runs that the tenant ever had.
        of_tenant = " AND tenant BETWEEN ?1 AND ?1"
        ours, here = (store.tenant,), (store.tenant, entry.session.id)
        for limit, condition, values, outcome in (
            (bounds.all, "", (), Outcome.FULL),
            (bounds.tenant, of_tenant, ours, Outcome.FULL_TENANT),
            (bounds.session, " AND tenant = ? AND session_id = ?", here, Outcome.FULL_SESSION),
        ):
            if connection.execute(queued + condition, values).fetchone()[0] >= limit:
                return Placed(outcome)
        return None

    def _placed(self, connection: Connection, tenant: str, entry: Entry, claim: bool) -> int:
        """Claim a run that was just stored, if allowed; returns its epoch, or 0."""
        first = claim and self._is_first(connection, tenant, entry)
        return self._claim(connection, tenant, entry.run_id) if first else 0

    def _is_first(self, connection: Connection, tenant: str, entry: Entry) -> bool:
        before = f"SELECT 1 FROM runs WHERE tenant = ? AND session_id = ? AND id <> ? AND {OPEN}"
        values = (tenant, entry.session.id, entry.run_id)
        return connection.execute(before, values).fetchone() is None

    async def orphans(self) -> Sequence[tuple[str, str]]:
        """Interrupted sub-runs whose root run has ended, so that no process resumes them."""
        rows = await self._database.read(lambda c: c.execute(ORPHANS).fetchall())
        return [(tenant, run_id) for tenant, run_id in rows]

    async def below(self, tenant: str, run_id: str) -> Sequence[str]:
        """The ids of the open sub-runs of a run."""
        find = f"SELECT id FROM runs WHERE tenant = ? AND parent_run = ? AND {OPEN}"
        values = (tenant, run_id)
        rows = await self._database.read(lambda c: c.execute(find, values).fetchall())
        return [row[0] for row in rows]

    async def is_any_begun(self) -> bool:
        """Whether any run was started and is active or interrupted."""
        find = "SELECT 1 FROM runs WHERE stop IS NULL AND epoch > 0 LIMIT 1"
        return await self._database.read(lambda c: c.execute(find).fetchone()) is not None

    async def forget_keys(self, older_than: float) -> None:
        """Delete keys that are older than so many seconds."""
        before = self._clock() - older_than
        delete = "DELETE FROM queue_keys WHERE at < ?"
        await self._database.write(lambda c: c.execute(delete, (before,)))
