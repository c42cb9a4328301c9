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
from evoclaw.store.runs.claims import IS_OPEN, SAME_RUN, Claim, Claims, adopt_subrun
from evoclaw.store.sessions.sessions import (
    LoadedRun,
    RunUsage,
    Session,
    SessionStore,
    StoredRun,
)

__all__ = [
    "IS_OPEN",
    "SAME_RUN",
    "SCHEMA",
    "QueueLimits",
    "Claim",
    "CreatedRun",
    "QueuedRun",
    "EnqueueOutcome",
    "EnqueueResult",
    "RunQueue",
    "adopt_subrun",
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
    checksummed=(("queue_inbox", ("message",)),),
    sealed=True,
)
# The run that a key was used for may have been deleted since.
UPSERT_KEY = """
INSERT INTO queue_keys VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, owner, key) DO UPDATE SET run_id = excluded.run_id, at = excluded.at
"""
ORPHANS = """
SELECT r.tenant, r.id FROM runs r JOIN runs t ON t.tenant = r.tenant AND t.id = r.root_run
WHERE r.stop IS NULL AND r.parent_run <> '' AND r.holder = ''
    AND t.stop IS NOT NULL AND t.stop <> 'waiting' LIMIT 100
"""


class EnqueueOutcome(StrEnum):
    """What happened to a run that was to be stored."""

    NEW = "new"
    EXISTING = "same"
    """The same run is stored already."""
    KEY_REUSED = "other"
    """The key was used for another request."""
    NO_SESSION = "no_session"
    NOT_EMPTY = "not_empty"
    """The session already has runs."""
    FULL = "full"
    FULL_TENANT = "full_tenant"
    FULL_SESSION = "full_session"


class QueuedRun(Struct, frozen=True):
    """A run to be stored."""

    run_id: str
    session: Session
    """Its session; created if `creates_session`."""
    creates_session: bool
    asked: str
    request: bytes
    owner: str = ""
    """The user who owns the key."""
    key: str = ""
    digest: str = ""
    label: Label = CLEAN
    requires_empty_session: bool = False
    """Only allowed in a session without runs."""

    def insertion(self, store: SessionStore) -> Work[StoredRun]:
        """The statement that stores the run."""
        return store.create_run_work(
            self.run_id, self.session.id, self.asked, label=self.label, run_request=self.request
        )


class QueueLimits(Struct, frozen=True):
    """How many runs may be queued in all, of a tenant, and in a session."""

    all: int
    tenant: int
    session: int


class CreatedRun(Struct, frozen=True):
    """A run as it was just stored: its driver need not read it."""

    run: StoredRun
    session: Session
    loaded: LoadedRun | None
    """None if its session has messages, which are to be read."""


class EnqueueResult(Struct, frozen=True):
    """A stored run, or why it was not stored."""

    outcome: EnqueueOutcome
    run: StoredRun | None = None
    epoch: int = 0
    """Above 0 if this process has claimed the run and may drive it at once."""
    created: CreatedRun | None = None
    """Set for a new run."""


