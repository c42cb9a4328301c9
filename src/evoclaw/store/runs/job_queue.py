"""The run queue on PostgreSQL: procrastinate assigns sessions to processes, epochs fence writes.

The process that stores a run claims it at once if it has a free slot and the session has no other
open run. All other runs wait as jobs: a job is a session that has something to do; a session has at
most one. The job is deferred in the step that makes the session ready, and finished in the one that
finds nothing left to do.
All of these steps lock the session, so a session that needs a job always has one; polling defers
jobs that are missing for any other reason. Jobs of a process without heartbeats are retried.

The SQL functions of procrastinate have a version in their names, so their meaning does not change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from evoclaw.store.databases.database import Connection
from evoclaw.store.databases.steps import Step
from evoclaw.store.runs.claims import IS_FIRST_OF_SESSION, IS_OPEN, Claim
from evoclaw.store.runs.job_steps import CLAIM_OF_JOB, OFFER_JOB, RELEASE_RUN, RESUME_RUN
from evoclaw.store.runs.queue import RunQueue
from evoclaw.store.runs.session_steps import CAN_CONTINUE
from evoclaw.store.sessions.delete_steps import session_lock

NO_TIMEOUT_S = 1e9
"""Seconds without a heartbeat that never pass."""
MAX_SESSIONS_PER_SWEEP = 1_000
"""Sessions for which one poll defers jobs."""
HAS_NO_JOB = """
NOT EXISTS (SELECT 1 FROM procrastinate_jobs WHERE lock = {0} AND status = 'doing')
AND NOT EXISTS (SELECT 1 FROM procrastinate_jobs WHERE queueing_lock = {0} AND status = 'todo')
"""
SESSIONS_WITHOUT_JOB = f"""
SELECT DISTINCT tenant, session_id FROM runs AS r
WHERE {IS_OPEN} AND {CAN_CONTINUE} AND (holder = '' OR lease_until <= ?3)
    AND holder <> ?4 AND {IS_FIRST_OF_SESSION}
    AND {HAS_NO_JOB.format("(r.tenant || '/' || r.session_id)")} LIMIT {MAX_SESSIONS_PER_SWEEP}
