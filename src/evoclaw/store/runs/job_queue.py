"""The queue of runs on PostgreSQL: procrastinate says who should drive what, we who may write.

A job is a session that has something to do; there is at most one of each. It is offered in the
transaction that makes the session ready, and ended in the one that finds nothing left to do there.
All of these wait for the same lock, so no session is ever without a job that needs one; a look
offers what was missed in any other way. Jobs of a process that is silent are put back.

The functions of procrastinate have their version in their names, so they mean the same tomorrow.
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
"""Letters of the name of a queue: it is the tenant's."""
NEVER = 1e9
"""Seconds of silence that nobody waits for."""
SWEPT = 1_000
"""Sessions that one look offers."""
# What waits goes on when somebody has answered, or when its holder is gone. A sub-run is its
# parent's affair, unless it went on by itself.
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
# From one tenant to the next, not through all that each has.
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
# All that a look is for, in one question: an idle process asks nothing else of the server.
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
    """A session that this process is to drive, until it has nothing more to do."""

    number: int
    worker: int
    """As whom it was taken."""
    attempt: int
    tenant: str
    session_id: str


class Left(Struct, frozen=True):
    """What nobody sees to."""

    holders: Sequence[str]
    """Who is gone, and holds runs."""
    jobs: Sequence[int]
    """That one who is gone was doing."""
    sessions: Sequence[tuple[str, str]]
    """That have something to do, and no job."""


class JobQueue(RunQueue):
    """The runs of all tenants, as one of several processes on a PostgreSQL holds them."""

    worker = 0
    """As whom procrastinate knows this process; 0 while it does not."""
    founded = False
    """Whether the tables of procrastinate are known to be there."""
    _heard: float | None = 0.0
    """Since when the server is there, by a clock that only runs; None while it may be away."""

    @property
    def holder(self) -> str:
        """What this process is called as a holder: whether it lives is seen by the worker."""
        return f"{self._holder}#{self.worker}" if self.worker else self._holder

    def _until(self, now: float) -> float | None:
        # Who is silent is found out by procrastinate; one that it does not know has a lease.
        return None if self.worker else super()._until(now)

    def _placed(self, connection: Connection, tenant: str, entry: Entry, claim: bool) -> int:
        self._offer(connection, tenant, entry.session.id)
        return 0

    def _offer(self, connection: Connection, tenant: str, session_id: str) -> None:
        """Have a session driven, if it has something to do and nobody was asked for it yet."""
        if not self._is_founded(connection):
            return  # nobody has served here yet; whoever does first looks for itself
        if self._next(connection, tenant, session_id) is not None:
            arguments = {"tenant": tenant, "session_id": session_id}
            told = msgspec.json.encode(arguments).decode()
            values = (tenant[:LONGEST_NAME], f"{tenant}/{session_id}", told)
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
        """Hold the run of a session whose turn it is.

        If there is none, the job has ended. Nothing is taken by one who has lost the job.
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
        """Let others have a job at once."""

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
        """The tenants with jobs that nobody has taken, those first that have the fewest here.

        Args:
            live: How many of each go on here.
            per_tenant: How many of one may.
        """
        # Beside: jobs are fetched one by one, so each would wait for whatever is written just then.
        rows = await self._database.read(lambda c: c.execute(WAITING).fetchall(), aside=True)
        groups: dict[int, list[str]] = {}
        for (tenant,) in rows:
            groups.setdefault(live.get(tenant, 0), []).append(tenant)
        return [groups[count] for count in sorted(groups) if count < per_tenant]

    async def wake(self, tenant: str, run_id: str) -> None:
        """Have a run that waits gone on with."""

        def work(connection: Connection) -> None:
            row = connection.execute(WAKE, (tenant, run_id)).fetchone()
            if row is not None:
                self._offer(connection, tenant, row[0])

        await self._database.write(work)

    async def renew(self) -> frozenset[Claim]:
        """What is still held; procrastinate is told by its worker that we live."""
        find = "SELECT tenant, id, epoch, lease_until FROM runs WHERE holder = ?"
        rows = await self._database.read(lambda c: c.execute(find, (self.holder,)).fetchall())
        if any(lease is not None for *_, lease in rows):
            # Given up for lost, and nobody has taken it: it is ours again.
            return await super().renew()
        return frozenset(Claim(tenant, run_id, epoch) for tenant, run_id, epoch, _ in rows)

    def _release(self, connection: Connection, claims: Sequence[Claim]) -> None:
        super()._release(connection, claims)
        for one in claims:
            rows = connection.execute(JOB_OF, (one.tenant, one.run_id, self.worker)).fetchall()
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
        """Put back what silent processes do, and offer what nobody was asked for.

        Args:
            is_gone: Whether a holder is certainly gone, so that it need not be waited for.
        """
        began, heard = time.monotonic(), self._heard
        self._heard = None
        # While the server was away nobody could say that it lives: they are given time to.
        knows = heard is not None and began >= heard + self._lease / 2
        patience = self._lease if knows else NEVER
        left = await self._database.read(lambda c: self._left(c, is_gone, patience), aside=True)
        now = time.monotonic()
        self._heard = heard if heard is not None and now < began + self._lease / 2 else now
        if self._heard == now:
            return  # it was away, or slow: what was seen may be long past
        if left.holders or left.jobs or left.sessions:
            await self._database.write(lambda c: self._mend(c, is_gone, patience))

    def _mend(
        self, connection: Connection, is_gone: Callable[[str], bool], patience: float
    ) -> None:
        left = self._left(connection, is_gone, patience)
        self._put_back(connection, left.jobs)
        self._outlived(connection, left.holders)
        # What they held may be without a job.
        for tenant, session_id in self._left(connection, is_gone, patience).sessions:
            self._offer(connection, tenant, session_id)

    def _left(
        self, connection: Connection, is_gone: Callable[[str], bool], patience: float
    ) -> Left:
        values = (patience, self.worker, self._clock(), self.holder)
        rows = connection.execute(LEFT_BEHIND, values).fetchall()

        def told(kind: str) -> list[str]:
            return [first for about, first, _ in rows if about == kind]

        alive = set(map(int, told("worker"))) - set(map(int, told("silent")))
        gone = [
            holder
            for holder in told("holder")
            if holder != self.holder and (_worker_of(holder) not in alive or is_gone(holder))
        ]
        sessions = [(tenant, id_) for about, tenant, id_ in rows if about == "session"]
        return Left(gone, list(map(int, told("job"))), sessions)


def _worker_of(holder: str) -> int:
    """The number that a holder has with procrastinate; 0 if none."""
    number = holder.rpartition("#")[2]
    return int(number) if "#" in holder and number.isdigit() else 0
