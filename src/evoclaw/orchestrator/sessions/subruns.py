"""Sub-runs: their limits, how many are active, and how one is stopped with its parent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import TypeAlias

from msgspec import Struct

from evoclaw.core.agent import LoopSettings
from evoclaw.core.bus import Bus
from evoclaw.core.deadline import Deadline
from evoclaw.core.events import (
    CallJudged,
    CallOutput,
    CallStarted,
    Event,
    Prompted,
    ReasoningDelta,
    Record,
    Replied,
    RunFinished,
    StopReason,
    TextDelta,
    ToolsChanged,
    TurnStarted,
)
from evoclaw.core.labels import LOCAL
from evoclaw.core.ledgers import CALLS, DOLLARS, TOKENS, TURNS
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import (
    Message,
    Reply,
    ToolResult,
    UserMessage,
)
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Ports, Sink, nothing_said
from evoclaw.core.state import RunState
from evoclaw.governance.budget.foresight import micros
from evoclaw.governance.budget.policy import Budget
from evoclaw.governance.budget.settings import BudgetSettings
from evoclaw.orchestrator.sessions.pieces import Pieces
from evoclaw.store.databases.notices import Kind, Notice
from evoclaw.store.governing.approvals import ApprovalStore
from evoclaw.store.sessions.sessions import Session, SessionStore, Spent, StoredRun

GRACE = 5.0
"""Seconds that a cancelled sub-run has to record how far it came."""
PASSING = TextDelta | ReasoningDelta | CallOutput | ToolsChanged | TurnStarted | CallJudged
"""Events whose records are stored together with the next durable one: if a crash loses them,
nothing was done that they tell of."""
HELD = 1_000
"""Transient records that are buffered; more are stored without waiting for a durable one."""
SKIPPED = 2 * HELD
"""Record numbers that a resumed run skips: a watcher may have seen records that were not stored,
and must not take new records with the same numbers for those."""


Key: TypeAlias = tuple[str, str]
"""A tenant, and an id that is unique within it."""
TAGGED = re.compile(r"t[0-9a-f]{16}-")
"""The prefix of run ids of tenants other than `local`."""


def run_id_of(tenant: str, run_id: str) -> str:
    """The id of a tenant's run: no run of another tenant can have it, whatever id a user chooses.

    Edges, ledgers and approvals know a run and its calls by the id alone. Runs of `local` keep the
    ids that were chosen for them.
    """
    if tenant == LOCAL.tenant and not TAGGED.match(run_id):
        return run_id
    tag = f"t{sha256(tenant.encode()).hexdigest()[:16]}-"
    return run_id if run_id.startswith(tag) else f"{tag}{run_id}"


class Limits(Struct, frozen=True):
    """What a run and all its sub-runs may spend together, and how many there may be."""

    budget: BudgetSettings = BudgetSettings()
    depth: int = 3
    """Levels of sub-runs below a run."""
    side_by_side: int = 4
    """Concurrent sub-runs of one run; the others wait for a slot."""
    at_once: int = 16
    """Active sub-runs of the whole tree; more are rejected."""


@dataclass(eq=False, slots=True)
class Family:
    """All sub-runs below a root run."""

    limits: Limits
    under_way: int = 0
    """Sub-runs that were started and have not ended."""


def spent_before(spent: Spent, settings: BudgetSettings) -> dict[str, int]:
    """What a run spent before a restart, for a ledger that does not know it."""
    found = {TURNS: spent.turns, CALLS: spent.calls, TOKENS: spent.tokens_in + spent.tokens_out}
    if spent.cost is not None:
        found[DOLLARS] = micros(spent.cost)
    elif settings.dollars is not None and settings.unpriced == "refuse":
        # A reply had no known price: the whole budget counts as spent.
        found[DOLLARS] = micros(settings.dollars)
    return found


@dataclass(eq=False, slots=True)
class Child:
    """A sub-run that is active beside its parent run."""

    run_id: str
    session_id: str
    deadline: Deadline
    task: asyncio.Task[None]

    async def end(self, *, clean: bool) -> None:
        """Stop the sub-run and wait for its task.

        Args:
            clean: Cancel it, so that its records say so; else interrupt it where it is, to be
                continued when the parent run is resumed.
        """
        if clean:
            self.deadline.cancel()
            await asyncio.wait([self.task], timeout=GRACE)
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])


@dataclass(frozen=True, slots=True)
class Hold:
    """What the driver of a run brings: its epoch, and its steering messages."""

    epoch: int | None = None
    """The epoch of the claim: writes are rejected once another process has a higher one. None for a
    process that has the store for itself."""
    steering: Callable[[], Sequence[UserMessage]] = nothing_said


ALONE = Hold()


def seq_after(records: Sequence[Record]) -> int:
    """The last record number that a run has used, also for records seen by watchers and lost."""
    if not records:
        return 0
    last = records[-1]
    return last.seq if isinstance(last.event, RunFinished) else last.seq + SKIPPED


def _leads_on(event: Event) -> bool:
    """Whether another record follows at once and is committed with it, before anything is done."""
    return isinstance(event, CallStarted) or (isinstance(event, Replied) and event.reply.has_calls)


def heard_in(records: Sequence[Record]) -> int:
    """How many steering messages a run has read."""
    events = [record.event for record in records]
    return sum(isinstance(event, Prompted) and event.why == "steer" for event in events)


def whole_turns(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without a last reply whose calls are not all answered."""
    end = len(messages)
    while end and isinstance(messages[end - 1], ToolResult):
        end -= 1
    reply = messages[end - 1] if end else None
    cut = isinstance(reply, Reply) and len(reply.calls) > len(messages) - end
    return messages[: end - 1] if cut else messages


