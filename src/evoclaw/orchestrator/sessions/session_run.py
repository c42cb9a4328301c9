"""A run of a session in this process: runs the loop and stores each record before the next step.

Also its sub-runs: their limits, how many are active, and how one is stopped with its parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from msgspec import Struct

from evoclaw.core.agent import LoopSettings
from evoclaw.core.deadline import Deadline
from evoclaw.core.events import (
    CallFinished,
    CallStarted,
    Event,
    Prompted,
    Record,
    Replied,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
)
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import Message, UserMessage
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
from evoclaw.store.databases.database import StoreError
from evoclaw.store.databases.notices import Notice, NoticeKind
from evoclaw.store.databases.write_requests import WriteScope, current_write_scope
from evoclaw.store.governance.approvals import ApprovalStore
from evoclaw.store.runs.queue import RunEnd
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


EndRun: TypeAlias = Callable[[RunEnd], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class DriverContext:
    """What the driver of a run brings: its epoch, its steering messages, and how it ends."""

    epoch: int | None = None
    """The epoch of the claim: writes are rejected once another process has a higher one. None for a
    process that has the store for itself."""
    steering: Callable[[], Sequence[UserMessage]] = no_steering
    end_run: EndRun | None = None
    """Stores the end of the run and releases its claim, in one commit."""


SOLE_DRIVER = DriverContext()


async def close_requests(store: SessionStore, approvals: ApprovalStore | None, run_id: str) -> None:
    """Close the open questions and approvals of a run that has ended, in one transaction."""
    closing = [store.questions.close_work(run_id)]
    if approvals is not None:
        closing.append(approvals.close_work(run_id, store.tenant))
    await store.database.write(lambda connection: [close(connection) for close in closing])


UNCOMMITTED_TIMEOUT_S = 0.05
"""Seconds after which a record is committed for its watchers, if the run itself does not wait for
the store until then, as when a rate limit delays its next reply."""


def _commits_with_next(event: Event, state: RunState) -> bool:
    """Whether the run waits for the store before it does anything outside.

    A provider and an executor wait for the store first. After the last result of a turn the model
    is asked again, or the run ends.
    """
    if isinstance(event, CallFinished):
        return state.open_reply is None
    return isinstance(event, RunStarted | RunResumed | Prompted | CallStarted | Replied)


def _is_final_reply(event: Event) -> bool:
    """Whether the run probably ends after an event: it is stored with its end, in one row."""
    return isinstance(event, Replied) and not event.reply.has_calls


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
    """Wait for the store only before a paid request, before the effect of a call, and at the
    end."""
    is_committed: bool = True
    """Whether all its records but the transient ones are known to be committed."""
    on_committed: Callable[[], None] = lambda: None
    """Called when records are committed later than they were yielded."""
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
    _buffer: RecordBuffer = field(init=False)
    _scope: WriteScope | None = None
    _holds_records: bool = False
    """The buffer has records that are not transient: they are stored before anything that depends
    on them."""
    _uncommitted_count: int = 0
    """How many records were not committed when they were yielded."""
    _commit_timer: asyncio.TimerHandle | None = None
    _committing: asyncio.Task[None] | None = None

    async def records(self, sinks: Sequence[Sink] = ()) -> AsyncGenerator[Record, None]:
        """Start or resume the loop; each durable record is stored before the next step."""
        bus = Bus(self.stored.id, (self.budget, *self.sinks, *sinks), seq=self.seq)
        events = run_loop(self.state, self.ports, self.settings, self.deadline)
        notices, key = self.store.database.notices, (self.store.tenant, self.stored.id)
        self._buffer = buffer = RecordBuffer(
            self._store_transient, partial(notices.is_watched, *key)
        )
        self._scope = current_write_scope()
        stop: StopReason | None = None
        try:
            with notices.register_driver(*key, buffer.schedule_flush):
                async with aclosing(events):
                    async for event in events:
                        record = bus.publish(event)
                        if isinstance(event, RunFinished):
                            stop = event.stop
                        is_full = len(buffer) >= MAX_BUFFERED_RECORDS - 1
                        if isinstance(event, TRANSIENT_EVENTS) and not is_full:
                            buffer.add(record)
                        elif self._may_hold(event) and not is_full:
                            self._hold(record)
                        else:
                            await buffer.wait_flushed()
                            await self._store_records([*buffer.drain(), record], stop)
                        yield record
        except (asyncio.CancelledError, GeneratorExit):
            # The process that continues the run need not ask for the same reply again.
            with suppress(StoreError):
                self._send_held()
            raise
        finally:
            self._holds_records = False
            self._stop_commit_timer()
            if self._committing is not None:
                self._committing.cancel()
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
        count = self._uncommitted_count
        self._append_later(records)
        await store.database.flush()
        self._on_committed(count)

    async def _store_records(self, records: Sequence[Record], stop: StopReason | None) -> None:
        if (
            stop is None
            and self.defer_commits
            and _commits_with_next(records[-1].event, self.state)
        ):
            self._append_later(records)
            self._on_uncommitted()
        elif stop in (None, StopReason.WAITING) or self.driver.end_run is None:
            await self._append(records, stop)
            if stop not in (None, StopReason.WAITING):
                await close_requests(self.store, self.approvals, self.stored.id)
        else:
            end = RunEnd(records, self._take_messages(), self._spent(), stop)
            await self.driver.end_run(end)
            self._on_committed(self._uncommitted_count)

    async def _append(self, records: Sequence[Record], stop: StopReason | None) -> None:
        messages, epoch, count = self._take_messages(), self.driver.epoch, self._uncommitted_count
        await self.store.append(self.stored, records, messages, self._spent(), stop, epoch=epoch)
        self._on_committed(count)

    def _append_later(self, records: Sequence[Record]) -> None:
        messages, epoch = self._take_messages(), self.driver.epoch
        self.store.append_later(self.stored, records, messages, self._spent(), epoch=epoch)

    def _take_messages(self) -> Sequence[tuple[int, Message]]:
        """The messages that are to be stored with all records so far."""
        self._holds_records = False
        history, start = self.state.history, self.stored_messages
        self.stored_messages = len(history)
        return [(number, history[number]) for number in range(start, len(history))]

    def _may_hold(self, event: Event) -> bool:
        """Whether a record may be stored together with later ones.

        In a write scope, what depends on it cannot be stored before it. Without one, only the last
        reply is held, which is stored with the end of the run.
        """
        return self.defer_commits and (
            _is_final_reply(event)
            or self._scope is not None
            and _commits_with_next(event, self.state)
        )

    def _hold(self, record: Record) -> None:
        self._buffer.add(record)
        if not self._holds_records and self._scope is not None:
            self._scope.hold(self._send_held)
        self._holds_records = True
        self._on_uncommitted()

    def _send_held(self) -> None:
        if self._holds_records:
            self._append_later(self._buffer.drain())

    async def flush(self) -> None:
        """Wait until all records so far are committed, but the transient ones."""
        if self._holds_records:
            await self._buffer.wait_flushed()
            self._send_held()
        count = self._uncommitted_count
        await self.store.database.flush()
        self._on_committed(count)

    def _on_uncommitted(self) -> None:
        self.is_committed = False
        self._uncommitted_count += 1
        if self._commit_timer is None:
            loop = asyncio.get_running_loop()
            self._commit_timer = loop.call_later(UNCOMMITTED_TIMEOUT_S, self._start_commit)

    def _on_committed(self, count: int) -> None:
        """Everything is committed, unless more came while the store was waited for."""
        if self.is_committed or count != self._uncommitted_count:
            return
        self._stop_commit_timer()
        self.is_committed = True
        self.on_committed()

    def _stop_commit_timer(self) -> None:
        if self._commit_timer is not None:
            self._commit_timer.cancel()
            self._commit_timer = None

    def _start_commit(self) -> None:
        self._commit_timer = None
        self._committing = asyncio.create_task(self.flush())
        # Its write scope has failed: the next step of the run raises that.
        self._committing.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _spent(self) -> RunUsage:
        state = self.state
        return RunUsage(state.turn, state.calls, state.usage.input, state.usage.output, state.cost)

    async def _stop_subruns(self, *, clean: bool) -> None:
        running = [child for child in self.subruns if not child.task.done()]
        await asyncio.gather(*(child.stop(clean=clean) for child in running))
