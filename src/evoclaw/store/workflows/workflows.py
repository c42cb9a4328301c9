"""Stores workflow runs: their events, leases and schedules.

One process drives a workflow at a time: it has a lease until `lease_until`, and its writes are
rejected once another process has the lease.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.store.databases.database import Connection, Database, open_blob, seal_blob
from evoclaw.store.databases.steps import Step
from evoclaw.store.workflows.steps import (
    ADD_EVENT,
    APPEND_EVENTS,
    CLAIM,
    LEASE_LOST,
    RELEASE,
    RENEW,
    STORED,
    WAKE,
    put_events,
)
from evoclaw.store.workflows.tables import (
    SCHEMA,
    NewWorkflow,
    StoredEvent,
    StoredSchedule,
    StoredWorkflow,
    WorkflowUpdate,
)

__all__ = [
    "SCHEDULE_KEY_PREFIX",
    "SCHEMA",
    "WorkflowUpdate",
    "LeaseLost",
    "NewWorkflow",
    "StoredEvent",
    "StoredSchedule",
    "StoredWorkflow",
    "WorkflowStore",
]

_COLUMNS = (
    "tenant, id, name, parent, state, digest, plan, outcome, head, wakes, due, started_at, ended_at"
)
SCHEDULE_KEY_PREFIX = "schedule:"
"""The prefix of the key of a scheduled workflow run."""


PRUNE_BATCH_RUNS, PRUNE_BATCH_EVENTS = 50, 2_000
"""Workflow runs, and events of all of them, that are deleted in one transaction: a run with more
events is deleted alone."""
# Without those of a stored parent: an open workflow reads the end of its children, and would start
# a child again that it does not find. So the outermost one of several goes first.
OLD_WORKFLOWS = """
SELECT w.tenant, w.id, w.head FROM workflow_runs w
WHERE w.ended_at < ? AND NOT EXISTS (
    SELECT 1 FROM workflow_runs p WHERE p.tenant = w.tenant AND p.id = w.parent)
