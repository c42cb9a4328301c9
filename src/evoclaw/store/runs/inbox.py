"""Control requests for open runs: steering messages, answers and cancellations.

They are stored beside the runs, so that the process that drives a run finds them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evoclaw.store.databases.database import Connection, open_blob, seal_blob
from evoclaw.store.databases.notices import Notice, NoticeKind
from evoclaw.store.databases.steps import Step
from evoclaw.store.runs.inbox_steps import ADD_MESSAGE, CANCEL
from evoclaw.store.runs.queue import IS_OPEN, SAME_RUN, QueuedRun
from evoclaw.store.sessions.sessions import SessionStore

ANSWER_BATCH_ROWS = 1_000
"""Pending calls that one poll reads."""
# Answered, withdrawn or expired since the run was parked. A question has the id of its call; an
# approval that of the attempt, which is always the first.
IS_ANSWERED = """(
    EXISTS (
        SELECT 1 FROM questions q WHERE q.tenant = p.tenant AND q.id = p.place
            AND (q.answer IS NOT NULL OR q.closed_at IS NOT NULL)
    ) OR EXISTS (
        SELECT 1 FROM approvals a WHERE a.tenant = p.tenant AND a.request_id = p.place || '.1'
            AND (a.decision IS NOT NULL OR a.closed_at IS NOT NULL OR a.expires_at <= ?1)
    )
)"""
RUN_IS_ANSWERED = (
    f"SELECT 1 FROM queue_pending p WHERE p.tenant = ?2 AND p.run_id = ?3 AND {IS_ANSWERED} LIMIT 1"
)
PENDING_CALLS = f"""
SELECT p.tenant, p.run_id, p.place, CASE WHEN {IS_ANSWERED} THEN 1 ELSE 0 END
FROM queue_pending p
WHERE p.tenant > ?2 OR (p.tenant = ?2 AND p.run_id > ?3)
    OR (p.tenant = ?2 AND p.run_id = ?3 AND p.place > ?4)
