"""Runs as a service: kept before they begin, driven in turn, watched, steered, cancelled, resumed.

Whatever a caller is told is on the disk. A process that dies leaves runs that the next one takes
up; two that share a database never drive the same one.
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
    """All runs of all tenants, as this process begins, drives and shows them."""

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
            talks: The sessions, of any tenant; their database also has the schema of the run
                queue, and that of approvals.
            agent: Who answers when nobody is asked for by name; the first one if not given.
            settings: How many go on at once, and how they are held.
            holder: What this process is called; by its number and start if not given.
            clock: What time it is.
        """
        self.settings = settings or RunSettings()
        self._talks, self._agent = talks, agent
        several = talks.store.database.dialect == "postgres"
        self._queue = (JobQueue if several else RunQueue)(
            talks.store, holder or this_process(), lease_s=self.settings.lease_s, clock=clock
        )
        self._inbox = Inbox(talks.store, clock)
        told = talks.store.database
        self.hub = Hub(self.settings.slow_watcher, notices=told.notices, announce=told.announce)
        self._driving = Driving(talks, self._queue, self._inbox, self.hub, self._poke)
        self._turns = self._chosen_turns()
        self._tending = Tending(
            self._driving, self._queue, self._inbox, talks, self._turns, self.settings
        )
        self.draining = False
        """No run is begun any more."""

    def _chosen_turns(self) -> Turns:
        database, queue = self._talks.store.database, self._queue
        if isinstance(queue, JobQueue):
            return JobTurns(self._driving, queue, self.settings, database)
        return OwnTurns(self._driving, queue, self.settings)

    @property
    def default(self) -> str:
        """Who answers when nobody is asked for by name."""
        return self._agent or next(iter(self._talks.agents), "")

    @property
    def live(self) -> int:
        """How many runs go on in this process."""
        return len(self._driving.live)

    async def start(
        self, who: Principal, errand: Errand, *, key: str = "", run_id: str = ""
    ) -> tuple[RunView, bool]:
        """Begin a run, or find the one that was begun so; it is kept when this returns.

        Raises `Draining`, `TooMany`, `AgentNotFound`, `NoSession`, `OtherHistory`, `NothingAsked`,
        or `KeyReused` if the key was used for another errand; `StoreFull` if there is no room.

        Args:
            who: On whose behalf; the owner of a session that is made for it.
            errand: What it is begun with.
            key: An idempotency key of the caller: the same one with the same errand is one run,
                also when asked for twice at once, or again after a restart.
            run_id: One of the caller's own; given again, it is that run.

        Returns:
            The run, and whether it was begun just now.
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
        # A caller who goes away must not leave a run that is held and not driven.
        placed = await asyncio.shield(asyncio.ensure_future(self._put(who.tenant, entry)))
        self._refuse(placed, entry)
        assert placed.run is not None
        views = Views(self._talks.store.of(who.tenant))
        return await views.of(placed.run), placed.outcome is Outcome.NEW

    async def _where(self, who: Principal, errand: Errand) -> tuple[Session, bool]:
        """The session of an errand, and whether it is to be made."""
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
                raise TooMany("all", limits.queued)
            case Outcome.FULL_TENANT:
                raise TooMany("yours", limits.queued_per_tenant)
            case Outcome.FULL_SESSION:
                raise TooMany("this session", limits.queued_per_session)
            case Outcome.NEW | Outcome.SAME:
                pass

    async def look(self, tenant: str, run_id: str) -> RunView | None:
        """One run as it stands; None if the tenant has none of that id."""
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
            tenant: Whose.
            session_id: Only those of one session.
            state: Only those that stand so.
            owner: Only those of somebody's sessions.
            parent_run: Only those that this run began.
            before: Only those begun before this run: the last one of the page before.
            limit: How many at most.
        """
        views = Views(self._talks.store.of(tenant))
        return await views.list(session_id, state, owner, before, limit, parent_run)

    async def watch(
        self, tenant: str, run_id: str, after: int = 0, *, follow: bool = False
    ) -> AsyncGenerator[Record, None]:
        """Every record of a run after one number: those that are kept, then as it happens.

        It ends when the run has ended, or waits for somebody. Raises `NoRun`; and `TooSlow` for a
        watcher that does not keep up, whose `after` says where to go on.

        Args:
            tenant: Whose.
            run_id: Of the run.
            after: The number of the last record that is known.
            follow: Whether to go on while it waits.
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
        """Every record from the first on, for whoever cannot be dropped.

        Who does not keep up is given the rest from the store: the answer is at the end of it.

        Args:
            tenant: Whose.
            run_id: Which.
            follow: Whether to go on while the run waits for somebody.
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
        """Wait until a run has ended or waits for somebody; what came of it. Raises `NoRun`."""
        store = self._talks.store.of(tenant)

        async def stands() -> bool:
            stored = await store.run(run_id)
            if stored is None:
                raise NoRun(run_id)
            return standing(stored) is not None and (tenant, run_id) not in self._driving.live

        while True:
            await self.hub.until((tenant, run_id), stands, told=True)
            meter, records = RunMeter(), await store.records(run_id)
            for record in records:
                meter.receive(record)
            if records and isinstance(end := records[-1].event, RunFinished):
                return result_of(run_id, end, meter.metrics())

    async def cancel(self, tenant: str, run_id: str) -> bool:
        """Have a run end, wherever it goes on; False if there is none, or it has ended.

        It is certain when this returns, also if the process dies: a run that goes on ends as soon
        as its calls let go, one that is queued or waits right away. Its sub-runs end with it.
        """
        if not await self._inbox.cancel(tenant, run_id):
            return False
        await self._tending.end(tenant, run_id)
        return True

    async def steer(self, tenant: str, run_id: str, message: str) -> None:
        """Say something to a run that goes on: it hears it before it decides whether it is done.

        It is kept when this returns. What comes too late for the run becomes the next one of its
        session, unless the run is cancelled. Raises `NoRun`, or `Busy` if the run has ended.
        """
        if not message.strip():
            raise NothingAsked
        stored = await self._inbox.say(tenant, run_id, said(message))
        if stored is None:
            raise NoRun(run_id)
        if not stored.is_open:
            raise Busy(stored.session_id, "has ended that run; say it as a new message")
        if (driven := self._driving.live.get((tenant, run_id))) is not None:
            await self._driving.hear(driven)

    async def wake(self, tenant: str, run_id: str) -> None:
        """What a run waited for is there: it goes on. Harmless for one that does not wait."""
        if await self._talks.store.of(tenant).run(run_id) is None:
            raise NoRun(run_id)
        if not self.draining:
            await self._tending.wake(tenant, run_id)

    async def drain(self, seconds: float | None = None) -> int:
        """Begin no more runs, and let those that go on end; how many were cut off in the end.

        What was cut off, and what was queued, goes on in the next process, or in another one that
        shares the database, at once.

        Args:
            seconds: How long they may take; as the settings say if not given.
        """
        self.draining = True
        self._turns.close()
        limit = self.settings.drain_s if seconds is None else seconds
        tasks = [driven.task for driven in self._driving.live.values()]
        if tasks and limit > 0:
            await asyncio.wait(tasks, timeout=limit)
        left = list(self._driving.live.values())
        await self._driving.cut_off(left)
        return len(left)

    async def left_any(self) -> bool:
        """Whether there are runs that were begun and have not ended, here or elsewhere."""
        return await self._queue.is_any_begun()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Take up what was left unfinished, and drive what is queued, until the block ends.

        Then whatever still goes on is cut off: `drain` first to let it end.
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
