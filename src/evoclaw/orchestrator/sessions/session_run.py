"""A run of a session in this process: runs the loop and stores each record before the next step.

Also its sub-runs: their limits, how many are active, and how one is stopped with its parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from msgspec import Struct

from evoclaw.core.agent import LoopSettings
from evoclaw.core.deadline import Deadline
from evoclaw.core.events import (
    CallStarted,
    Event,
    Record,
    Replied,
    RunFinished,
    StopReason,
)
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import (
    UserMessage,
)
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Ports, Sink, no_steering
from evoclaw.core.run import Bus
from evoclaw.core.state import RunState
from evoclaw.governance.budget.policy import RunBudget
from evoclaw.governance.budget.settings import BudgetSettings
from evoclaw.orchestrator.sessions.run_records import (
    MAX_BUFFERED_RECORDS,
    TRANSIENT_EVENTS,
    RecordBuffer,
)
from evoclaw.store.databases.notices import Notice, NoticeKind
from evoclaw.store.governance.approvals import ApprovalStore
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore, StoredRun

SUBRUN_CANCEL_GRACE_S = 5.0
"""Seconds that a cancelled sub-run has to record how far it came."""


class RunLimits(Struct, frozen=True):
    """What a run and all its sub-runs may spend together, and how many there may be."""

    budget: BudgetSettings = BudgetSettings()
    max_depth: int = 3
    """Levels of sub-runs below a run."""
    max_concurrent_per_run: int = 4
    """Concurrent sub-runs of one run; the others wait for a slot."""
    max_active: int = 16
    """Active sub-runs of the whole tree; more are rejected."""


@dataclass(eq=False, slots=True)
class SubrunTree:
    """All sub-runs below a root run."""

    limits: RunLimits
    active_count: int = 0
    """Sub-runs that were started and have not ended."""


@dataclass(eq=False, slots=True)
class ActiveSubrun:
    """A sub-run that is active beside its parent run."""

    run_id: str
    session_id: str
    deadline: Deadline
    task: asyncio.Task[None]

    async def stop(self, *, clean: bool) -> None:
        """Stop the sub-run and wait for its task.

        Args:
            clean: Cancel it, so that its records say so; else interrupt it where it is, to be
                continued when the parent run is resumed.
        """
        if clean:
            self.deadline.cancel()
            await asyncio.wait([self.task], timeout=SUBRUN_CANCEL_GRACE_S)
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])


@dataclass(frozen=True, slots=True)
class DriverContext:
    """What the driver of a run brings: its epoch, and its steering messages."""

    epoch: int | None = None
    """The epoch of the claim: writes are rejected once another process has a higher one. None for a
    process that has the store for itself."""
    steering: Callable[[], Sequence[UserMessage]] = no_steering


SOLE_DRIVER = DriverContext()


def _commits_with_next(event: Event) -> bool:
    """Whether another record follows at once and is committed with it, before anything is done."""
    return isinstance(event, CallStarted) or (isinstance(event, Replied) and event.reply.has_calls)


@dataclass(eq=False, slots=True)
class SessionRun:
    """A run of a session in this process."""

    store: SessionStore
    session: Session
    stored: StoredRun
    state: RunState
    settings: LoopSettings
    deadline: Deadline
    tree: SubrunTree
    capabilities: frozenset[str]
    subrun_slots: asyncio.Semaphore
    seq: int = 0
    """The last record number used."""
    stored_messages: int = 0
    """How many messages are stored."""
    steering_taken: int = 0
    """How many steering messages the run has read."""
    driver: DriverContext = SOLE_DRIVER
    defer_commits: bool = False
    """Commit a reply, the budget reserved for its calls, and its commands together."""
    approvals: ApprovalStore | None = None
    """Where its calls wait for approval."""
    subruns: list[ActiveSubrun] = field(default_factory=list[ActiveSubrun])
    ports: Ports = field(init=False)
    """Set last: the tools get this run as a dependency."""
    budget: RunBudget = field(init=False)
    """The budget of the run and its sub-runs."""
    pipeline: Pipeline = field(init=False)
    """The call pipeline; its policies also judge the sub-runs."""
    sinks: tuple[Sink, ...] = ()
    """Sinks of the run, whichever process drives it."""
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when this process no longer drives the run."""

    async def records(self, sinks: Sequence[Sink] = ()) -> AsyncGenerator[Record, None]:
        """Start or resume the loop; each durable record is stored before the next step."""
        bus = Bus(self.stored.id, (self.budget, *self.sinks, *sinks), seq=self.seq)
        events = run_loop(self.state, self.ports, self.settings, self.deadline)
        notices, key = self.store.database.notices, (self.store.tenant, self.stored.id)
        buffer = RecordBuffer(self._store_transient, partial(notices.is_watched, *key))
        stop: StopReason | None = None
        try:
            with notices.register_driver(*key, buffer.schedule_flush):
                async with aclosing(events):
                    async for event in events:
                        record = bus.publish(event)
                        if isinstance(event, RunFinished):
                            stop = event.stop
                        if (
                            isinstance(event, TRANSIENT_EVENTS)
                            and len(buffer) < MAX_BUFFERED_RECORDS - 1
                        ):
                            buffer.add(record)
                        else:
                            await buffer.wait_flushed()
                            await self._store_records([*buffer.drain(), record], stop)
                        yield record
        finally:
            await buffer.close()
            clean = stop is not None and stop is not StopReason.WAITING
            await self._stop_subruns(clean=clean)

    async def _store_transient(self, records: Sequence[Record]) -> None:
        """Store records for watchers in other processes; without records, have them check again."""
        store, stored = self.store, self.stored
        if not records:
            await store.database.announce(
                (Notice(NoticeKind.RECORDS_STORED, store.tenant, stored.id),)
            )
            return
        # No message is stored here: messages are stored with their durable records.
        await store.append(stored, records, (), self._spent(), None, epoch=self.driver.epoch)

    async def _store_records(self, records: Sequence[Record], stop: StopReason | None) -> None:
        state = self.state
        history = state.history
        messages = [
            (number, history[number]) for number in range(self.stored_messages, len(history))
        ]
        spent = self._spent()
        wait = not (self.defer_commits and _commits_with_next(records[-1].event))
        await self.store.append(
            self.stored, records, messages, spent, stop, epoch=self.driver.epoch, wait=wait
        )
        self.stored_messages = len(history)
        if stop is not None and stop is not StopReason.WAITING:
            await self.close_requests()

    def _spent(self) -> RunUsage:
        state = self.state
        return RunUsage(state.turn, state.calls, state.usage.input, state.usage.output, state.cost)

    async def close_requests(self) -> None:
        """Close the open questions and approvals of the run."""
        closing = [self.store.questions.close_waiting(self.stored.id)]
        if self.approvals is not None:
            closing.append(self.approvals.close_waiting(self.stored.id, self.store.tenant))
        await asyncio.gather(*closing)  # in one commit

    async def _stop_subruns(self, *, clean: bool) -> None:
        running = [child for child in self.subruns if not child.task.done()]
        await asyncio.gather(*(child.stop(clean=clean) for child in running))
