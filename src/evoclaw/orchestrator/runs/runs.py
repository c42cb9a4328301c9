"""The run service: starts, lists, watches, steers, cancels and resumes runs.

Everything is stored before the caller gets an answer. A process that dies leaves runs that the next
process resumes; two processes that share a database never drive the same run.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

import msgspec

from evoclaw.core.errors import AgentNotFound
from evoclaw.core.events import Record, RunFinished
from evoclaw.core.labels import Principal
from evoclaw.core.metrics import RunMeter
from evoclaw.core.run import RunResult, result_of
from evoclaw.core.tracing import current_traceparent
from evoclaw.orchestrator.runs.driver import RunDriver, encode_user_message
from evoclaw.orchestrator.runs.hub import Hub, WatcherTooSlow
from evoclaw.orchestrator.runs.requests import (
    AgentRunCount,
    Draining,
    EmptyMessage,
    KeyReused,
    RunNotFound,
    RunQueueFull,
    RunRequest,
    RunSettings,
    RunStatus,
    RunView,
    SessionBusy,
    SessionHasHistory,
    SessionNotFound,
)
from evoclaw.orchestrator.runs.scheduler import (
    LocalScheduler,
    QueueScheduler,
    Scheduler,
    current_process_identity,
)
from evoclaw.orchestrator.runs.supervisor import RunSupervisor
from evoclaw.orchestrator.runs.views import RunViews, StoredRecords, stop_reason_of
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.orchestrator.sessions.run_ids import tenant_run_id
from evoclaw.store.runs.inbox import Inbox
from evoclaw.store.runs.job_queue import JobQueue
from evoclaw.store.runs.queue import (
    Claim,
    EnqueueOutcome,
    EnqueueResult,
    QueuedRun,
    QueueLimits,
    RunQueue,
)
from evoclaw.store.sessions.sessions import Session

__all__ = [
    "SessionBusy",
    "Draining",
    "RunRequest",
    "KeyReused",
    "RunNotFound",
    "SessionNotFound",
    "EmptyMessage",
    "SessionHasHistory",
    "RunSettings",
    "RunView",
    "Runs",
    "RunStatus",
    "RunQueueFull",
    "WatcherTooSlow",
]


class Runs:
    """All runs of all tenants, as this process starts, drives and shows them."""

    def __init__(
        self,
        conversations: Conversations,
        *,
        agent: str = "",
        settings: RunSettings | None = None,
        process_identity: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Choose the parts.

        Args:
            conversations: The sessions, of any tenant; their database also has the schema of the
                run queue, and that of approvals.
            agent: The default agent; the first one if not given.
            settings: How many runs may be active or queued, and how claims are renewed.
            process_identity: The unique name of this process; made from its PID and start time if
                not given.
            clock: The time in seconds since 1970.
        """
        self.settings = settings or RunSettings()
        self._conversations, self._agent = conversations, agent
        is_shared = conversations.store.database.dialect == "postgres"
        self._queue = (JobQueue if is_shared else RunQueue)(
            conversations.store,
            process_identity or current_process_identity(),
            lease_s=self.settings.lease_s,
            clock=clock,
        )
        self._inbox = Inbox(conversations.store, clock)
        database = conversations.store.database
        self.hub = Hub(
            self.settings.slow_watcher, notices=database.notices, announce=database.announce
        )
        self._driver = RunDriver(
            conversations, self._queue, self._inbox, self.hub, self._trigger_scheduler
        )
        self._scheduler = self._make_scheduler()
        self._supervisor = RunSupervisor(
            self._driver, self._queue, self._inbox, conversations, self._scheduler, self.settings
        )
        self.draining = False
        """The process is shutting down and starts no more runs."""

    def _make_scheduler(self) -> Scheduler:
        database, queue = self._conversations.store.database, self._queue
        if isinstance(queue, JobQueue):
            return QueueScheduler(self._driver, queue, self.settings, database)
        return LocalScheduler(self._driver, queue, self.settings)

    def on_continued(self, listener: Callable[[str, str], Awaitable[None]]) -> None:
        """Call a listener with the tenant and id of each run that continues or has ended.

        A run continues when a person has given the answer that it waited for. The listener is
        called by the process that drives the run, and lost if that process dies.
        """
        self._driver.on_continued = listener

    @property
    def default_agent(self) -> str:
        """The agent of a run request that names none."""
        return self._agent or next(iter(self._conversations.agents), "")

    @property
    def active_count(self) -> int:
        """The number of runs that this process drives."""
        return len(self._driver.active)

    async def start(
        self, principal: Principal, request: RunRequest, *, key: str = "", run_id: str = ""
    ) -> tuple[RunView, bool]:
        """Start a run, or find the one that the same key or id started; stored when this returns.

        Raises `Draining`, `RunQueueFull`, `AgentNotFound`, `SessionNotFound`, `SessionHasHistory`,
        `EmptyMessage`, `EdgeNotUsable`, `KeyReused` if the key was used for another request, or
        `StoreFull` if the disk is full.

        Args:
            principal: On whose behalf; the owner of a new session.
            request: What the run is started with.
            key: An idempotency key: the same key with the same request is one run, also when sent
                twice at once, or again after a restart.
            run_id: An id chosen by the caller; the same id again is the same run.

        Returns:
            The run, and whether this call started it.
        """
        if self.draining:
            raise Draining
        if not (request.message.strip() or request.messages):
            raise EmptyMessage
        if not request.traceparent and (parent := current_traceparent()):
            request = msgspec.structs.replace(request, traceparent=parent)
        digest = request.digest()
        session, opens = await self._session_for(principal, request)
        # The run keeps the edge of its session, also if the session moves while the run waits.
        request = msgspec.structs.replace(request, on=session.on)
        entry = QueuedRun(
            tenant_run_id(principal.tenant, run_id or secrets.token_hex(16)),
            session,
            opens,
            request.last_user_text,
            msgspec.json.encode(request),
            principal.user,
            key,
            digest,
            request.label,
            bool(request.messages),
        )
        # A caller that disconnects must not leave a run that is claimed and not driven.
        placed = await asyncio.shield(asyncio.ensure_future(self._enqueue(principal.tenant, entry)))
        self._raise_if_rejected(placed, entry)
        assert placed.run is not None
        views = RunViews(self._conversations.store.of(principal.tenant))
        return await views.view(placed.run), placed.outcome is EnqueueOutcome.NEW

    async def _session_for(self, principal: Principal, request: RunRequest) -> tuple[Session, bool]:
        """The session of a request, and whether it is to be created."""
        conversations = self._conversations.of(principal.tenant)
        if request.session_id:
            found = await conversations.store.session(request.session_id)
            if found is None:
                raise SessionNotFound(request.session_id)
            if request.on and request.on != found.on:
                found = await conversations.move(found.id, request.on)
            return found, False
        name, agents = request.agent or self.default_agent, self._conversations.agents
        if name not in agents:
            raise AgentNotFound(name, tuple(agents))
        conversations.check_edge(name, request.on)
        capabilities = agents[name].capabilities
        title, id_ = request.session_title, secrets.token_hex(8)
        genome = await conversations.genomes.current(name, conversations.canary_key(name, id_))
        return Session(
            id_, name, principal.user, title, capabilities=capabilities, on=request.on,
            genome=genome,
        ), True  # fmt: skip

    async def _enqueue(self, tenant: str, entry: QueuedRun) -> EnqueueResult:
        limits = self.settings
        bounds = QueueLimits(limits.queued, limits.queued_per_tenant, limits.queued_per_session)
        with self._scheduler.reserve_slot(tenant) as room:
            placed = await self._queue.enqueue(tenant, entry, bounds, claim=room)
            if placed.epoch:
                claim = Claim(tenant, entry.run_id, placed.epoch)
                self._driver.start(claim, created=placed.created)
        if not placed.epoch:
            self._trigger_scheduler()
        return placed

    def _raise_if_rejected(self, placed: EnqueueResult, entry: QueuedRun) -> None:
        limits = self.settings
        match placed.outcome:
            case EnqueueOutcome.KEY_REUSED:
                raise KeyReused(entry.key, "" if placed.run is None else placed.run.id)
            case EnqueueOutcome.NO_SESSION:
                raise SessionNotFound(entry.session.id)
            case EnqueueOutcome.NOT_EMPTY:
                raise SessionHasHistory(entry.session.id)
            case EnqueueOutcome.FULL:
                raise RunQueueFull("all tenants", limits.queued)
            case EnqueueOutcome.FULL_TENANT:
                raise RunQueueFull("your tenant", limits.queued_per_tenant)
            case EnqueueOutcome.FULL_SESSION:
                raise RunQueueFull("this session", limits.queued_per_session)
            case EnqueueOutcome.NEW | EnqueueOutcome.EXISTING:
                pass

    async def get(self, tenant: str, run_id: str) -> RunView | None:
        """The view of one run; None if the tenant has no run of that id."""
        store = self._conversations.store.of(tenant)
        stored = await store.run(run_id)
        return None if stored is None else await RunViews(store).view(stored)

    async def owner(self, tenant: str, run_id: str) -> str | None:
        """The user of a run; None if the tenant has no run of that id.

        It is not read for a run that this process drives.
        """
        active = self._driver.active.get((tenant, run_id))
        if active is not None and active.owner is not None:
            return active.owner
        stored = await self._conversations.store.of(tenant).run(run_id)
        return None if stored is None else stored.owner

    async def list(
        self,
        tenant: str,
        *,
        session_id: str = "",
        state: RunStatus | None = None,
        owner: str | None = None,
        parent_run: str = "",
        before: str = "",
        limit: int = 50,
        agent: str = "",
    ) -> Sequence[RunView]:
        """Runs of a tenant, newest first.

        Args:
            tenant: The tenant.
            session_id: Only runs of this session.
            state: Only runs with this status.
            owner: Only runs in sessions of this user.
            parent_run: Only sub-runs of this run.
            before: Only runs older than this one: the last run of the previous page.
            limit: The largest number of runs.
            agent: Only runs of this agent.
        """
        views = RunViews(self._conversations.store.of(tenant))
        return await views.list(session_id, state, owner, before, limit, parent_run, agent)

    async def counts(self, tenant: str, owner: str | None = None) -> Sequence[AgentRunCount]:
        """How often each agent of a tenant ran; with an owner, only in sessions of this user."""
        rows = await self._conversations.store.of(tenant).run_counts(owner)
        return [AgentRunCount(agent, count, last, cost or 0.0) for agent, count, last, cost in rows]

    async def watch(
        self, tenant: str, run_id: str, after: int = 0, *, follow: bool = False
    ) -> AsyncGenerator[Record, None]:
        """Every record of a run after a number: first the stored ones, then live.

        The stream ends when the run ends or waits. Raises `RunNotFound`; and `WatcherTooSlow` for a
        watcher that does not keep up, whose `after` says where to continue.

        Args:
            tenant: The tenant.
            run_id: The run.
            after: The number of the last record that the watcher has.
            follow: Whether to continue while the run waits.
        """
        store = self._conversations.store.of(tenant)
        if (tenant, run_id) not in self._driver.active and await store.run(run_id) is None:
            raise RunNotFound(run_id)
        watched = self.hub.watch(
            (tenant, run_id), StoredRecords(store, run_id), after, follow=follow
        )
        async with aclosing(watched) as records:
            async for record in records:
                yield record

    async def records(
        self, tenant: str, run_id: str, *, after: int = 0, follow: bool = False
    ) -> AsyncGenerator[Record, None]:
        """Every record of a run after a number, for a reader that must not be dropped.

        A reader that does not keep up gets the rest from the store.

        Args:
            tenant: The tenant.
            run_id: The run.
            after: The number of the last record that the reader has.
            follow: Whether to continue while the run waits.
        """
        while True:
            try:
                async with aclosing(self.watch(tenant, run_id, after, follow=follow)) as records:
                    async for record in records:
                        after = record.seq
                        yield record
                return
            except WatcherTooSlow as slow:
                after = slow.after

    async def result(self, tenant: str, run_id: str) -> RunResult:
        """Wait until a run ends or waits, and return its result. Raises `RunNotFound`."""
        store = self._conversations.store.of(tenant)

        async def has_stopped() -> bool:
            stored = await store.run(run_id)
            if stored is None:
                raise RunNotFound(run_id)
            return (
                stop_reason_of(stored) is not None and (tenant, run_id) not in self._driver.active
            )

        while True:
            await self.hub.wait_until((tenant, run_id), has_stopped, notified=True)
            meter, records = RunMeter(), await store.records(run_id)
            for record in records:
                meter.receive(record)
            if records and isinstance(end := records[-1].event, RunFinished):
                return result_of(run_id, end, meter.metrics())

    async def cancel(self, tenant: str, run_id: str) -> bool:
        """Cancel a run, in whichever process; False if there is none, or it has ended.

        The cancellation is stored when this returns, so it survives a crash. An active run ends as
        soon as its calls return, a queued or waiting one at once. Its sub-runs end with it.
        """
        if not await self._inbox.cancel(tenant, run_id):
            return False
        await self._supervisor.cancel(tenant, run_id)
        return True

    async def steer(self, tenant: str, run_id: str, message: str) -> None:
        """Send another message to an open run: the model reads it before the run ends.

        The message is stored when this returns. A message that comes too late becomes the next run
        of the session, unless the run is cancelled. Raises `RunNotFound`, or `SessionBusy` if the
        run has ended.
        """
        if not message.strip():
            raise EmptyMessage
        stored = await self._inbox.add_message(tenant, run_id, encode_user_message(message))
        if stored is None:
            raise RunNotFound(run_id)
        session_id, is_stored = stored
        if not is_stored:
            raise SessionBusy(session_id, "has ended that run; send the text as a new message")
        if (active := self._driver.active.get((tenant, run_id))) is not None:
            await self._driver.deliver_steering(active)

    async def resume(self, tenant: str, run_id: str) -> None:
        """Resume a run whose answer is stored; does nothing for a run that does not wait."""
        if await self._conversations.store.of(tenant).run(run_id) is None:
            raise RunNotFound(run_id)
        if not self.draining:
            await self._supervisor.resume(tenant, run_id)

    async def drain(self, seconds: float | None = None) -> int:
        """Start no more runs, and let active ones end; returns how many were interrupted.

        Interrupted and queued runs continue in the next process, or at once in another process
        that shares the database.

        Args:
            seconds: How long active runs may take; `drain_s` of the settings if not given.
        """
        self.draining = True
        self._scheduler.close()
        limit = self.settings.drain_s if seconds is None else seconds
        tasks = [active.task for active in self._driver.active.values()]
        if tasks and limit > 0:
            await asyncio.wait(tasks, timeout=limit)
        remaining = list(self._driver.active.values())
        await self._driver.interrupt(remaining)
        return len(remaining)

    async def unfinished_since(self, since: float, limit: int) -> Sequence[tuple[str, str]]:
        """Tenant and id of the runs of all tenants that are open, or ended at a time or later."""
        return await self._queue.unfinished_since(since, limit)

    async def has_unfinished(self) -> bool:
        """Whether any process has started runs that have not ended."""
        return await self._queue.has_started_runs()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Resume unfinished runs, and drive queued ones, until the block ends.

        Then active runs are interrupted: call `drain` first to let them end.
        """
        database = self._conversations.store.database
        with database.notices.subscribe(self.hub.on_notice):
            async with database.listening(), self._supervisor.serving():
                try:
                    yield
                finally:
                    await self.drain(0)

    def _trigger_scheduler(self) -> None:
        if not self.draining:
            self._scheduler.trigger()
