"""The run queue on PostgreSQL: procrastinate assigns sessions to processes, epochs fence writes.

A job is a session that has something to do; a session has at most one job. The job is deferred in
the transaction that makes the session ready, and finished in the one that finds nothing left to do.
All of these take the same lock, so a session that needs a job always has one; polling defers jobs
that are missing for any other reason. Jobs of a process without heartbeats are retried.

The SQL functions of procrastinate have a version in their names, so their meaning does not change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct

from evoclaw.store.databases.database import Connection
from evoclaw.store.runs.claims import FIRST, FREE, NOBODY, OPEN, Claim
from evoclaw.store.runs.queue import Entry, RunQueue

TASK = "drive"
LONGEST_NAME = 128
"""Longest name of a queue; a queue is named after its tenant."""
NEVER = 1e9
"""Seconds without a heartbeat that never pass."""
SWEPT = 1_000
"""Sessions for which one poll defers jobs."""
# A waiting run continues when it is answered, or when its holder is dead. A sub-run is driven by
# its parent, unless it was claimed by itself.
GOES_ON = "(holder <> '' OR (stop IS NULL AND parent_run = ''))"
NEXT = f"""
SELECT id FROM (
    SELECT id, stop, holder, lease_until, parent_run FROM runs
    WHERE tenant = ? AND session_id = ? AND {OPEN} ORDER BY seq LIMIT 1
) AS f WHERE {GOES_ON} AND {FREE} AND holder <> ?
"""
NO_JOB = """
NOT EXISTS (SELECT 1 FROM procrastinate_jobs WHERE lock = {0} AND status = 'doing')
AND NOT EXISTS (SELECT 1 FROM procrastinate_jobs WHERE queueing_lock = {0} AND status = 'todo')
"""
MISSED = f"""
SELECT DISTINCT tenant, session_id FROM runs AS r
WHERE {OPEN} AND {GOES_ON} AND (holder = '' OR lease_until <= ?3) AND holder <> ?4 AND {FIRST}
    AND {NO_JOB.format("(r.tenant || '/' || r.session_id)")} LIMIT {SWEPT}
