"""The context window: what the model is shown of a long history, which itself is never cut.

Older results are replaced by stubs first; then older turns by a summary. A call is never separated
from its result, and the instructions and the user's task always stay.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

from evoclaw.core.events import ContextTrimmed
from evoclaw.core.history import History, size_of
from evoclaw.core.labels import Label
from evoclaw.core.messages import (
    ImageBlock,
    Reply,
    SystemMessage,
    TextBlock,
    ToolResult,
    UserMessage,
    label_of,
)
from evoclaw.core.truncate import truncate_middle


def trimmed_view(history: History, trimmed: ContextTrimmed, task: int) -> History:
    """The view of a history that `trimmed` describes."""
    shown = History()
    summary_due = trimmed.drop_before > 0
    for index, message in enumerate(history):
        if isinstance(message, SystemMessage) or index == task:
            shown.append(message)
        elif index < trimmed.drop_before:
            if summary_due:
                shown.append(summary_message(trimmed.summary, history.label))
                summary_due = False
        elif isinstance(message, ToolResult):
            shown.append(_shown_result(message, index, trimmed))
        else:
            shown.append(message)
    return shown


def summary_message(summary: str, label: Label) -> UserMessage:
    """The message that is shown in place of older turns."""
    return UserMessage((TextBlock(f"[Earlier turns, summarised]\n{summary}", label),))


def _shown_result(result: ToolResult, index: int, trimmed: ContextTrimmed) -> ToolResult:
    if index < trimmed.elide_before:
        return _stub(result)
    if trimmed.result_chars and size_of(result) > trimmed.result_chars:
        blocks = tuple(
            block if isinstance(block, ImageBlock) else TextBlock(cut, block.label)
            for block in result.blocks
            for cut in [truncate_middle(getattr(block, "text", ""), trimmed.result_chars)]
        )
        return ToolResult(result.call_id, result.name, blocks, result.error)
    return result


def _stub(result: ToolResult) -> ToolResult:
    note = f"[{size_of(result)} characters left out to save room; call the tool again if needed]"
    if size_of(result) <= len(note):
        return result
    return ToolResult(
        result.call_id, result.name, (TextBlock(note, label_of(result)),), result.error
    )


def plan_trim(
    history: History, task: int, *, room: int, previous: ContextTrimmed | None = None
) -> ContextTrimmed:
    """Choose what to leave out so that about `room` characters remain."""
    ends = _turn_ends(history)
    last_turn = ends[-2] if len(ends) > 1 else 0
    drop = previous.drop_before if previous else 0
    summary = previous.summary if previous else ""

    def overflows(plan: ContextTrimmed) -> bool:
        return trimmed_view(history, plan, task).size > room

    # The more is left out, the less is shown: bisection finds the first plan that fits.
    for plans in (
        [ContextTrimmed(end, drop, summary) for end in ends[:-1]],
        [ContextTrimmed(last_turn, end, summary) for end in ends[:-1] if end > drop],
    ):
        first = bisect_left(plans, True, key=lambda plan: not overflows(plan))
        if first < len(plans):
            return plans[first]
    results = sum(isinstance(history[i], ToolResult) for i in range(last_turn, len(history)))
    return ContextTrimmed(last_turn, max(last_turn, drop), summary, max(500, room // (results + 1)))


def _turn_ends(history: History) -> list[int]:
    """Where the history can be cut without splitting a call from its result."""
    ends = [
        index + 1
        for index, (message, following) in enumerate(pairwise(history))
        if not isinstance(following, ToolResult)
        and not (isinstance(message, Reply) and message.calls)
        and not isinstance(message, SystemMessage)
    ]
    return [*ends, len(history)]
