"""Schedulers: decide which queued runs this process starts, and when.

`LocalScheduler` reads the run table itself, where one process uses the database (SQLite).
`QueueScheduler` gets jobs from procrastinate, where several orchestrators share a PostgreSQL. A job
is a session with something to do; it is driven run by run until nothing is left there, so that the
runs of a session need no queue positions of their own.

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
from typing import Protocol, TypeAlias

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.runs.driver import ActiveRun, RunDriver
from evoclaw.orchestrator.runs.requests import RunSettings
from evoclaw.store.databases.database import Database, StoreError
from evoclaw.store.runs.job_queue import JobQueue, SessionJob
from evoclaw.store.runs.queue import RunQueue

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


class LocalScheduler:
    """Starts queued runs from the run table whenever a slot is free."""

    def __init__(self, driver: RunDriver, queue: RunQueue, settings: RunSettings) -> None:
        self._driver, self._queue, self._settings = driver, queue, settings
        self._triggered = asyncio.Event()
        self._reserved: Counter[str] = Counter()
        """Slots reserved for runs that are being stored, by tenant."""
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

    @contextmanager
    def reserve_slot(self, tenant: str) -> Generator[bool]:
        """Whether a tenant may start another run; its slot is reserved while the block lasts."""
        counts = self._slots_in_use()
        room = self._open and counts.total() < self._settings.at_once
        room = room and counts[tenant] < self._settings.per_tenant
        self._reserved[tenant] += room
        try:
            yield room
        finally:
            self._reserved[tenant] -= room

    def _slots_in_use(self) -> Counter[str]:
        return Counter(self._driver.active_per_tenant) + self._reserved

    async def _start_queued(self) -> None:
        counts = self._slots_in_use()
        room = self._settings.at_once - counts.total()
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
        self._database = database
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
        engine = JobWorker(self._database.server, self._queue, self._drive_session)
        await engine.serve(self._choose_tenants, self._settings.at_once, self._settings.lease_s)

    async def _choose_tenants(self, live: Counter[str]) -> Sequence[Sequence[str]]:
        if not self._open:
            return ()
        return await self._queue.tenants_with_jobs(live, self._settings.per_tenant)

    async def _drive_session(self, job: SessionJob) -> None:
        """Drive a session until it has nothing more to do, or the job is returned."""
        while True:
            try:
                if not self._open:
                    return await self._queue.return_job(job)
                claim = await self._queue.claim_run(job)
            except StoreError:
                await asyncio.sleep(STORE_RETRY_DELAY_S)
                continue
            active = None if claim is None else self._driver.start(claim)
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
        """Do nothing: the worker is notified of new jobs itself."""

    @contextmanager
    def reserve_slot(self, tenant: str) -> Generator[bool]:
        """No slot for the caller: procrastinate decides which process starts a run."""
        yield False

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
