"""When a run ends and why, and which prompt follows a reply that is not accepted yet."""

from __future__ import annotations

from evoclaw.core import evidence, wording
from evoclaw.core.agent import LoopSettings
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import RunEnded
from evoclaw.core.events import Prompted, StopReason
from evoclaw.core.messages import Finish, Reply, TextBlock, UserMessage, user
from evoclaw.core.replies import Confirmation, interrupted, read_confirmation
from evoclaw.core.state import RunState
from evoclaw.core.toolset import Toolset


def ending(
    state: RunState, settings: LoopSettings, deadline: Deadline, tools: Toolset
) -> RunEnded | None:
    """The reason why the run must end now; None if it continues."""
    if deadline.over:
        return interrupted(deadline)
    if state.pending:
        return RunEnded(StopReason.WAITING, "; ".join(state.pending.values()))
    if state.repeated >= settings.repeat_limit:
        names = ", ".join(dict.fromkeys(name for name, _ in state.last_calls))
        reason = f"{names} was called {state.repeated} times in a row with the same arguments"
        return RunEnded(StopReason.LOOP_DETECTED, reason)
    if state.denied:
        name, _ = key = max(state.denied, key=state.denied.__getitem__)
        if (count := state.denied[key]) >= settings.repeat_limit:
            return RunEnded(StopReason.LOOP_DETECTED, f"{name} was denied {count} times")
    if state.open_reply is not None:
        return None
    if state.failed_turns >= settings.tool_error_limit:
        reason = f"{state.failed_turns} turns in a row failed; last error: {state.last_error}"
        return RunEnded(StopReason.ERROR, reason)
    return _answered(state, settings, tools)


def _answered(state: RunState, settings: LoopSettings, tools: Toolset) -> RunEnded | None:
    """End the run if the last reply is its answer, or if the turns are used up."""
    reply = state.last
    if type(reply) is Reply:
        if state.closing and state.turn > settings.max_turns:
            return RunEnded(StopReason.MAX_ITERATIONS)
        if state.turn < settings.max_turns and follow_up(state, settings, tools) is not None:
            return None
        if settings.evidence and (problem := evidence.missing_evidence(state, tools)):
            return RunEnded(StopReason.ERROR, f"the answer lacks evidence: {problem}")
        cut = reply.finish is Finish.LENGTH
        why = "the answer was cut off at the output limit" if cut else ""
        return RunEnded(StopReason.COMPLETED, why)
    if state.turn >= settings.max_turns:
        return RunEnded(StopReason.MAX_ITERATIONS, f"the run used all of its {state.turn} turns")
    return None


def follow_up(state: RunState, settings: LoopSettings, tools: Toolset) -> Prompted | None:
    """The prompt that follows a text-only reply that is not accepted yet."""
    if settings.confirm and tools and isinstance(state.last, Reply):
        prompt = _confirmation(state, state.last, settings)
        if prompt is not None:
            return prompt
    if settings.evidence and (text := evidence.evidence_request(state, tools)):
        # It quotes the model, and the model may quote untrusted text.
        return Prompted(UserMessage((TextBlock(text, state.history.label),)), "evidence")
    return None


def _confirmation(state: RunState, reply: Reply, settings: LoopSettings) -> Prompted | None:
    """The prompt of double confirmation, if the reply needs one."""
    if not reply.text.strip() or state.closing:
        return None
    if state.confirms:  # the model knows the two keywords from the first checklist
        answer, remaining = read_confirmation(reply.text)
        if answer is Confirmation.CONTINUE:
            block = TextBlock(wording.go_on(remaining), state.history.label)
            return Prompted(UserMessage((block,)), "continue")
        if (
            answer is Confirmation.COMPLETED
            or state.confirming
            or evidence.answers_evidence_request(state)
        ):
            return None
    if state.confirms >= settings.confirm_limit:
        return None
    if not state.tools_used and not settings.confirm_without_tools:
        return None
    return Prompted(user(wording.CONFIRM), "confirm")
