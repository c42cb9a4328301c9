"""Schedulers: decide which queued runs this process starts, and when.

`LocalScheduler` reads the run table itself, where one process uses the database (SQLite).
`QueueScheduler` is for several orchestrators that share a PostgreSQL: the one that stores a run
drives it if a slot is free there; the others come as jobs from procrastinate. A job is a session
with something to do; it is driven run by run until nothing is left there, so that the runs of a
session need no queue positions of their own.

A process identity tells others on the same machine whether a process is alive. A silent process
loses its runs when its lease ends. A process that is certainly dead need not be waited for: an
orchestrator that was killed continues its runs at once when it is started again.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.runs.driver import ActiveRun, RunDriver
from evoclaw.orchestrator.runs.requests import RunSettings
from evoclaw.store.databases.database import Database, StoreError
from evoclaw.store.runs.job_queue import JobQueue, SessionJob
from evoclaw.store.runs.queue import RunQueue

if TYPE_CHECKING:
    from evoclaw.store.runs.job_worker import JobWorker

_PROC = Path("/proc")


Attempt: TypeAlias = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Runs something that may fail while the store is unavailable."""


class Scheduler(Protocol):
    """Decides which runs this process drives."""

    async def open(self) -> None:
        """Get ready to serve; raises if that is not possible."""
        ...

    async def serve(self, attempt: Attempt) -> None:
        """Start the next runs, until this is cancelled."""
        ...

    def close(self) -> None:
        """Start no more runs."""
        ...

    def trigger(self) -> None:
        """Check for runs to start."""
        ...

    def reserve_slot(self, tenant: str) -> AbstractContextManager[bool]:
        """Whether the caller may start a run; its slot is reserved while the block lasts."""
        ...

    async def resume(self, tenant: str, run_id: str) -> None:
        """Resume a waiting run."""
        ...

    async def reclaim_abandoned(self) -> None:
        """Find dead processes and reclaim their runs."""
        ...


class RunSlots:
    """How many runs this process may drive at once, in all and of each tenant."""

    def __init__(self, driver: RunDriver, settings: RunSettings) -> None:
        self._driver, self._settings = driver, settings
        self._reserved: Counter[str] = Counter()
        """Slots reserved for runs that are being stored, by tenant."""

    @property
    def in_use(self) -> Counter[str]:
        """The slots in use, by tenant."""
        return Counter(self._driver.active_per_tenant) + self._reserved

    @property
    def free(self) -> int:
        """How many more runs may be started."""
        return self._settings.at_once - self.in_use.total()

    @contextmanager
    def reserve(self, tenant: str) -> Generator[bool]:
        """Whether a tenant may start another run; its slot is reserved while the block lasts."""
        in_use = self.in_use
        if in_use.total() >= self._settings.at_once or in_use[tenant] >= self._settings.per_tenant:
            yield False
            return
        with self.hold(tenant):
            yield True

    @contextmanager
    def hold(self, tenant: str) -> Generator[None]:
        """Use a slot while the block lasts, free or not."""
        self._reserved[tenant] += 1
        try:
            yield
        finally:
            self._reserved[tenant] -= 1


@contextmanager
def _no_slot() -> Generator[bool]:
    yield False


class LocalScheduler:
    """Starts queued runs from the run table whenever a slot is free."""

    def __init__(self, driver: RunDriver, queue: RunQueue, settings: RunSettings) -> None:
        self._driver, self._queue, self._settings = driver, queue, settings
        self._slots = RunSlots(driver, settings)
        self._triggered = asyncio.Event()
        self._open = False

    async def open(self) -> None:
        """Accept runs."""
        self._open = True
        self.trigger()

    async def serve(self, attempt: Attempt) -> None:
        """Start queued runs whenever a slot may be free."""
        while True:
            await self._triggered.wait()
            self._triggered.clear()
            await attempt(self._start_queued)

    def close(self) -> None:
        """Start no more runs."""
        self._open = False

    def trigger(self) -> None:
        """Check for runs to start."""
        self._triggered.set()

    def reserve_slot(self, tenant: str) -> AbstractContextManager[bool]:
        """Whether a tenant may start another run; its slot is reserved while the block lasts."""
        return self._slots.reserve(tenant) if self._open else _no_slot()

    async def _start_queued(self) -> None:
        counts, room = self._slots.in_use, self._slots.free
        if room <= 0 or not self._open:
            return
        for claim in await self._queue.claim_next(counts, room, self._settings.per_tenant):
            self._driver.start(claim)

    async def resume(self, tenant: str, run_id: str) -> None:
        """Resume a waiting run if a slot is free; else the next poll does."""
        with self.reserve_slot(tenant) as room:
            claim = await self._queue.claim(tenant, run_id) if room else None
            if claim is not None:
                self._driver.start(claim)

    async def reclaim_abandoned(self) -> None:
        """Expire the claims of dead processes, so that their leases need not be waited for."""
        dead = [holder for holder in await self._queue.other_holders() if is_process_dead(holder)]
        if dead:
            await self._queue.expire_holders(dead)


STORE_RETRY_DELAY_S = 1.0
"""Seconds before another try while the store is unavailable."""