"""
LOCK_OWN_JOB = """
SELECT 1 FROM procrastinate_jobs
WHERE id = ? AND worker_id = ? AND attempts = ? AND status = 'doing' FOR UPDATE
"""
RETRY_JOB = "SELECT procrastinate_retry_job_v2(?, NULL, NULL, NULL, NULL)::text"
NOTIFY_WORKERS = """
SELECT pg_notify('procrastinate_any_queue_v1', '{"type": "job_inserted", "job_id": 0}')::text
"""
# A skip scan: from one tenant to the next, not through all their jobs.
TENANTS_WITH_JOBS = """
WITH RECURSIVE names (name) AS (
    SELECT min(queue_name) FROM procrastinate_jobs
    UNION ALL
    SELECT (SELECT min(queue_name) FROM procrastinate_jobs WHERE queue_name > names.name)
    FROM names WHERE name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL
    AND EXISTS (SELECT 1 FROM procrastinate_jobs WHERE queue_name = name AND status = 'todo')
"""
HEARTBEAT_EXPIRED = "w.last_heartbeat < clock_timestamp() - ?1 * interval '1 second'"
# All that a poll needs, in one statement: an idle process sends no other.
ABANDONED_WORK = f"""
SELECT 'holder', h.holder, '' FROM (
    SELECT DISTINCT holder FROM runs WHERE holder <> '' AND lease_until IS NULL
) AS h
UNION ALL
SELECT 'silent', w.id::text, '' FROM procrastinate_workers AS w WHERE {HEARTBEAT_EXPIRED}
UNION ALL
SELECT 'worker', w.id::text, '' FROM procrastinate_workers AS w
UNION ALL
SELECT 'job', j.id::text, '' FROM procrastinate_jobs AS j
LEFT JOIN procrastinate_workers AS w ON w.id = j.worker_id
WHERE j.status = 'doing' AND (w.id IS NULL OR {HEARTBEAT_EXPIRED})
    AND j.worker_id IS DISTINCT FROM ?2
UNION ALL
SELECT 'session', m.tenant, m.session_id FROM ({SESSIONS_WITHOUT_JOB}) AS m
"""


class SessionJob(Struct, frozen=True):
    """A session that this process drives until it has nothing more to do."""

    job_id: int
    worker_id: int
    """The worker that fetched the job."""
    attempt: int
    tenant: str
    session_id: str


class AbandonedWork(Struct, frozen=True):
    """Runs, jobs and sessions that no live process handles."""

    holders: Sequence[str]
    """Dead processes that hold runs."""
    jobs: Sequence[int]
    """Jobs of dead processes."""
    sessions: Sequence[tuple[str, str]]
    """Sessions that have something to do, and no job."""


class JobQueue(RunQueue):
    """The run queue of all tenants, shared by several processes over one PostgreSQL."""

    worker_id = 0
    """The id of this process as a procrastinate worker; 0 while it is not registered."""
    _server_up_since: float | None = 0.0
    """Since when the server is reachable, by the monotonic clock; None while that is unknown."""

    @property
    def holder(self) -> str:
        """The name of this process as a holder, with the id of its worker, which has heartbeats."""
        return f"{self._holder}#{self.worker_id}" if self.worker_id else self._holder

    def _lease_end(self, now: float) -> float | None:
        # Procrastinate finds dead workers; a process that is not registered has a lease.
        return None if self.worker_id else super()._lease_end(now)

    @property
    def _offering_holder(self) -> str | None:
        return self.holder

    async def claim_run(self, job: SessionJob) -> Claim | None:
        """Claim the next run of a session.

        If there is none, the job is finished. A process that has lost the job claims nothing.
        """
        now = self._clock()
        found = await self._database.apply(
            Step(
                CLAIM_OF_JOB,
                (
                    *(job.tenant, job.session_id, job.job_id, job.worker_id, job.attempt),
                    *(now, self.holder, self._lease_end(now)),
                ),
                lock=session_lock(job.tenant, job.session_id),
            )
        )
        return None if found is None else Claim(job.tenant, found[0], found[1])

    def _owns_job(self, connection: Connection, job: SessionJob) -> bool:
        values = (job.job_id, job.worker_id, job.attempt)
        return connection.execute(LOCK_OWN_JOB, values).fetchone() is not None

    async def return_job(self, job: SessionJob) -> None:
        """Return a job, so that another process can fetch it at once."""

        def work(connection: Connection) -> None:
            if self._owns_job(connection, job):
                self._retry_jobs(connection, [job.job_id])

        await self._database.write(work)

    def _retry_jobs(self, connection: Connection, jobs: Sequence[int]) -> None:
        for number in jobs:
            connection.execute(RETRY_JOB, (number,))
        if jobs:
            connection.execute(NOTIFY_WORKERS)

    async def tenants_with_jobs(self) -> Sequence[str]:
        """The tenants with unfetched jobs."""
        # Jobs are fetched one by one: each fetch would wait for the write under way.
        rows = await self._database.read(
            lambda c: c.execute(TENANTS_WITH_JOBS).fetchall(), allow_stale=True
        )
        return [tenant for (tenant,) in rows]

    async def resume_run(self, tenant: str, run_id: str) -> None:
        """Mark a waiting run as resumable, and defer a job for its session."""
        session_id = await self._session_of(tenant, run_id)
        if session_id is not None:
            values = (tenant, session_id, run_id, self._clock(), self.holder)
            lock = session_lock(tenant, session_id)
            await self._database.apply(Step(RESUME_RUN, values, lock=lock))

    async def _session_of(self, tenant: str, run_id: str) -> str | None:
        find = "SELECT session_id FROM runs WHERE tenant = ? AND id = ?"
        row = await self._database.read(lambda c: c.execute(find, (tenant, run_id)).fetchone())
        return None if row is None else row[0]

    async def renew(self) -> frozenset[Claim]:
        """Return the claims still held; the heartbeat is sent by the procrastinate worker."""
        find = "SELECT tenant, id, epoch, lease_until FROM runs WHERE holder = ?"
        rows = await self._database.read(lambda c: c.execute(find, (self.holder,)).fetchall())
        if any(lease is not None for *_, lease in rows):
            # The claim was expired, and no process took the run: renew it.
            return await super().renew()
        return frozenset(Claim(tenant, run_id, epoch) for tenant, run_id, epoch, _ in rows)

    async def release(self, claims: Sequence[Claim]) -> None:
        """Release claims, and return their jobs, so that another process can go on at once."""
        for claim in claims:
            session_id = await self._session_of(claim.tenant, claim.run_id)
            if session_id is not None:
                values = (
                    *(claim.tenant, session_id, claim.run_id, claim.epoch),
                    *(self.holder, self.worker_id, self._clock()),
                )
                lock = session_lock(claim.tenant, session_id)
                await self._database.apply(Step(RELEASE_RUN, values, lock=lock))

    def _expire_holders(self, connection: Connection, holders: Sequence[str]) -> None:
        super()._expire_holders(connection, holders)
        find = "SELECT id FROM procrastinate_jobs WHERE worker_id = ? AND status = 'doing'"
        for number in filter(None, map(_worker_id_of, holders)):
            rows = connection.execute(find, (number,)).fetchall()
            self._retry_jobs(connection, [job for (job,) in rows])

    async def reclaim_abandoned(self, is_dead: Callable[[str], bool]) -> None:
        """Retry the jobs of dead processes, and defer missing jobs.

        Args:
            is_dead: Whether a holder is certainly dead, so that its timeout need not be awaited.
        """
        started, up_since = time.monotonic(), self._server_up_since
        self._server_up_since = None
        # While the server was unreachable no process could send heartbeats: give them time.
        is_settled = up_since is not None and started >= up_since + self._lease / 2
        timeout_s = self._lease if is_settled else NO_TIMEOUT_S
        abandoned = await self._database.read(
            lambda c: self._find_abandoned(c, is_dead, timeout_s), allow_stale=True
        )
        now = time.monotonic()
        is_quick = up_since is not None and now < started + self._lease / 2
        self._server_up_since = up_since if is_quick else now
        if self._server_up_since == now:
            return  # the server was unreachable or slow: the result may be outdated
        if abandoned.holders or abandoned.jobs or abandoned.sessions:
            await self._reclaim(is_dead, timeout_s)

    async def _reclaim(self, is_dead: Callable[[str], bool], heartbeat_timeout_s: float) -> None:
        def work(connection: Connection) -> Sequence[tuple[str, str]]:
            abandoned = self._find_abandoned(connection, is_dead, heartbeat_timeout_s)
            self._retry_jobs(connection, abandoned.jobs)
            self._expire_holders(connection, abandoned.holders)
            # The runs that they held may be without a job.
            return self._find_abandoned(connection, is_dead, heartbeat_timeout_s).sessions

        for tenant, session_id in await self._database.write(work):
            await self.offer_session(tenant, session_id)

    async def offer_session(self, tenant: str, session_id: str) -> None:
        """Defer a job for a session that has something to do and no job."""
        values = (tenant, session_id, self._clock(), self.holder)
        lock = session_lock(tenant, session_id)
        await self._database.apply(Step(OFFER_JOB, values, lock=lock))

    def _find_abandoned(
        self, connection: Connection, is_dead: Callable[[str], bool], heartbeat_timeout_s: float
    ) -> AbandonedWork:
        values = (heartbeat_timeout_s, self.worker_id, self._clock(), self.holder)
        rows = connection.execute(ABANDONED_WORK, values).fetchall()

        def of_kind(kind: str) -> list[str]:
            return [first for row_kind, first, _ in rows if row_kind == kind]

        alive = set(map(int, of_kind("worker"))) - set(map(int, of_kind("silent")))
        dead = [
            holder
            for holder in of_kind("holder")
            if holder != self.holder and (_worker_id_of(holder) not in alive or is_dead(holder))
        ]
        sessions = [(tenant, id_) for row_kind, tenant, id_ in rows if row_kind == "session"]
        return AbandonedWork(dead, list(map(int, of_kind("job"))), sessions)


def _worker_id_of(holder: str) -> int:
    """The procrastinate worker id in a holder's name; 0 if none."""
    number = holder.rpartition("#")[2]
    return int(number) if "#" in holder and number.isdigit() else 0