ORDER BY w.ended_at, w.seq LIMIT ?
"""
IS_DUE = """
SELECT 1 FROM workflow_runs
WHERE due <= ?1 AND ended_at IS NULL AND (holder IS NULL OR lease_until <= ?1) LIMIT 1
"""


class LeaseLost(EvoClawError):
    """The caller no longer has the lease of the workflow."""


class WorkflowStore:
    """The workflow runs of a tenant; methods for all tenants say so."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        tenant: str = LOCAL_PRINCIPAL.tenant,
    ) -> None:
        self._database, self._clock, self.tenant = database, clock, tenant

    def of(self, tenant: str) -> WorkflowStore:
        """The workflow runs of another tenant."""
        return WorkflowStore(self._database, self._clock, tenant)

    async def create(self, new: NewWorkflow) -> tuple[StoredWorkflow, bool]:
        """Store a workflow run; an existing one with its id or key is returned unchanged."""
        return await self._database.write(lambda c: self._create(c, new))

    def _create(self, connection: Connection, new: NewWorkflow) -> tuple[StoredWorkflow, bool]:
        now = self._clock()
        put = (
            "INSERT INTO workflow_runs (tenant, id, name, parent, state, asked_key, digest, plan, "
            "head, wakes, due, lease_until, started_at) "
            "VALUES (?, ?, ?, ?, 'queued', ?, ?, ?, 1, 0, 0, 0, ?) ON CONFLICT DO NOTHING"
        )
        values = (self.tenant, new.id, new.name, new.parent, new.key, new.digest)
        fresh = (
            connection.execute(put, (*values, seal_blob(self._database, new.plan), now)).rowcount
            > 0
        )
        if fresh:
            event = seal_blob(self._database, new.event)
            put_events(connection, self.tenant, new.id, 1, now, (event,))
        condition = "AND (id = ?2 OR asked_key = ?3) ORDER BY seq LIMIT 1"
        (found,) = self._rows(connection, f"tenant = ?1 {condition}", (new.id, new.key or ""))
        return found, fresh

    async def get(self, workflow_id: str) -> StoredWorkflow | None:
        """A workflow run."""
        rows = await self._database.read(lambda c: self._find(c, workflow_id))
        return rows[0] if rows else None

    async def list(
        self, *, name: str = "", state: str = "", before: str = "", limit: int = 50
    ) -> Sequence[StoredWorkflow]:
        """Workflow runs, newest first: with a name, in a state, created before another one."""
        condition = (
            "tenant = ?1 AND (?2 = '' OR name = ?2) AND (?3 = '' OR state = ?3) AND (?4 = '' OR "
            "seq < (SELECT seq FROM workflow_runs WHERE tenant = ?1 AND id = ?4)) "
            "ORDER BY seq DESC LIMIT ?5"
        )
        values = (name, state, before, limit)
        return await self._database.read(lambda c: self._rows(c, condition, values))

    async def events(self, workflow_id: str, after: int = 0) -> Sequence[StoredEvent]:
        """The events of a workflow run after a number, in order."""
        return await self._database.read(lambda c: self._events(c, workflow_id, after))

    async def load(self, workflow_id: str) -> tuple[StoredWorkflow, Sequence[StoredEvent]] | None:
        """A workflow run and all its events, in one read."""

        def work(connection: Connection) -> tuple[StoredWorkflow, Sequence[StoredEvent]] | None:
            rows = self._find(connection, workflow_id)
            return (rows[0], self._events(connection, workflow_id, 0)) if rows else None

        return await self._database.read(work)

    async def add_event(self, workflow_id: str, head: int, event: bytes) -> bool:
        """Add an event from outside and wake the workflow; False if `head` is outdated."""
        sealed = seal_blob(self._database, event)
        values = (self.tenant, workflow_id, head, sealed, self._clock())
        return await self._database.apply(Step(ADD_EVENT, values))

    async def wake(self, workflow_id: str) -> bool:
        """Make a workflow run due now; False if it is unknown or has ended."""
        step = Step(WAKE, (self.tenant, workflow_id))
        return await self._database.apply(step)

    async def append(
        self,
        workflow_id: str,
        holder: str,
        head: int,
        events: Sequence[bytes],
        update: WorkflowUpdate,
    ) -> float | None:
        """Store new events; their time, or None if another event was stored meanwhile.

        The parent of a workflow that ends is woken.

        Raises `LeaseLost` if the caller no longer has the lease.
        """
        now = self._clock()
        outcome = None if update.outcome is None else seal_blob(self._database, update.outcome)
        sealed = [seal_blob(self._database, event) for event in events]
        values = (
            *(self.tenant, workflow_id, holder, head, sealed),
            *(update.state, outcome, outcome is not None, now),
        )
        step = Step(APPEND_EVENTS, values)
        return now if self._is_stored(await self._database.apply(step), workflow_id) else None

    async def release(
        self,
        workflow_id: str,
        holder: str,
        seen: tuple[int, int],
        update: WorkflowUpdate,
        due: float | None,
    ) -> bool:
        """Release the lease until the workflow is due; False if the caller missed an event.

        Args:
            workflow_id: The workflow run.
            holder: The process that has the lease.
            seen: The last event and the number of wakes that the caller knows.
            update: The state to store.
            due: When to continue; None is when it is woken.
        """
        values = (self.tenant, workflow_id, holder, seen, update.state, due)
        step = Step(RELEASE, values)
        return self._is_stored(await self._database.apply(step), workflow_id)

    def _is_stored(self, result: str, workflow_id: str) -> bool:
        if result == LEASE_LOST:
            raise LeaseLost(f"workflow {workflow_id!r} is now driven by another process")
        return result == STORED

    async def claim(self, holder: str, seconds: float, limit: int) -> Sequence[StoredWorkflow]:
        """Of all tenants: lease workflow runs that are due and free."""
        if limit <= 0:
            return ()
        now = self._clock()
        # Most of the time there is none: a look costs no commit.
        if await self._database.read(lambda c: c.execute(IS_DUE, (now,)).fetchone()) is None:
            return ()
        keys = await self._database.apply(Step(CLAIM, (holder, now, now + seconds, limit)))

        def work(connection: Connection) -> Sequence[StoredWorkflow]:
            return [row for tenant, id_ in keys for row in self.of(tenant)._find(connection, id_)]

        return await self._database.read(work) if keys else ()

    async def renew(
        self, holder: str, seconds: float, keys: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], tuple[int, int]]:
        """Of all tenants: renew leases; the last event and the wakes of those still held."""
        if not keys:
            return {}
        until = self._clock() + seconds
        held = await self._database.apply(Step(RENEW, (holder, until, keys)))
        return {(tenant, id_): (head, wakes) for tenant, id_, head, wakes in held}

    async def release_all(self, holder: str) -> None:
        """Of all tenants: release all leases of a process."""
        change = "UPDATE workflow_runs SET holder = NULL WHERE holder = ?"
        await self._database.write(lambda c: c.execute(change, (holder,)))

    async def release_orphans(self) -> None:
        """Of all tenants: release the leases of dead processes; only if no other is alive."""
        change = "UPDATE workflow_runs SET holder = NULL WHERE holder IS NOT NULL"
        await self._database.write(lambda c: c.execute(change))

    async def prune(self, before: float) -> int:
        """Of all tenants: delete the workflow runs that ended before a time, in batches; how many.

        What a workflow started is kept until the workflow itself is deleted.
        """

        def work(connection: Connection) -> int:
            keys, events, old = list[tuple[str, str]](), 0, (before, PRUNE_BATCH_RUNS)
            for tenant, id_, head in connection.execute(OLD_WORKFLOWS, old).fetchall():
                events += head
                if keys and events > PRUNE_BATCH_EVENTS:
                    break
                keys.append((tenant, id_))
            delete_events = "DELETE FROM workflow_events WHERE tenant = ? AND workflow_id = ?"
            connection.executemany(delete_events, keys)
            connection.executemany("DELETE FROM workflow_runs WHERE tenant = ? AND id = ?", keys)
            return len(keys)

        deleted = 0
        while count := await self._database.write(work):
            deleted += count
        return deleted

    async def next_due(self) -> float | None:
        """Of all tenants: when the next workflow run can be leased; None if none is due."""
        # A leased one can be leased again when its lease ends.
        find = (
            "SELECT min(CASE WHEN holder IS NOT NULL AND lease_until > due THEN lease_until "
            "ELSE due END) FROM workflow_runs WHERE due IS NOT NULL AND ended_at IS NULL"
        )
        row = await self._database.read(lambda c: c.execute(find).fetchone())
        return row[0]

    async def schedule(self, name: str) -> StoredSchedule | None:
        """When a workflow starts next."""
        return await self._database.read(lambda c: self._schedule(c, name))

    async def put_schedule(self, name: str, rule: str, next_at: float) -> StoredSchedule:
        """Store when a workflow starts next, unless it has a schedule with the same rule."""

        def work(connection: Connection) -> StoredSchedule:
            put = (
                "INSERT INTO workflow_schedules (tenant, name, rule, next_at) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (tenant, name) DO UPDATE SET rule = excluded.rule, "
                "next_at = excluded.next_at WHERE workflow_schedules.rule <> excluded.rule"
            )
            connection.execute(put, (self.tenant, name, rule, next_at))
            found = self._schedule(connection, name)
            assert found is not None
            return found

        return await self._database.write(work)

    async def delete_schedule(self, name: str) -> None:
        """Delete the schedule of a workflow."""
        delete = "DELETE FROM workflow_schedules WHERE tenant = ? AND name = ?"
        await self._database.write(lambda c: c.execute(delete, (self.tenant, name)))

    async def start_scheduled(
        self, was: StoredSchedule, next_at: float, new: NewWorkflow, *, overlap: bool
    ) -> bool:
        """Start a scheduled run and store the next time, in one transaction; False if not started.

        Args:
            was: The schedule as the caller read it; another process may have started the run.
            next_at: The next time.
            new: The run to start.
            overlap: Whether to start it while the previous one has not ended.
        """

        def work(connection: Connection) -> bool:
            move = (
                "UPDATE workflow_schedules SET next_at = ?, last_at = ? "
                "WHERE tenant = ? AND name = ? AND rule = ? AND next_at = ?"
            )
            values = (next_at, was.next_at, self.tenant, was.name, was.rule, was.next_at)
            if not connection.execute(move, values).rowcount:
                return False
            running = (
                "SELECT 1 FROM workflow_runs WHERE tenant = ? AND name = ? AND ended_at IS NULL "
                "AND asked_key LIKE ? LIMIT 1"
            )
            scheduled = (self.tenant, was.name, f"{SCHEDULE_KEY_PREFIX}%")
            if not overlap and connection.execute(running, scheduled).fetchone():
                return False
            return self._create(connection, new)[1]

        return await self._database.write(work)

    def _find(self, connection: Connection, workflow_id: str) -> list[StoredWorkflow]:
        return self._rows(connection, "tenant = ?1 AND id = ?2", (workflow_id,))

    def _rows(
        self, connection: Connection, condition: str, values: Sequence[Any]
    ) -> list[StoredWorkflow]:
        find = f"SELECT {_COLUMNS} FROM workflow_runs WHERE {condition}"
        rows = connection.execute(find, (self.tenant, *values))
        return [self._workflow(row) for row in rows]

    def _workflow(self, row: Sequence[Any]) -> StoredWorkflow:
        tenant, id_, name, parent, state, digest, plan, outcome, *rest = row
        plan = open_blob(self._database, plan)
        outcome = None if outcome is None else open_blob(self._database, outcome)
        return StoredWorkflow(tenant, id_, name, parent, state, digest, plan, outcome, *rest)

    def _events(self, connection: Connection, workflow_id: str, after: int) -> list[StoredEvent]:
        find = (
            "SELECT seq, at, event FROM workflow_events "
            "WHERE tenant = ? AND workflow_id = ? AND seq > ? ORDER BY seq"
        )
        rows = connection.execute(find, (self.tenant, workflow_id, after))
        return [StoredEvent(s, at, open_blob(self._database, event)) for s, at, event in rows]

    def _schedule(self, connection: Connection, name: str) -> StoredSchedule | None:
        find = (
            "SELECT name, rule, next_at, last_at FROM workflow_schedules "
            "WHERE tenant = ? AND name = ?"
        )
        row = connection.execute(find, (self.tenant, name)).fetchone()
        return None if row is None else StoredSchedule(*row)