class QueueScheduler:
    """Drives the sessions that procrastinate hands out as jobs; see `Scheduler`."""

    def __init__(
        self, driver: RunDriver, queue: JobQueue, settings: RunSettings, database: Database
    ) -> None:
        self._driver, self._queue, self._settings = driver, queue, settings
        self._database, self._slots = database, RunSlots(driver, settings)
        self._worker: JobWorker | None = None
        self._waiting: frozenset[str] | None = None
        """The tenants with jobs that are not fetched yet; None if that is unknown."""
        self._turned_away: set[str] = set()
        """Tenants whose new runs became jobs since the last look at the jobs."""
        self._fetches: set[asyncio.Task[None]] = set()
        self._open = False

    async def open(self) -> None:
        """Create the tables of procrastinate if needed."""
        try:
            from evoclaw.store.runs.job_worker import create_tables
        except ImportError:
            raise ConfigError(
                "runs on PostgreSQL need the package procrastinate; "
                "install it with: pip install 'evoclaw[postgres]'"
            ) from None
        await create_tables(self._database)
        self._open = True

    async def serve(self, attempt: Attempt) -> None:
        """Run jobs until this is cancelled."""
        from evoclaw.store.databases.postgres import PostgresDatabase
        from evoclaw.store.runs.job_worker import JobWorker

        assert isinstance(self._database, PostgresDatabase)
        self._worker = JobWorker(self._database.server, self._queue, self._drive_session)
        await self._worker.serve(
            self._choose_tenants, self._settings.at_once, self._settings.lease_s
        )

    async def _choose_tenants(self, fetched: Counter[str]) -> Sequence[Sequence[str]]:
        if not self._open:
            return ()
        # A job that was fetched a moment ago has no run yet.
        busy = self._slots.in_use | fetched
        if busy.total() >= self._settings.at_once:
            self._waiting = None
            return ()
        self._turned_away.clear()
        tenants = await self._queue.tenants_with_jobs()
        self._waiting = frozenset(tenants) | self._turned_away
        groups: dict[int, list[str]] = {}
        for tenant in tenants:
            groups.setdefault(busy[tenant], []).append(tenant)
        return [groups[count] for count in sorted(groups) if count < self._settings.per_tenant]

    async def _drive_session(self, job: SessionJob) -> None:
        """Drive a session until it has nothing more to do, or the job is returned."""
        while True:
            try:
                if not self._open:
                    return await self._queue.return_job(job)
                with self._slots.hold(job.tenant):
                    claim = await self._queue.claim_run(job)
                    active = None if claim is None else self._driver.start(claim)
            except StoreError:
                await asyncio.sleep(STORE_RETRY_DELAY_S)
                continue
            if active is None or not await self._ran_to_stop(active):
                return None

    async def _ran_to_stop(self, active: ActiveRun) -> bool:
        """Wait for a run; whether it ended or waits, rather than being interrupted."""
        try:
            await asyncio.wait([active.task])
        except asyncio.CancelledError:
            # The worker considers this process dead.
            await self._driver.interrupt([active], release=False)
            raise
        return not active.interrupted and active.key not in self._driver.suspended

    def close(self) -> None:
        """Start no more runs; jobs that have not started are returned."""
        self._open = False

    def trigger(self) -> None:
        """Fetch the jobs that waited for a slot; of new ones the worker is notified itself."""
        if self._waiting != frozenset() and self._worker is not None:
            fetch = asyncio.ensure_future(self._worker.fetch())
            self._fetches.add(fetch)
            fetch.add_done_callback(self._fetches.discard)

    @contextmanager
    def reserve_slot(self, tenant: str) -> Generator[bool]:
        """Whether the caller may start a run itself; not while the tenant has jobs, as older."""
        waits = self._waiting is None or tenant in self._waiting | self._turned_away
        may_claim = self._open and self._queue.worker_id and not waits
        with self._slots.reserve(tenant) if may_claim else _no_slot() as room:
            if room:
                yield True
                return
            self._turned_away.add(tenant)
            try:
                yield False
            finally:
                # A look at the jobs that began before the run was stored did not see its job.
                self._turned_away.add(tenant)

    async def resume(self, tenant: str, run_id: str) -> None:
        """Resume a waiting run, in this process or another one."""
        await self._queue.resume_run(tenant, run_id)

    async def reclaim_abandoned(self) -> None:
        """Return the jobs of dead processes, and create missing jobs."""
        await self._queue.reclaim_abandoned(is_process_dead)


def current_process_identity() -> str:
    """A name for this process that no other process ever has."""
    return f"{_machine_id()}/{os.getpid()}/{_start_ticks(os.getpid())}/{secrets.token_hex(4)}"


def is_process_dead(identity: str) -> bool:
    """Whether the process of that name is certainly dead; False if in doubt."""
    parts = identity.split("/")
    if len(parts) != 4 or not parts[0] or parts[0] != _machine_id() or not parts[1].isdigit():
        return False
    started = _start_ticks(int(parts[1]))
    return started != parts[2]


def _machine_id() -> str:
    """The boot and PID namespace in which process ids are comparable; empty if unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{(_PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _start_ticks(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty if there is no such process."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    state, started = fields[0], fields[19]
    return "" if state in "ZX" else started