@dataclass(eq=False, slots=True)
class LiveRun:
    """A run of a session in this process."""

    store: SessionStore
    session: Session
    stored: StoredRun
    state: RunState
    settings: LoopSettings
    deadline: Deadline
    family: Family
    capabilities: frozenset[str]
    places: asyncio.Semaphore
    seq: int = 0
    """The last record number used."""
    known: int = 0
    """How many messages are stored."""
    heard: int = 0
    """How many steering messages the run has read."""
    hold: Hold = ALONE
    together: bool = False
    """Commit a reply, the budget reserved for its calls, and its commands together."""
    approvals: ApprovalStore | None = None
    """Where its calls wait for approval."""
    children: list[Child] = field(default_factory=list[Child])
    ports: Ports = field(init=False)
    """Set last: the tools get this run as a dependency."""
    budget: Budget = field(init=False)
    """The budget of the run and its sub-runs."""
    pipeline: Pipeline = field(init=False)
    """The call pipeline; its policies also judge the sub-runs."""
    sinks: tuple[Sink, ...] = ()
    """Sinks of the run, whichever process drives it."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when this process no longer drives the run."""

    async def records(self, sinks: Sequence[Sink] = ()) -> AsyncGenerator[Record, None]:
        """Start or resume the loop; each durable record is stored before the next step."""
        bus = Bus(self.stored.id, (self.budget, *self.sinks, *sinks), seq=self.seq)
        events = run_loop(self.state, self.ports, self.settings, self.deadline)
        notices, key = self.store.database.notices, (self.store.tenant, self.stored.id)
        buffer = Pieces(self._keep_pieces, partial(notices.is_wanted, *key))
        stop: StopReason | None = None
        try:
            with notices.driven(*key, buffer.hurry):
                async with aclosing(events):
                    async for event in events:
                        record = bus.publish(event)
                        if isinstance(event, RunFinished):
                            stop = event.stop
                        if isinstance(event, PASSING) and len(buffer) < HELD - 1:
                            buffer.add(record)
                        else:
                            await buffer.settled()
                            await self._keep([*buffer.take(), record], stop)
                        yield record
        finally:
            await buffer.close()
            clean = stop is not None and stop is not StopReason.WAITING
            await self._end_children(clean=clean)

    async def _keep_pieces(self, records: Sequence[Record]) -> None:
        """Store records for watchers in other processes; without records, have them check again."""
        store, stored = self.store, self.stored
        if not records:
            await store.database.announce((Notice(Kind.KEPT, store.tenant, stored.id),))
            return
        # No message is stored here: messages are stored with their durable records.
        await store.append(stored, records, (), self._spent(), None, epoch=self.hold.epoch)

    async def _keep(self, records: Sequence[Record], stop: StopReason | None) -> None:
        state = self.state
        history = state.history
        messages = [(number, history[number]) for number in range(self.known, len(history))]
        spent = self._spent()
        wait = not (self.together and _leads_on(records[-1].event))
        await self.store.append(
            self.stored, records, messages, spent, stop, epoch=self.hold.epoch, wait=wait
        )
        self.known = len(history)
        if stop is not None and stop is not StopReason.WAITING:
            await self.give_up()

    def _spent(self) -> Spent:
        state = self.state
        return Spent(state.turn, state.calls, state.usage.input, state.usage.output, state.cost)

    async def give_up(self) -> None:
        """Close the open questions and approvals of the run."""
        closing = [self.store.questions.give_up(self.stored.id)]
        if self.approvals is not None:
            closing.append(self.approvals.give_up(self.stored.id, self.store.tenant))
        await asyncio.gather(*closing)  # in one commit

    async def _end_children(self, *, clean: bool) -> None:
        running = [child for child in self.children if not child.task.done()]
        await asyncio.gather(*(child.end(clean=clean) for child in running))
