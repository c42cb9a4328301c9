"""Closes a run that no process drives: cancelled while waiting, or failed internally."""

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

ABOVE = "the parent run has ended"
"""Why a sub-run without a driver is closed."""
UNKNOWN = "Error: The call was started, and the run ended before its outcome was known."


async def close_run(
    talks: Conversations,
    stored: StoredRun,
    stop: StopReason,
    reason: str = "",
    *,
    epoch: int | None = None,
) -> Sequence[Record]:
    """Answer all open calls, record how the run ended, and close its questions and approvals.

    No model and no tool is called. Returns the stored records.

    Args:
        conversations: The sessions of its tenant.
        stored: The run; it must be open, and no process may drive it.
        stop: The stop reason.
        reason: The explanation for people.
        epoch: The epoch of the claim, if several processes may drive the run.
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
        offered = [record.event for record in before if isinstance(record.event, ToolsChanged)]
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