ORDER BY p.tenant, p.run_id, p.place LIMIT ?5
"""
ENDED_WITH_MESSAGES = """
SELECT DISTINCT i.tenant, i.run_id FROM queue_inbox i
JOIN runs r ON r.tenant = i.tenant AND r.id = i.run_id
WHERE r.stop IS NOT NULL AND r.stop <> 'waiting'
"""


class Inbox:
    """The control requests for the runs of all tenants."""

    def __init__(self, sessions: SessionStore, clock: Callable[[], float] = time.time) -> None:
        """`sessions` is the store of the runs, of any tenant."""
        self._sessions, self._database, self._clock = sessions, sessions.database, clock
        self._cursor = ("", "", "")
        """The last pending call that a poll has read."""

    async def answered_runs(self) -> Sequence[tuple[str, str]]:
        """Parked runs that can be resumed; each poll reads a batch of the pending calls."""

        def work(connection: Connection) -> list[Any]:
            values = (self._clock(), *self._cursor, ANSWER_BATCH_ROWS)
            return connection.execute(PENDING_CALLS, values).fetchall()

        rows = await self._database.read(work)
        self._cursor = tuple(rows[-1][:3]) if len(rows) == ANSWER_BATCH_ROWS else ("", "", "")
        return list(
            dict.fromkeys((tenant, run_id) for tenant, run_id, _, answered in rows if answered)
        )

    async def is_answered(self, tenant: str, run_id: str) -> bool:
        """Whether a parked run can be resumed."""
        values = (self._clock(), tenant, run_id)
        row = await self._database.read(lambda c: c.execute(RUN_IS_ANSWERED, values).fetchone())
        return row is not None

    async def cancel(self, tenant: str, run_id: str) -> bool:
        """Store the cancellation of a run; False if there is none, or it has ended."""
        step = Step(CANCEL, (tenant, run_id))
        notices = (Notice(NoticeKind.CANCELLED, tenant, run_id),)
        return await self._database.apply(step, notices=notices)

    async def is_cancelled(self, tenant: str, run_id: str) -> bool:
        """Whether a cancellation of the run is stored."""
        find = f"SELECT 1 FROM queue_cancels WHERE {SAME_RUN}"
        values = (tenant, run_id)
        row = await self._database.read(
            lambda c: c.execute(find, values).fetchone(), allow_stale=True
        )
        return row is not None

    async def cancelled_runs(self) -> Sequence[tuple[str, str]]:
        """The runs with a stored cancellation."""
        find = "SELECT tenant, run_id FROM queue_cancels"
        rows = await self._database.read(lambda c: c.execute(find).fetchall(), allow_stale=True)
        return [(tenant, run_id) for tenant, run_id in rows]

    async def delete_old_cancels(self) -> None:
        """Delete cancellations of runs that have ended."""
        delete = f"""DELETE FROM queue_cancels WHERE NOT EXISTS (
            SELECT 1 FROM runs WHERE runs.tenant = queue_cancels.tenant
                AND runs.id = queue_cancels.run_id AND {IS_OPEN}
        )"""
        await self._database.write(lambda c: c.execute(delete))

    async def add_message(
        self, tenant: str, run_id: str, message: bytes
    ) -> tuple[str, bool] | None:
        """Store a steering message; the session, and whether the run is open and it was stored.

        None if there is no such run.
        """
        sealed = seal_blob(self._database, message)
        step = Step(ADD_MESSAGE, (tenant, run_id, sealed))
        notices = (Notice(NoticeKind.MESSAGE_SENT, tenant, run_id),)
        found = await self._database.apply(step, notices=notices)
        return None if found is None else (found[0], found[1])

    async def messages(self, tenant: str, run_id: str, start: int = 0) -> Sequence[bytes]:
        """The steering messages of a run, from a number on."""
        find = f"SELECT message FROM queue_inbox WHERE {SAME_RUN} AND number >= ? ORDER BY number"
        values = (tenant, run_id, start)
        rows = await self._database.read(
            lambda c: c.execute(find, values).fetchall(), allow_stale=True
        )
        return [open_blob(self._database, row[0]) for row in rows]

    async def message_counts(self, holder: str) -> Mapping[tuple[str, str], int]:
        """The number of steering messages of each run that a process holds."""
        find = (
            "SELECT i.tenant, i.run_id, count(*) FROM queue_inbox i JOIN runs r "
            "ON r.tenant = i.tenant AND r.id = i.run_id WHERE r.holder = ? "
            "GROUP BY i.tenant, i.run_id"
        )
        rows = await self._database.read(
            lambda c: c.execute(find, (holder,)).fetchall(), allow_stale=True
        )
        return {(tenant, run_id): count for tenant, run_id, count in rows}

    async def ended_with_messages(self) -> Sequence[tuple[str, str]]:
        """Runs that have ended and still have steering messages."""
        rows = await self._database.read(lambda c: c.execute(ENDED_WITH_MESSAGES).fetchall())
        return [(tenant, run_id) for tenant, run_id in rows]

    async def move_to_next_run(self, tenant: str, run_id: str, entry: QueuedRun | None) -> None:
        """Delete the steering messages of a run, and store the next run in the same transaction.

        Args:
            tenant: The tenant.
            run_id: The run that has ended.
            entry: The next run, if there is to be one.
        """
        store, same = self._sessions.of(tenant), (tenant, run_id)
        create = None
        if entry is not None:
            create = store.create_run_work(
                *(entry.run_id, entry.session.id, entry.asked),
                label=entry.label,
                run_request=entry.request,
            )

        def work(connection: Connection) -> None:
            has_messages = f"SELECT 1 FROM queue_inbox WHERE {SAME_RUN} LIMIT 1"
            if connection.execute(has_messages, same).fetchone() is None:
                return
            # First the run, which locks its session: the order in which a session is deleted.
            if create is not None:
                create(connection)
            connection.execute(f"DELETE FROM queue_inbox WHERE {SAME_RUN}", same)

        await self._database.write(work)
