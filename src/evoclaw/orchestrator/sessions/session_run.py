"""A run of a session in this process: runs the loop and stores each record before the next step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from evoclaw.core.agent import LoopSettings
from evoclaw.core.bus import Bus
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
from evoclaw.core.state import RunState
from evoclaw.governance.budget.policy import RunBudget
from evoclaw.orchestrator.sessions.record_buffer import (
    MAX_BUFFERED_RECORDS,
    TRANSIENT_EVENTS,
    RecordBuffer,
)
from evoclaw.orchestrator.sessions.subruns import ActiveSubrun, SubrunTree
from evoclaw.store.databases.notices import Notice, NoticeKind
from evoclaw.store.governance.approvals import ApprovalStore
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore, StoredRun


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
