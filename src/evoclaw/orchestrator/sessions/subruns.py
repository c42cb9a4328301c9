"""A session's run: kept as it happens, never wider than the run above, out of one budget."""

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
"""Seconds that a sub-run has to say how far it came when it is cancelled."""
PASSING = TextDelta | ReasoningDelta | CallOutput | ToolsChanged | TurnStarted | CallJudged
"""Records that are kept together with the next one that matters: if they are lost in a crash,
nothing was done that they tell of."""
HELD = 1_000
"""Records in passing that are kept at the latest, though nothing that matters came."""
SKIPPED = 2 * HELD
"""Numbers that a run leaves out when it goes on after it was cut off: somebody may have seen
records that were not kept yet, and must not take others of the same numbers for those."""


Key: TypeAlias = tuple[str, str]
"""A tenant, and an id that means something within it."""
TAGGED = re.compile(r"t[0-9a-f]{16}-")
"""How the ids of runs of tenants begin."""


def run_id_of(tenant: str, run_id: str) -> str:
    """The id of a tenant's run: no run of another tenant can have it, whatever its user chooses.

    Devices, ledgers and approvals know a run and its calls by the id alone. Runs of `local` have
    the ids that they were given.
    """
    if tenant == LOCAL.tenant and not TAGGED.match(run_id):
        return run_id
    tag = f"t{sha256(tenant.encode()).hexdigest()[:16]}-"
    return run_id if run_id.startswith(tag) else f"{tag}{run_id}"


class Limits(Struct, frozen=True):
    """What a run and all its sub-runs may use together, and how they may stand."""

    budget: BudgetSettings = BudgetSettings()
    depth: int = 3
    """How many sub-runs may stand one above the other."""
    side_by_side: int = 4
    """Sub-runs of one run that go on at once; the others wait for their turn."""
    at_once: int = 16
    """Sub-runs of all together; more are refused."""


@dataclass(eq=False, slots=True)
class Family:
    """The sub-runs of a run and of those below it."""

    limits: Limits
    under_way: int = 0
    """Sub-runs that were begun and have not ended."""


def spent_before(spent: Spent, settings: BudgetSettings) -> dict[str, int]:
    """What a run used before a restart, for a ledger that does not know it."""
    found = {TURNS: spent.turns, CALLS: spent.calls, TOKENS: spent.tokens_in + spent.tokens_out}
    if spent.cost is not None:
        found[DOLLARS] = micros(spent.cost)
    elif settings.dollars is not None and settings.unpriced == "refuse":
        # A reply had no known price: nobody can say that anything is left.
        found[DOLLARS] = micros(settings.dollars)
    return found


@dataclass(eq=False, slots=True)
class Child:
    """A sub-run that goes on beside the run that began it."""

    run_id: str
    session_id: str
    deadline: Deadline
    task: asyncio.Task[None]

    async def end(self, *, clean: bool) -> None:
        """Leave nothing running.

        Args:
            clean: It is cancelled, and its records say so; else it is cut off where it is, to be
                gone on with by whoever resumes the run above.
        """
        if clean:
            self.deadline.cancel()
            await asyncio.wait([self.task], timeout=GRACE)
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])


@dataclass(frozen=True, slots=True)
class Hold:
    """By what right a run is driven, and what is said to it meanwhile."""

    epoch: int | None = None
    """Of its lease: what it does is refused once somebody has a higher one. None is for a process
    that has the store for itself."""
    steering: Callable[[], Sequence[UserMessage]] = nothing_said


ALONE = Hold()


def seq_after(records: Sequence[Record]) -> int:
    """The last number that a run has used, also for records that may have been seen and lost."""
    if not records:
        return 0
    last = records[-1]
    return last.seq if isinstance(last.event, RunFinished) else last.seq + SKIPPED


def _leads_on(event: Event) -> bool:
    """Whether something follows at once that is committed with it, before anything is done."""
    return isinstance(event, CallStarted) or (isinstance(event, Replied) and event.reply.has_calls)


