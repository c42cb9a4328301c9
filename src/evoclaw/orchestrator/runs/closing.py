"""Closes runs that no process drives: cancelled while they waited, or failed internally."""

from __future__ import annotations

from collections.abc import Sequence

from evoclaw.core import wording
from evoclaw.core.calls import unanswered_result
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
from evoclaw.core.output import parse_output
from evoclaw.core.run import Bus
from evoclaw.core.state import RunState, fold
from evoclaw.core.tracing import enter_run_trace
from evoclaw.governance.budget.options import run_account
from evoclaw.orchestrator.runs.requests import decode_run_request
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.orchestrator.sessions.run_records import last_used_seq
from evoclaw.orchestrator.sessions.session_run import EndRun, close_requests
from evoclaw.store.runs.queue import RunEnd
from evoclaw.store.sessions.sessions import RunUsage, StoredRun

PARENT_ENDED_REASON = "the parent run has ended"
"""Why a sub-run without a driver is closed."""


async def close_run(
    conversations: Conversations,
    stored: StoredRun,
    stop: StopReason,
    reason: str = "",
    *,
    epoch: int | None = None,
    end_run: EndRun | None = None,
) -> Sequence[Record]:
    """Answer all open calls, record how the run ended, and close its requests and its account.

    No model and no tool is called. Returns the stored records.

    Args:
        conversations: The sessions of its tenant.
        stored: The run; it must be open, and no process may drive it.
        stop: The stop reason.
        reason: The explanation for people.
        epoch: The epoch of the claim, if several processes may drive the run.
        end_run: Stores the end and releases the run, if it is claimed.
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
    # What the process that drove it had reserved may be spent; it is committed with the end.
    conversations.ledger.close(run_account(stored.id))
    if end_run is not None:
        await end_run(RunEnd(records, messages, spent, stop))
        return records
    await store.append(stored, records, messages, spent, stop, epoch=epoch)
    await close_requests(store, conversations.approvals, stored.id)
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
        events.append(CallFinished(unanswered_result(call, state)))
    text = wording.ending(stop, reason)
    end = RunFinished(
        stop, text, parse_output(text, fields), reason, state.turn, state.calls,
        tuple(state.tools_used), state.usage, state.cost,
    )  # fmt: skip
    return [*events, end]
