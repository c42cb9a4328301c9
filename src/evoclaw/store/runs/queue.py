"""The run queue: idempotency keys, queue limits, pending calls and control requests of runs.

Runs themselves are in the session store. Both share one database, so that a run, its session and
its key are stored in one transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from evoclaw.core.events import Record, StopReason
from evoclaw.core.labels import CLEAN, Label
from evoclaw.core.messages import Message
from evoclaw.store.databases.database import Schema, seal_blob
from evoclaw.store.databases.notices import Notice, progress_notice
from evoclaw.store.databases.steps import Step
from evoclaw.store.runs.claims import IS_OPEN, SAME_RUN, Claim, Claims, adopt_subrun
from evoclaw.store.runs.end_step import END_RUN
from evoclaw.store.runs.enqueue_step import ENQUEUE, KEY_LOCKED
from evoclaw.store.runs.inbox_steps import ADD_MESSAGE, CANCEL
from evoclaw.store.runs.job_steps import JOB_PROCEDURES
from evoclaw.store.sessions.delete_steps import session_lock
from evoclaw.store.sessions.sessions import (
    Fenced,
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
    "RunEnd",
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
    procedures=(ENQUEUE, END_RUN, *JOB_PROCEDURES, CANCEL, ADD_MESSAGE),
)
PRUNE_BATCH_ROWS = 500
"""Keys that are deleted in one transaction."""
DELETE_OLD_KEYS = """
DELETE FROM queue_keys WHERE (tenant, owner, key) IN (
    SELECT tenant, owner, key FROM queue_keys WHERE at < ? LIMIT ?)
"""
KEY_RETRY_DELAY_S = 0.01
"""Seconds until a run is stored again whose key another process is using at the moment."""
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

    def values(self, store: SessionStore, now: float) -> Sequence[Any]:
        """Its columns, as the step that stores it takes them."""
        return (
            seal_blob(store.database, self.asked.encode()),
            now,
            msgspec.json.encode(self.label).decode(),
            seal_blob(store.database, self.request),
            self.session.owner,
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


class RunEnd(Struct, frozen=True):
    """The end of a run, with what is not stored of it yet."""

    records: Sequence[Record]
    messages: Sequence[tuple[int, Message]]
    """New messages, and their numbers in the session."""
    usage: RunUsage
    """The total usage of the run."""
    stop: StopReason


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
        """Store a run, its session and its key in one step.

        Several orchestrators that store runs at the same moment do not see each other's yet: they
        may exceed a limit by a few runs.

        Args:
            tenant: The tenant.
            entry: The run.
            limits: How many runs may be queued.
            claim: Whether to claim the run at once, if it is the first open run of its session.
        """
        store, now = self._sessions.of(tenant), self._clock()
        session = store.new_session(entry.session) if entry.creates_session else entry.session
        step = Step(
            ENQUEUE,
            (
                *(tenant, session.id, entry.run_id),
                (entry.owner, entry.key, entry.digest) if entry.key else None,
                store.session_values(session) if entry.creates_session else None,
                entry.requires_empty_session,
                (limits.all, limits.tenant, limits.session),
                entry.values(store, now),
                (self.holder, self._lease_end(now)) if claim else None,
                *(now, self._offering_holder),
            ),
            lock="" if entry.creates_session else session_lock(tenant, session.id),
        )
        found = await self._database.apply(step)
        while found[0] == KEY_LOCKED:
            await asyncio.sleep(KEY_RETRY_DELAY_S)
            found = await self._database.apply(step)
        outcome, run_id, epoch = EnqueueOutcome(found[0]), found[1], found[2]
        if outcome is not EnqueueOutcome.NEW:
            return EnqueueResult(outcome, await store.run(run_id) if run_id else None)
        run = StoredRun(
            entry.run_id, session.id, entry.asked, "", entry.run_id, False, None, RunUsage(), now,
            None, entry.label, owner=session.owner, agent=session.agent,
        )  # fmt: skip
        loaded = LoadedRun(entry.request, RunUsage(), (), ()) if entry.creates_session else None
        return EnqueueResult(outcome, run, epoch, CreatedRun(run, session, loaded))

    @property
    def _offering_holder(self) -> str | None:
        """The holder that offers sessions as jobs, where there are jobs."""
        return None

    async def end_run(self, claim: Claim, run: StoredRun, end: RunEnd | None = None) -> bool:
        """End a run and release it in one step; returns whether steering messages of it are left.

        Its waiting questions and approvals are closed, its pending calls and its cancellation
        deleted, and no more messages are accepted. `Fenced` if another process has claimed it.

        Args:
            claim: The claim of this process.
            run: The run.
            end: What is stored of its end; None if that is stored already.
        """
        store, now = self._sessions.of(claim.tenant), self._clock()
        values: Sequence[Any] = (None, None, ())
        notices: Sequence[Notice] = ()
        if end is not None:
            values = store.progress_values(end.records, end.messages, end.usage, end.stop)
            notices = (progress_notice(claim.tenant, run.id, end.records, end.stop),)
        step = Step(
            END_RUN,
            (
                *(claim.tenant, run.id, run.session_id, claim.epoch),
                *(*values, now, self._offering_holder),
            ),
            lock=session_lock(claim.tenant, run.session_id),
        )
        epoch, messages_left = await self._database.apply(step, notices=notices)
        if epoch and end is not None:
            raise Fenced(run.id, claim.epoch, epoch)
        return messages_left

    async def offer_session(self, tenant: str, session_id: str) -> None:
        """Have a process drive a session that has something to do; a file has only this one."""

    async def orphans(self) -> Sequence[tuple[str, str]]:
        """Interrupted sub-runs whose root run has ended, so that no process resumes them."""
        rows = await self._database.read(lambda c: c.execute(ORPHANS).fetchall())
        return [(tenant, run_id) for tenant, run_id in rows]

    async def unfinished_since(self, since: float, limit: int) -> Sequence[tuple[str, str]]:
        """Tenant and id of runs that are open, or ended at this time or later, the newest first."""
        find = (
            "SELECT tenant, id FROM runs WHERE parent_run = '' AND "
            "(stop IS NULL OR (ended_at >= ? AND stop <> 'waiting')) "
            "ORDER BY began_at DESC LIMIT ?"
        )
        rows = await self._database.read(lambda c: c.execute(find, (since, limit)).fetchall())
        return [(tenant, run_id) for tenant, run_id in rows]

    async def open_subruns(self, tenant: str, run_id: str) -> Sequence[str]:
        """The ids of the open sub-runs of a run."""
        find = (
            "SELECT id FROM runs WHERE tenant = ? AND parent_run = ? AND parent_run <> '' "
            f"AND {IS_OPEN}"
        )
        values = (tenant, run_id)
        rows = await self._database.read(lambda c: c.execute(find, values).fetchall())
        return [row[0] for row in rows]

    async def has_started_runs(self) -> bool:
        """Whether any run was started and is active or interrupted."""
        find = "SELECT 1 FROM runs WHERE stop IS NULL AND epoch > 0 LIMIT 1"
        return await self._database.read(lambda c: c.execute(find).fetchone()) is not None

    async def delete_old_keys(self, older_than: float) -> None:
        """Delete keys that are older than so many seconds, in batches."""
        values = (self._clock() - older_than, PRUNE_BATCH_ROWS)
        deleted = PRUNE_BATCH_ROWS
        while deleted == PRUNE_BATCH_ROWS:
            deleted = await self._database.write(
                lambda c: c.execute(DELETE_OLD_KEYS, values).rowcount
            )
