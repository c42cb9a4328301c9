"""The run service: starts, lists, watches, steers, cancels and resumes runs.

Everything is stored before the caller gets an answer. A process that dies leaves runs that the next
process resumes; two processes that share a database never drive the same run.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

import msgspec

from evoclaw.core.errors import AgentNotFound
from evoclaw.core.events import Record, RunFinished
from evoclaw.core.labels import Principal
from evoclaw.core.metrics import RunMeter
from evoclaw.core.result import RunResult, result_of
from evoclaw.core.tracing import traceparent
from evoclaw.orchestrator.errands import (
    Busy,
    Draining,
    Errand,
    KeyReused,
    NoRun,
    NoSession,
    NothingAsked,
    OtherHistory,
    RunSettings,
    RunView,
    State,
    TooMany,
)
from evoclaw.orchestrator.runs.driving import Driving, said
from evoclaw.orchestrator.runs.holders import this_process
from evoclaw.orchestrator.runs.hub import Hub, TooSlow
from evoclaw.orchestrator.runs.job_turns import JobTurns
from evoclaw.orchestrator.runs.tending import Tending
from evoclaw.orchestrator.runs.turns import OwnTurns, Turns
from evoclaw.orchestrator.runs.viewing import Kept, Views, standing
from evoclaw.orchestrator.sessions.sessions import Conversations
from evoclaw.orchestrator.sessions.subruns import run_id_of
from evoclaw.store.runs.inbox import Inbox
from evoclaw.store.runs.job_queue import JobQueue
from evoclaw.store.runs.queue import Bounds, Claim, Entry, Outcome, Placed, RunQueue
from evoclaw.store.sessions.sessions import Session

__all__ = [
    "Busy",
    "Draining",
    "Errand",
    "KeyReused",
    "NoRun",
    "NoSession",
    "NothingAsked",
    "OtherHistory",
    "RunSettings",
    "RunView",
    "Runs",
    "State",
    "TooMany",
    "TooSlow",
]


class Runs:
    """All runs of all tenants, as this process starts, drives and shows them."""

    def __init__(
        self,
        talks: Conversations,
        *,
        agent: str = "",
        settings: RunSettings | None = None,
        holder: str = "",
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
        self._talks, self._agent = talks, agent
        is_shared = talks.store.database.dialect == "postgres"
        self._queue = (JobQueue if is_shared else RunQueue)(
            talks.store, holder or this_process(), lease_s=self.settings.lease_s, clock=clock
        )
        self._inbox = Inbox(talks.store, clock)
        database = talks.store.database
        self.hub = Hub(
            self.settings.slow_watcher, notices=database.notices, announce=database.announce
        )
        self._driving = Driving(talks, self._queue, self._inbox, self.hub, self._poke)
        self._turns = self._chosen_turns()
        self._tending = Tending(
            self._driving, self._queue, self._inbox, talks, self._turns, self.settings
        )
        self.draining = False
        """The process is shutting down and starts no more runs."""

    def _chosen_turns(self) -> Turns:
        database, queue = self._talks.store.database, self._queue
        if isinstance(queue, JobQueue):
            return JobTurns(self._driving, queue, self.settings, database)
        return OwnTurns(self._driving, queue, self.settings)

    @property
    def default(self) -> str:
        """The agent of a run request that names none."""
        return self._agent or next(iter(self._talks.agents), "")

    @property
    def live(self) -> int:
        """The number of runs that this process drives."""
        return len(self._driving.live)

    async def start(
        self, who: Principal, errand: Errand, *, key: str = "", run_id: str = ""
    ) -> tuple[RunView, bool]:
        """Start a run, or find the one that the same key or id started; stored when this returns.

        Raises `Draining`, `RunQueueFull`, `AgentNotFound`, `SessionNotFound`, `SessionHasHistory`,
        `EmptyMessage`, `KeyReused` if the key was used for another request, or `StoreFull` if the
        disk is full.

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
        if not (errand.message.strip() or errand.messages):
            raise NothingAsked
        if not errand.traceparent and (parent := traceparent()):
            errand = msgspec.structs.replace(errand, traceparent=parent)
        session, opens = await self._where(who, errand)
        entry = Entry(
            run_id_of(who.tenant, run_id or secrets.token_hex(16)),
            session,
            opens,
            errand.asked,
            msgspec.json.encode(errand),
            who.user,
            key,
            errand.digest(),
            errand.label,
            bool(errand.messages),
        )
        # A caller that disconnects must not leave a run that is claimed and not driven.
        placed = await asyncio.shield(asyncio.ensure_future(self._put(who.tenant, entry)))
        self._refuse(placed, entry)
        assert placed.run is not None
        views = Views(self._talks.store.of(who.tenant))
        return await views.of(placed.run), placed.outcome is Outcome.NEW

    async def _where(self, who: Principal, errand: Errand) -> tuple[Session, bool]:
        """The session of a request, and whether it is to be created."""
        if errand.session_id:
            found = await self._talks.store.of(who.tenant).session(errand.session_id)
            if found is None:
                raise NoSession(errand.session_id)
            return found, False
        name, agents = errand.agent or self.default, self._talks.agents
        if name not in agents:
            raise AgentNotFound(name, tuple(agents))
        capabilities = agents[name].capabilities
        title, id_ = errand.heading, secrets.token_hex(8)
        return Session(id_, name, who.user, title, capabilities=capabilities), True

    async def _put(self, tenant: str, entry: Entry) -> Placed:
        limits = self.settings
        bounds = Bounds(limits.queued, limits.queued_per_tenant, limits.queued_per_session)
        with self._turns.room_for(tenant) as room:
            placed = await self._queue.put(tenant, entry, bounds, claim=room)
            if placed.epoch:
                self._driving.take(Claim(tenant, entry.run_id, placed.epoch))
        self._poke()
        return placed

    def _refuse(self, placed: Placed, entry: Entry) -> None:
        limits = self.settings
        match placed.outcome:
            case Outcome.OTHER:
                raise KeyReused(entry.key, "" if placed.run is None else placed.run.id)
            case Outcome.NO_SESSION:
                raise NoSession(entry.session.id)
            case Outcome.NOT_EMPTY:
                raise OtherHistory(entry.session.id)
            case Outcome.FULL:
                raise TooMany("all tenants", limits.queued)
            case Outcome.FULL_TENANT:
                raise TooMany("your tenant", limits.queued_per_tenant)
            case Outcome.FULL_SESSION:
                raise TooMany("this session", limits.queued_per_session)
            case Outcome.NEW | Outcome.SAME:
                pass

    async def look(self, tenant: str, run_id: str) -> RunView | None:
        """The view of one run; None if the tenant has no run of that id."""
        store = self._talks.store.of(tenant)
        stored = await store.run(run_id)
        return None if stored is None else await Views(store).of(stored)

    async def list(
        self,
        tenant: str,
        *,
        session_id: str = "",
        state: State | None = None,
        owner: str | None = None,
        parent_run: str = "",
        before: str = "",
        limit: int = 50,
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
        """
        views = Views(self._talks.store.of(tenant))
        return await views.list(session_id, state, owner, before, limit, parent_run)

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
        store = self._talks.store.of(tenant)
        if await store.run(run_id) is None:
            raise NoRun(run_id)
        watched = self.hub.watch((tenant, run_id), Kept(store, run_id), after, follow=follow)
        async with aclosing(watched) as records:
            async for record in records:
                yield record

    async def whole(
        self, tenant: str, run_id: str, *, follow: bool = False
    ) -> AsyncGenerator[Record, None]:
        """Every record of a run from the first on, for a reader that must not be dropped.

        A reader that does not keep up gets the rest from the store.

        Args:
            tenant: The tenant.
            run_id: The run.
            follow: Whether to continue while the run waits.
        """
        after = 0
        while True:
            try:
                async with aclosing(self.watch(tenant, run_id, after, follow=follow)) as records:
                    async for record in records:
                        after = record.seq
                        yield record
                return
            except TooSlow as slow:
                after = slow.after

    async def result(self, tenant: str, run_id: str) -> RunResult:
        """Wait until a run ends or waits, and return its result. Raises `RunNotFound`."""
        store = self._talks.store.of(tenant)

        async def has_stopped() -> bool:
            stored = await store.run(run_id)
            if stored is None:
                raise NoRun(run_id)
            return standing(stored) is not None and (tenant, run_id) not in self._driving.live

        while True:
            await self.hub.until((tenant, run_id), has_stopped, told=True)
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
        await self._tending.end(tenant, run_id)
        return True

    async def steer(self, tenant: str, run_id: str, message: str) -> None:
        """Send another message to an open run: the model reads it before the run ends.

        The message is stored when this returns. A message that comes too late becomes the next run
        of the session, unless the run is cancelled. Raises `RunNotFound`, or `SessionBusy` if the
        run has ended.
        """
        if not message.strip():
            raise NothingAsked
        stored = await self._inbox.say(tenant, run_id, said(message))
        if stored is None:
            raise NoRun(run_id)
        if not stored.is_open:
            raise Busy(stored.session_id, "has ended that run; send the text as a new message")
        if (active := self._driving.live.get((tenant, run_id))) is not None:
            await self._driving.hear(active)

    async def wake(self, tenant: str, run_id: str) -> None:
        """Resume a run whose answer is stored; does nothing for a run that does not wait."""
        if await self._talks.store.of(tenant).run(run_id) is None:
            raise NoRun(run_id)
        if not self.draining:
            await self._tending.wake(tenant, run_id)

    async def drain(self, seconds: float | None = None) -> int:
        """Start no more runs, and let active ones end; returns how many were interrupted.

        Interrupted and queued runs continue in the next process, or at once in another process
        that shares the database.

        Args:
            seconds: How long active runs may take; `drain_s` of the settings if not given.
        """
        self.draining = True
        self._turns.close()
        limit = self.settings.drain_s if seconds is None else seconds
        tasks = [active.task for active in self._driving.live.values()]
        if tasks and limit > 0:
            await asyncio.wait(tasks, timeout=limit)
        remaining = list(self._driving.live.values())
        await self._driving.cut_off(remaining)
        return len(remaining)

    async def left_any(self) -> bool:
        """Whether any process has started runs that have not ended."""
        return await self._queue.is_any_begun()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Resume unfinished runs, and drive queued ones, until the block ends.

        Then active runs are interrupted: call `drain` first to let them end.
        """
        database = self._talks.store.database
        with database.notices.heard_by(self.hub.told):
            async with database.listening(), self._tending.serving():
                try:
                    yield
                finally:
                    await self.drain(0)

    def _poke(self) -> None:
        if not self.draining:
            self._turns.poke()