"""
OFFER = f"""
SELECT procrastinate_defer_jobs_v1(ARRAY[
    ROW(?1::varchar, '{TASK}', 0, ?2::text, ?2::text, ?3::jsonb, NULL)
]::procrastinate_job_to_defer_v1[]) WHERE {NO_JOB.format("?2::text")}
"""
OURS = """
SELECT 1 FROM procrastinate_jobs
WHERE id = ? AND worker_id = ? AND attempts = ? AND status = 'doing' FOR UPDATE
"""
END = "SELECT procrastinate_finish_job_v1(?, 'succeeded', true)::text"
PUT_BACK = "SELECT procrastinate_retry_job_v2(?, NULL, NULL, NULL, NULL)::text"
NOTIFY = """
SELECT pg_notify('procrastinate_any_queue_v1', '{"type": "job_inserted", "job_id": 0}')::text
"""
# A skip scan: from one tenant to the next, not through all their jobs.
WAITING = """
WITH RECURSIVE names (name) AS (
    SELECT min(queue_name) FROM procrastinate_jobs
    UNION ALL
    SELECT (SELECT min(queue_name) FROM procrastinate_jobs WHERE queue_name > names.name)
    FROM names WHERE name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL
    AND EXISTS (SELECT 1 FROM procrastinate_jobs WHERE queue_name = name AND status = 'todo')
"""
SILENT = "w.last_heartbeat < clock_timestamp() - ?1 * interval '1 second'"
# All that a poll needs, in one statement: an idle process sends no other.
LEFT_BEHIND = f"""
SELECT 'holder', h.holder, '' FROM (
    SELECT DISTINCT holder FROM runs WHERE holder <> '' AND lease_until IS NULL
) AS h
UNION ALL
SELECT 'silent', w.id::text, '' FROM procrastinate_workers AS w WHERE {SILENT}
UNION ALL
SELECT 'worker', w.id::text, '' FROM procrastinate_workers AS w
UNION ALL
SELECT 'job', j.id::text, '' FROM procrastinate_jobs AS j
LEFT JOIN procrastinate_workers AS w ON w.id = j.worker_id
WHERE j.status = 'doing' AND (w.id IS NULL OR {SILENT}) AND j.worker_id IS DISTINCT FROM ?2
UNION ALL
SELECT 'session', m.tenant, m.session_id FROM ({MISSED}) AS m
"""
JOB_OF = """
SELECT j.id FROM procrastinate_jobs AS j JOIN runs AS r ON j.lock = r.tenant || '/' || r.session_id
WHERE r.tenant = ? AND r.id = ? AND j.worker_id = ? AND j.status = 'doing'
"""
WAKE = f"""
UPDATE runs SET holder = '{NOBODY}', lease_until = 0
WHERE tenant = ? AND id = ? AND stop = 'waiting' AND holder = '' RETURNING session_id
"""


class Job(Struct, frozen=True):
    """A session that this process drives until it has nothing more to do."""

    number: int
    worker: int
    """The worker that fetched the job."""
    attempt: int
    tenant: str
    session_id: str


class Left(Struct, frozen=True):
    """Runs, jobs and sessions that no live process handles."""

    holders: Sequence[str]
    """Dead processes that hold runs."""
    jobs: Sequence[int]
    """Jobs of dead processes."""
    sessions: Sequence[tuple[str, str]]
    """Sessions that have something to do, and no job."""


class JobQueue(RunQueue):
    """The run queue of all tenants, shared by several processes over one PostgreSQL."""

    worker = 0
    """The id of this process as a procrastinate worker; 0 while it is not registered."""
    founded = False
    """Whether the tables of procrastinate are known to exist."""
    _heard: float | None = 0.0
    """Since when the server is reachable, by the monotonic clock; None while that is unknown."""

    @property
    def holder(self) -> str:
        """The name of this process as a holder, with the id of its worker, which has heartbeats."""
        return f"{self._holder}#{self.worker}" if self.worker else self._holder

    def _until(self, now: float) -> float | None:
        # Procrastinate finds dead workers; a process that is not registered has a lease.
        return None if self.worker else super()._until(now)

    def _placed(self, connection: Connection, tenant: str, entry: Entry, claim: bool) -> int:
        self._offer(connection, tenant, entry.session.id)
        return 0

    def _offer(self, connection: Connection, tenant: str, session_id: str) -> None:
        """Defer a job for a session that has something to do and no job."""
        if not self._is_founded(connection):
            return  # no worker was ever started here; the first one polls for itself
        if self._next(connection, tenant, session_id) is not None:
            arguments = {"tenant": tenant, "session_id": session_id}
            encoded = msgspec.json.encode(arguments).decode()
            values = (tenant[:LONGEST_NAME], f"{tenant}/{session_id}", encoded)
            connection.execute(OFFER, values)

    def _is_founded(self, connection: Connection) -> bool:
        if not self.founded:
            find = "SELECT to_regclass('procrastinate_jobs') IS NOT NULL"
            self.founded = connection.execute(find).fetchone()[0]
        return self.founded

    def _next(self, connection: Connection, tenant: str, session_id: str) -> str | None:
        values = (tenant, session_id, self._clock(), self.holder)
        row = connection.execute(NEXT, values).fetchone()
        return None if row is None else row[0]

    async def take(self, job: Job) -> Claim | None:
        """Claim the next run of a session.

        If there is none, the job is finished. A process that has lost the job claims nothing.
        """

        def work(connection: Connection) -> Claim | None:
            if not self._is_ours(connection, job):
                return None
            run_id = self._next(connection, job.tenant, job.session_id)
            epoch = self._claim(connection, job.tenant, run_id) if run_id is not None else 0
            if run_id is None or not epoch:
                connection.execute(END, (job.number,))
                return None
            return Claim(job.tenant, run_id, epoch)

        return await self._database.write(work)

    def _is_ours(self, connection: Connection, job: Job) -> bool:
        values = (job.number, job.worker, job.attempt)
        return connection.execute(OURS, values).fetchone() is not None

    async def give_back(self, job: Job) -> None:
        """Return a job, so that another process can fetch it at once."""

        def work(connection: Connection) -> None:
            if self._is_ours(connection, job):
                self._put_back(connection, [job.number])

        await self._database.write(work)

    def _put_back(self, connection: Connection, jobs: Sequence[int]) -> None:
        for number in jobs:
            connection.execute(PUT_BACK, (number,))
        if jobs:
            connection.execute(NOTIFY)

    async def waiting(self, live: Mapping[str, int], per_tenant: int) -> Sequence[Sequence[str]]:
        """The tenants with unfetched jobs, in groups, those with the fewest active runs here first.

        Args:
            active: The number of active runs of each tenant in this process.
            per_tenant: The largest number of active runs of one tenant.
        """
        # `aside`: jobs are fetched one by one, so each would wait for the write under way.
        rows = await self._database.read(lambda c: c.execute(WAITING).fetchall(), aside=True)
        groups: dict[int, list[str]] = {}
        for (tenant,) in rows:
            groups.setdefault(live.get(tenant, 0), []).append(tenant)
        return [groups[count] for count in sorted(groups) if count < per_tenant]

    async def wake(self, tenant: str, run_id: str) -> None:
        """Mark a waiting run as resumable, and defer a job for its session."""

        def work(connection: Connection) -> None:
            row = connection.execute(WAKE, (tenant, run_id)).fetchone()
            if row is not None:
                self._offer(connection, tenant, row[0])

        await self._database.write(work)

    async def renew(self) -> frozenset[Claim]:
        """Return the claims still held; the heartbeat is sent by the procrastinate worker."""
        find = "SELECT tenant, id, epoch, lease_until FROM runs WHERE holder = ?"
        rows = await self._database.read(lambda c: c.execute(find, (self.holder,)).fetchall())
        if any(lease is not None for *_, lease in rows):
            # The claim was expired, and no process took the run: renew it.
            return await super().renew()
        return frozenset(Claim(tenant, run_id, epoch) for tenant, run_id, epoch, _ in rows)

    def _release(self, connection: Connection, claims: Sequence[Claim]) -> None:
        super()._release(connection, claims)
        for claim in claims:
            values = (claim.tenant, claim.run_id, self.worker)
            rows = connection.execute(JOB_OF, values).fetchall()
            self._put_back(connection, [number for (number,) in rows])

    def _done(self, connection: Connection, claim: Claim) -> None:
        super()._done(connection, claim)
        find = "SELECT session_id FROM runs WHERE tenant = ? AND id = ?"
        row = connection.execute(find, (claim.tenant, claim.run_id)).fetchone()
        if row is not None:
            self._offer(connection, claim.tenant, row[0])

    def _outlived(self, connection: Connection, holders: Sequence[str]) -> None:
        super()._outlived(connection, holders)
        find = "SELECT id FROM procrastinate_jobs WHERE worker_id = ? AND status = 'doing'"
        for number in filter(None, map(_worker_of, holders)):
            rows = connection.execute(find, (number,)).fetchall()
            self._put_back(connection, [job for (job,) in rows])

    async def tend(self, is_gone: Callable[[str], bool]) -> None:
        """Retry the jobs of dead processes, and defer missing jobs.

        Args:
            is_dead: Whether a holder is certainly dead, so that its timeout need not be awaited.
        """
        started, up_since = time.monotonic(), self._heard
        self._heard = None
        # While the server was unreachable no process could send heartbeats: give them time.
        is_settled = up_since is not None and started >= up_since + self._lease / 2
        timeout_s = self._lease if is_settled else NEVER
        abandoned = await self._database.read(
            lambda c: self._left(c, is_gone, timeout_s), aside=True
        )
        now = time.monotonic()
        is_quick = up_since is not None and now < started + self._lease / 2
        self._heard = up_since if is_quick else now
        if self._heard == now:
            return  # the server was unreachable or slow: the result may be outdated
        if abandoned.holders or abandoned.jobs or abandoned.sessions:
            await self._database.write(lambda c: self._mend(c, is_gone, timeout_s))

    def _mend(
        self, connection: Connection, is_gone: Callable[[str], bool], patience: float
    ) -> None:
        abandoned = self._left(connection, is_gone, patience)
        self._put_back(connection, abandoned.jobs)
        self._outlived(connection, abandoned.holders)
        # The runs that they held may be without a job.
        for tenant, session_id in self._left(connection, is_gone, patience).sessions:
            self._offer(connection, tenant, session_id)

    def _left(
        self, connection: Connection, is_gone: Callable[[str], bool], patience: float
    ) -> Left:
        values = (patience, self.worker, self._clock(), self.holder)
        rows = connection.execute(LEFT_BEHIND, values).fetchall()

        def of_kind(kind: str) -> list[str]:
            return [first for row_kind, first, _ in rows if row_kind == kind]

        alive = set(map(int, of_kind("worker"))) - set(map(int, of_kind("silent")))
        dead = [
            holder
            for holder in of_kind("holder")
            if holder != self.holder and (_worker_of(holder) not in alive or is_gone(holder))
        ]
        sessions = [(tenant, id_) for row_kind, tenant, id_ in rows if row_kind == "session"]
        return Left(dead, list(map(int, of_kind("job"))), sessions)


def _worker_of(holder: str) -> int:
    """The procrastinate worker id in a holder's name; 0 if none."""
    number = holder.rpartition("#")[2]
    return int(number) if "#" in holder and number.isdigit() else 0
