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
from evoclaw.core.tracing import enter_run_trace
from evoclaw.orchestrator.errands import decode_run_request
from evoclaw.orchestrator.sessions.sessions import Conversations
from evoclaw.orchestrator.sessions.subruns import last_used_seq
from evoclaw.store.sessions.sessions import RunUsage, StoredRun

PARENT_ENDED_REASON = "the parent run has ended"
"""Why a sub-run without a driver is closed."""
UNKNOWN_OUTCOME_TEXT = (
    "Error: The call was started, and the run ended before its outcome was known."
)


async def close_run(
    conversations: Conversations,
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
    store = conversations.store
    before = await store.records(stored.id)
    state = fold(before) if before else RunState(stored.id)
    session = await store.session(stored.session_id)
    enter_run_trace(
        stored.root_run, decode_run_request(await store.run_request(stored.root_run)).traceparent
    )
    sinks = () if session is None else conversations.sinks_of(session, before)
    bus = Bus(stored.id, sinks, seq=last_used_seq(before))
    known = len(await store.messages(stored.session_id)) if state.started else 0
    records: list[Record] = []
    for event in _closing_events(state, before, stop, reason):
        state.apply(event)
        records.append(bus.publish(event))
    history, usage = state.history, state.usage
    messages = [(number, history[number]) for number in range(known, len(history))]
    spent = RunUsage(state.turn, state.calls, usage.input, usage.output, state.cost)
    await store.append(stored, records, messages, spent, stop, epoch=epoch)
    await store.questions.close_waiting(stored.id)
    if conversations.approvals is not None:
        await conversations.approvals.close_waiting(stored.id, store.tenant)
    return records


def _closing_events(
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
            kind, why = ErrorKind.UNKNOWN, UNKNOWN_OUTCOME_TEXT
        events.append(CallFinished(failure(call.id, call.name, kind, why)))
    text = wording.ending(stop, reason)
    end = RunFinished(
        stop, text, parse_output(text, fields), reason, state.turn, state.calls,
        tuple(state.tools_used), state.usage, state.cost,
    )  # fmt: skip
    return [*events, end]