def heard_in(records: Sequence[Record]) -> int:
    """How many messages a run has taken in that were said to it while it went on."""
    events = [record.event for record in records]
    return sum(isinstance(event, Prompted) and event.why == "steer" for event in events)


def whole_turns(messages: Sequence[Message]) -> Sequence[Message]:
    """Messages without a last reply that has calls which are not all answered."""
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
    """The last number of a record that was used."""
    known: int = 0
    """Messages that are kept already."""
    heard: int = 0
    """Messages that it took in while it went on."""
    hold: Hold = ALONE
    together: bool = False
    """A reply, what is set aside for its calls, and its commands are committed together."""
    approvals: ApprovalStore | None = None
    """Where its calls wait for people."""
    children: list[Child] = field(default_factory=list[Child])
    ports: Ports = field(init=False)
    """Given last: its tools are handed this run."""
    budget: Budget = field(init=False)
    """Out of which it is paid, as is everything that it begins."""
    pipeline: Pipeline = field(init=False)
    """What its calls pass through; its policies judge its sub-runs too."""
    sinks: tuple[Sink, ...] = ()
    """Who listens to it, whoever runs it."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """It is no longer driven here."""

    async def records(self, sinks: Sequence[Sink] = ()) -> AsyncGenerator[Record, None]:
        """Run, or go on; each record that matters is on the disk before the next thing happens."""
        bus = Bus(self.stored.id, (self.budget, *self.sinks, *sinks), seq=self.seq)
        events = run_loop(self.state, self.ports, self.settings, self.deadline)
        notices, key = self.store.database.notices, (self.store.tenant, self.stored.id)
        pieces = Pieces(self._keep_pieces, partial(notices.is_wanted, *key))
        stop: StopReason | None = None
        try:
            with notices.driven(*key, pieces.hurry):
                async with aclosing(events):
                    async for event in events:
                        record = bus.publish(event)
                        if isinstance(event, RunFinished):
                            stop = event.stop
                        if isinstance(event, PASSING) and len(pieces) < HELD - 1:
                            pieces.add(record)
                        else:
                            await pieces.settled()
                            await self._keep([*pieces.take(), record], stop)
                        yield record
        finally:
            await pieces.close()
            clean = stop is not None and stop is not StopReason.WAITING
            await self._end_children(clean=clean)

    async def _keep_pieces(self, records: Sequence[Record]) -> None:
        """Keep what somebody elsewhere wants to see; without any, have him look once more."""
        store, stored = self.store, self.stored
        if not records:
            await store.database.announce((Notice(Kind.KEPT, store.tenant, stored.id),))
            return
        # No message is kept by this: they are kept with the records that tell of them.
        await store.append(stored, records, (), self._spent(), None, epoch=self.hold.epoch)

    async def _keep(self, records: Sequence[Record], stop: StopReason | None) -> None:
        state = self.state
        history = state.history
        messages = [(number, history[number]) for number in range(self.known, len(history))]
        spent = self._spent()
        waits = not (self.together and _leads_on(records[-1].event))
        await self.store.append(
            self.stored, records, messages, spent, stop, epoch=self.hold.epoch, wait=waits
        )
        self.known = len(history)
        if stop is not None and stop is not StopReason.WAITING:
            await self.give_up()

    def _spent(self) -> Spent:
        state = self.state
        return Spent(state.turn, state.calls, state.usage.input, state.usage.output, state.cost)

    async def give_up(self) -> None:
        """Nobody waits any more for answers to what it asked."""
        both = [self.store.questions.give_up(self.stored.id)]
        if self.approvals is not None:
            both.append(self.approvals.give_up(self.stored.id, self.store.tenant))
        await asyncio.gather(*both)  # in one commit

    async def _end_children(self, *, clean: bool) -> None:
        running = [child for child in self.children if not child.task.done()]
        await asyncio.gather(*(child.end(clean=clean) for child in running))