class RunQueue(Claims):
    """The run queue of all tenants, as one process stores and claims runs."""

    async def enqueue(
        self, tenant: str, entry: QueuedRun, limits: QueueLimits, *, claim: bool
    ) -> EnqueueResult:
        """Store a run, its session and its key in one transaction.

        Args:
            tenant: The tenant.
            entry: The run.
            limits: How many runs may be queued.
            claim: Whether to claim the run at once, if it is the first open run of its session.
        """
        store = self._sessions.of(tenant)

        def work(connection: Connection) -> EnqueueResult:
            known, session = self._find_existing(connection, store, entry), entry.session
            if known is None and not entry.creates_session:
                found = self._check_session(connection, store, entry)
                if isinstance(found, EnqueueResult):
                    return found
                session = found
            known = known or self._check_limits(connection, store, entry, limits)
            if known is not None:
                return known
            loaded = None
            if entry.creates_session:
                session = store.create_work(entry.session)(connection)
                loaded = LoadedRun(entry.request, RunUsage(), (), ())
            run = entry.insertion(store)(connection)
            if entry.key:
                values = (tenant, entry.owner, entry.key, entry.digest, run.id, self._clock())
                connection.execute(UPSERT_KEY, values)
            epoch = self._claim_or_offer(connection, tenant, entry, claim)
            return EnqueueResult(EnqueueOutcome.NEW, run, epoch, CreatedRun(run, session, loaded))

        return await self._database.write(work)

    def _find_existing(
        self, connection: Connection, store: SessionStore, entry: QueuedRun
    ) -> EnqueueResult | None:
        run_id = entry.run_id
        if entry.key:
            find = (
                "SELECT digest, run_id FROM queue_keys WHERE tenant = ? AND owner = ? AND key = ?"
            )
            values = (store.tenant, entry.owner, entry.key)
            row = connection.execute(find, values).fetchone()
            if row is not None and row[0] != entry.digest:
                return EnqueueResult(EnqueueOutcome.KEY_REUSED, store.find_run(connection, row[1]))
            run_id = row[1] if row is not None else run_id
        found = store.find_run(connection, run_id)
        return None if found is None else EnqueueResult(EnqueueOutcome.EXISTING, found)

    def _check_session(
        self, connection: Connection, store: SessionStore, entry: QueuedRun
    ) -> Session | EnqueueResult:
        session = store.find_session(connection, entry.session.id)
        if session is None:
            return EnqueueResult(EnqueueOutcome.NO_SESSION)
        values = (store.tenant, entry.session.id)
        has_runs = "SELECT 1 FROM runs WHERE tenant = ? AND session_id = ? LIMIT 1"
        if entry.requires_empty_session and connection.execute(has_runs, values).fetchone():
            return EnqueueResult(EnqueueOutcome.NOT_EMPTY)
        return session

    def _check_limits(
        self, connection: Connection, store: SessionStore, entry: QueuedRun, limits: QueueLimits
    ) -> EnqueueResult | None:
        queued = "SELECT count(*) FROM runs WHERE stop IS NULL AND epoch = 0 AND parent_run = ''"
        # Not `=`: SQLite would then scan all runs that the tenant ever had.
        of_tenant = " AND tenant BETWEEN ?1 AND ?1"
        ours, here = (store.tenant,), (store.tenant, entry.session.id)
        for limit, condition, values, outcome in (
            (limits.all, "", (), EnqueueOutcome.FULL),
            (limits.tenant, of_tenant, ours, EnqueueOutcome.FULL_TENANT),
            (
                limits.session,
                " AND tenant = ? AND session_id = ?",
                here,
                EnqueueOutcome.FULL_SESSION,
            ),
        ):
            if connection.execute(queued + condition, values).fetchone()[0] >= limit:
                return EnqueueResult(outcome)
        return None

    def _claim_or_offer(
        self, connection: Connection, tenant: str, entry: QueuedRun, claim: bool
    ) -> int:
        """Claim a run that was just stored, if allowed; returns its epoch, or 0."""
        first = claim and self._is_first(connection, tenant, entry)
        return self._claim(connection, tenant, entry.run_id) if first else 0

    def _is_first(self, connection: Connection, tenant: str, entry: QueuedRun) -> bool:
        before = f"SELECT 1 FROM runs WHERE tenant = ? AND session_id = ? AND id <> ? AND {IS_OPEN}"
        values = (tenant, entry.session.id, entry.run_id)
        return connection.execute(before, values).fetchone() is None

    async def orphans(self) -> Sequence[tuple[str, str]]:
        """Interrupted sub-runs whose root run has ended, so that no process resumes them."""
        rows = await self._database.read(lambda c: c.execute(ORPHANS).fetchall())
        return [(tenant, run_id) for tenant, run_id in rows]

    async def open_subruns(self, tenant: str, run_id: str) -> Sequence[str]:
        """The ids of the open sub-runs of a run."""
        find = f"SELECT id FROM runs WHERE tenant = ? AND parent_run = ? AND {IS_OPEN}"
        values = (tenant, run_id)
        rows = await self._database.read(lambda c: c.execute(find, values).fetchall())
        return [row[0] for row in rows]

    async def has_started_runs(self) -> bool:
        """Whether any run was started and is active or interrupted."""
        find = "SELECT 1 FROM runs WHERE stop IS NULL AND epoch > 0 LIMIT 1"
        return await self._database.read(lambda c: c.execute(find).fetchone()) is not None

    async def delete_old_keys(self, older_than: float) -> None:
        """Delete keys that are older than so many seconds."""
        before = self._clock() - older_than
        delete = "DELETE FROM queue_keys WHERE at < ?"
        await self._database.write(lambda c: c.execute(delete, (before,)))
