"""What a stored run already did: numbers used, steering taken in, money and turns spent."""

from __future__ import annotations

from collections.abc import Sequence

from evoclaw.core.events import (
    Prompted,
    Record,
    RunFinished,
)
from evoclaw.core.ledgers import CALLS, DOLLARS, TOKENS, TURNS
from evoclaw.core.messages import (
    Message,
    Reply,
    ToolResult,
)
from evoclaw.governance.budget.cost_estimator import to_microdollars
from evoclaw.governance.budget.settings import BudgetSettings
from evoclaw.orchestrator.sessions.record_buffer import MAX_BUFFERED_RECORDS
from evoclaw.store.sessions.sessions import RunUsage

RESUME_SEQ_GAP = 2 * MAX_BUFFERED_RECORDS
"""Record numbers that a resumed run skips: a watcher may have seen records that were not stored,
and must not take new records with the same numbers for those."""


def prior_spend(spent: RunUsage, settings: BudgetSettings) -> dict[str, int]:
    """What a run spent before a restart, for a ledger that does not know it."""
    found = {TURNS: spent.turns, CALLS: spent.calls, TOKENS: spent.tokens_in + spent.tokens_out}
    if spent.cost is not None:
        found[DOLLARS] = to_microdollars(spent.cost)
    elif settings.dollars is not None and settings.unpriced == "refuse":
        # A reply had no known price: the whole budget counts as spent.
        found[DOLLARS] = to_microdollars(settings.dollars)
    return found


def last_used_seq(records: Sequence[Record]) -> int:
    """The last record number that a run has used, also for records seen by watchers and lost."""
    if not records:
        return 0
    last = records[-1]
    return last.seq if isinstance(last.event, RunFinished) else last.seq + RESUME_SEQ_GAP


def steering_count(records: Sequence[Record]) -> int:
    """How many steering messages a run has read."""
    events = [record.event for record in records]
    return sum(isinstance(event, Prompted) and event.why == "steer" for event in events)


def drop_incomplete_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without a last reply whose calls are not all answered."""
    end = len(messages)
    while end and isinstance(messages[end - 1], ToolResult):
        end -= 1
    reply = messages[end - 1] if end else None
    cut = isinstance(reply, Reply) and len(reply.calls) > len(messages) - end
    return messages[: end - 1] if cut else messages
