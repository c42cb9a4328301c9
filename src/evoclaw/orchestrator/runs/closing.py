"""The end of a run that nobody drives: cancelled while it waited, or ended by a fault of ours."""

from __future__ import annotations

from collections.abc import Sequence

from evoclaw.core import wording
from evoclaw.core.bus import Bus
from evoclaw.core.events import (
    CallFinished,
    Event,
    Record,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
    ToolsChanged,
)
from evoclaw.core.messages import ErrorKind
from evoclaw.core.output import parse_output
from evoclaw.core.state import RunState, fold
from evoclaw.core.tools import failure
from evoclaw.core.tracing import enter
from evoclaw.orchestrator.errands import errand_of
from evoclaw.orchestrator.sessions.sessions import Conversations
from evoclaw.orchestrator.sessions.subruns import seq_after
from evoclaw.store.sessions.sessions import Spent, StoredRun

ABOVE = "the run above has ended"
"""Why a sub-run ends that nobody drives."""
UNKNOWN = "Error: It was started, and the run ended before anybody knew how it went."


async def close_run(
    talks: Conversations,
    stored: StoredRun,
    stop: StopReason,
    reason: str = "",
    *,
    epoch: int | None = None,
) -> Sequence[Record]:
    """Leave no call unanswered, say how the run ended, and give up what it asked.

    Neither the model nor a tool is asked for anything. What is kept is given back.

    Args:
        talks: The sessions of its tenant.
        stored: The run; it must not have ended, and nobody may drive it.
        stop: As what it ends.
        reason: For people.
        epoch: Of the lease, if there are several who may drive it.
    """
    store = talks.store
    before = await store.records(stored.id)
    state = fold(before) if before else RunState(stored.id)
    session = await store.session(stored.session_id)
    enter(stored.root_run, errand_of(await store.errand(stored.root_run)).traceparent)
    sinks = () if session is None else talks.listeners(session, before)
    bus = Bus(stored.id, sinks, seq=seq_after(before))
    known = len(await store.messages(stored.session_id)) if state.started else 0
    records: list[Record] = []
    for event in _events(state, before, stop, reason):
        state.apply(event)
        records.append(bus.publish(event))
    history, usage = state.history, state.usage
    messages = [(number, history[number]) for number in range(known, len(history))]
    spent = Spent(state.turn, state.calls, usage.input, usage.output, state.cost)
    await store.append(stored, records, messages, spent, stop, epoch=epoch)
    await store.questions.give_up(stored.id)
    if talks.approvals is not None:
        await talks.approvals.give_up(stored.id, store.tenant)
    return records


def _events(
    state: RunState, before: Sequence[Record], stop: StopReason, reason: str
) -> Sequence[Event]:
    events: list[Event] = []
    opening = before[0].event if before else None
    fields: Sequence[str] = ()
    if isinstance(opening, RunStarted):
        fields = opening.settings.output_fields
        events.append(RunResumed(opening.model, opening.settings, opening.profile))
        offered = [one.event for one in before if isinstance(one.event, ToolsChanged)]
        events.extend(offered[-1:])  # as the loop would, so that it replays
    for _, call in state.unanswered:
        kind, why = ErrorKind.CANCELLED, wording.not_executed("the run has ended")
        if call.id in state.running:
            kind, why = ErrorKind.UNKNOWN, UNKNOWN
        events.append(CallFinished(failure(call.id, call.name, kind, why)))
    text = wording.ending(stop, reason)
    end = RunFinished(
        stop, text, parse_output(text, fields), reason, state.turn, state.calls,
        tuple(state.tools_used), state.usage, state.cost,
    )  # fmt: skip
    return [*events, end]
