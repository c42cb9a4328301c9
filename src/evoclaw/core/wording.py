"""The messages for the model and the user, built from structured facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import json

from evoclaw.core.events import StopReason
from evoclaw.core.messages import JSON
from evoclaw.core.tools import Call, Tool
from evoclaw.core.truncate import truncate_middle

MAX_EDITED_CHARS = 2_000
"""Characters of edited arguments that the model is shown."""

CONFIRM = """\
Before I accept your answer, please verify:
1. Have you completed all parts of the task?
2. Have you verified your results (e.g., by reading output files)?
If the task is not fully complete, continue working. If it is complete, restate your final answer.
Begin your reply with one of:
COMPLETED: <your final answer>
CONTINUE: <what is left to do>"""

CLOSING = "Answer the user now with what you have. Do not call any tool; say what is left undone."


EVIDENCE = "Your answer cannot be accepted as it is: "
EVIDENCE_FORM = """
Answer again, and end with one line:
EVIDENCE: <the receipt ids of everything that was done, as the results show them>
or, if nothing was done:
EVIDENCE: none
Claim nothing as done that has no receipt."""


def machine_offline(machine: str, seconds: float) -> str:
    """Word that the machine of a call is offline, and for how long the call waits for it."""
    return f"{machine} went offline; the call waits for it, {seconds:.0f} s at most"


def machine_online(machine: str) -> str:
    """Word that the machine of a call is online again."""
    return f"{machine} is online again"


def ran_elsewhere(machine: str, home: str, why: str) -> str:
    """Say that a call ran on another machine than `home`, because `home` cannot run it."""
    return f"[This ran on {machine}, because {home} {why}.]"


def receipt(id: str, *, done: bool, acts: bool) -> str:
    """Show the model a receipt's id, and what to do with it."""
    if not done:
        return f"[receipt {id}: this was not done]"
    if not acts:
        return f"[receipt {id}]"
    return f"[receipt {id}: done. End your final answer with the line EVIDENCE: and all such ids]"


def not_receipts(ids: Sequence[str]) -> str:
    """Word receipts that this run has not."""
    return f"{_some(ids)} is not a valid receipt of this run."


def not_done(ids: Sequence[str]) -> str:
    """Word receipts that prove a failure."""
    return f"{_some(ids)} is the receipt of a call that did not succeed."


def not_cited(ids: Sequence[str]) -> str:
    """Word receipts that are missing in an answer."""
    return f"its EVIDENCE line does not cite {_some(ids)}, which was done."


def unproven(problem: str) -> str:
    """Tell the user that an answer was not accepted."""
    return f"I withheld the model's answer because it lacks evidence: {problem}"


def proven(done: Sequence[str], failed: Sequence[str], unproven: Sequence[str]) -> str:
    """Tell the user what the receipts of a run prove, whatever its answer says."""
    lines = ["Proven by receipts: " + (_some(done) if done else "no action") + "."]
    if failed:
        lines.append(f"Did not succeed: {_some(failed)}.")
    if unproven:
        lines.append(f"Without a receipt: {_some(unproven)}.")
    return "\n".join(lines)


def go_on(left: str) -> str:
    """Answer a CONTINUE."""
    return f"Continue: {left}" if left else "Continue with what is left to do."


def tool_not_found(name: str, available: Iterable[str]) -> str:
    """Word an unknown tool."""
    names = ", ".join(available) or "none"
    return (
        f"Error: Tool {_short(name)!r} not found. Available tools: {names}.\n"
        "Please choose an available tool or explain to the user."
    )


def timed_out(call: Call, said: str = "") -> str:
    """Word a call that took too long; its output until then may be enough."""
    command = call.arguments.get("command")
    what = f" Command: {_short(command)!r}." if isinstance(command, str) else ""
    return (
        f"Error: Tool {call.name!r} timed out after {call.timeout:g}s.{what}\n"
        "Try again with a shorter timeout or explain to the user."
    ) + (f"\nThe end of its output so far:\n{said}" if said else "")


def permission_denied(tool: Tool, missing: Sequence[str]) -> str:
    """Word a permission the agent does not hold."""
    names = ", ".join(missing)
    return (
        f"Error: Permission denied for tool {tool.name!r} (requires: {names}).\n"
        f"This agent does not have {names} access. Explain to the user."
    )


def denied(call: Call, reason: str) -> str:
    """Word another refusal of a policy or a person."""
    return f"Error: Tool {call.name!r} was not run: {reason}"


def edited_by_user(arguments: dict[str, JSON]) -> str:
    """Word that a person changed a call before it ran."""
    shown = truncate_middle(json.encode(arguments).decode(), MAX_EDITED_CHARS)
    return f"[The user edited this call before it ran. Its arguments were: {shown}]"


def invalid_parameters(tool: Tool, problem: str) -> str:
    """Word arguments that do not fit."""
    properties: dict[str, JSON] = tool.parameters.get("properties", {})
    required: list[str] = tool.parameters.get("required", [])
    optional = [name for name in properties if name not in required]
    return (
        f"Error: Invalid parameters for {tool.name!r}: {problem}.\n"
        f"Required: [{', '.join(required)}]. Optional: [{', '.join(optional)}]."
    )


def not_executed(why: str) -> str:
    """Word a call that was put off."""
    return f"Not executed: {why}. Ask again if it is still needed."


def outcome_unknown(name: str) -> str:
    """Word a call that was cut off by a crash and is not run again by itself."""
    return (
        f"Error: Tool {name!r} was started before an interruption and its outcome is unknown; it "
        "may have happened.\nIt was not run again. Look first, then decide, or ask the user."
    )


def receipt_refused(name: str, problem: str) -> str:
    """Word a result that was not taken, as it is not proven to be the device's."""
    return (
        f"Error: The device's answer to {name!r} was refused: {problem}.\n"
        "The call may have happened. Look first, then decide, or ask the user."
    )


def crashed(name: str, error: BaseException) -> str:
    """Word a fault of ours inside a tool; the traceback goes to the details, not to the model."""
    return (
        f"Error: Tool {name!r} failed with an internal error ({type(error).__name__}).\n"
        "Try another way or explain to the user."
    )


_ENDINGS = {
    StopReason.MAX_ITERATIONS: "I reached the turn limit before the task was done",
    StopReason.ERROR: "I could not finish the task",
    StopReason.BUDGET_EXCEEDED: "I stopped because the budget is used up",
    StopReason.DURATION_EXCEEDED: "I stopped because the time for this task is used up",
    StopReason.LOOP_DETECTED: "I stopped because I was repeating myself",
    StopReason.CANCELLED: "The run was cancelled",
    StopReason.WAITING: "I am waiting for an answer from a person",
    StopReason.COMPLETED: "The model gave no answer",
}


def ending(stop: StopReason, reason: str) -> str:
    """Tell the user honestly why there is no better answer."""
    why = reason.strip().rstrip(".")
    stop_mark = "" if why.endswith(("?", "!")) else "."
    return f"{_ENDINGS[stop]}: {why}{stop_mark}" if why else f"{_ENDINGS[stop]}."


def _short(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else text[:limit] + "…"


def _some(names: Sequence[str], most: int = 50) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
