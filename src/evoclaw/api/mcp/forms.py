"""The forms that the user of an MCP client is shown: approvals of calls, and questions of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from mcp import types

from evoclaw.api.mcp.requests import FormSchema, McpRequest
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Approval, Approver, Ask, Decision
from evoclaw.core.tools import Call
from evoclaw.core.truncate import truncate_middle
from evoclaw.governance.approvals import displayed_arguments
from evoclaw.orchestrator.people.questions import Question, UserAnswer
from evoclaw.orchestrator.sanitizing import one_line, plain_text

APPROVAL_KEY = "approval"
MAX_SHOWN_CHARS = 4_000
"""Of the arguments of a call, or of a question."""
MAX_REASON_CHARS = 1_000
DECISIONS = {"once": "Allow once", "session": "Allow for the session", "deny": "Deny"}


@dataclass(frozen=True, slots=True)
class FormApprover:
    """Asks the user of an MCP client.

    `fallback` answers if the client shows no forms, or nobody decides.
    """

    request: McpRequest
    fallback: Approver

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Show the call, and why it needs an approval."""
        if not self.request.can_elicit:
            return await self.fallback.approve(call, ask)
        reason = ask.for_people or ask.reason
        message = approval_message(call.name, displayed_arguments(call), reason, call.machine)
        answer = await self.request.elicit(APPROVAL_KEY, message, approval_schema())
        if answer is None:  # the client answers with its next request
            return Approval(Decision.PENDING, ask.reason)
        if answer.action == "cancel":
            return await self.fallback.approve(call, ask)
        decision, reason = approval_decision(answer)
        return Approval(decision, reason)


def approval_message(tool: str, arguments: JSON, reason: str, machine: str = "") -> str:
    """What the user is asked about a call."""
    where = f" on {one_line(machine)}" if machine else ""
    shown = truncate_middle(msgspec.json.encode(arguments).decode(), MAX_SHOWN_CHARS)
    return (
        f"Allow {one_line(tool)}{where}?\n"
        f"Arguments: {plain_text(shown, 2 * MAX_SHOWN_CHARS)}\n"
        f"Why you are asked: {one_line(reason, MAX_REASON_CHARS)}"
    )


def approval_schema(*decisions: str) -> FormSchema:
    """The form of an approval; once or deny, unless other decisions are named."""
    return {
        "type": "object",
        "properties": {
            "decision": {
                "type": "string",
                "title": "Decision",
                "oneOf": [
                    {"const": name, "title": DECISIONS[name]}
                    for name in decisions or ("once", "deny")
                ],
            },
            "reason": {
                "type": "string",
                "title": "Reason",
                "description": "Sent to the model, and recorded",
                "maxLength": MAX_REASON_CHARS,
            },
        },
        "required": ["decision"],
    }


def approval_decision(answer: types.ElicitResult) -> tuple[Decision, str]:
    """The decision of a user, and the reason; everything that is not an approval denies."""
    content = answer.content or {}
    reason = one_line(str(content.get("reason") or ""), MAX_REASON_CHARS)
    if answer.action == "accept":
        match content.get("decision"):
            case "once":
                return Decision.ONCE, reason
            case "session":
                return Decision.SESSION, reason
            case _:
                return Decision.DENY, reason
    missing = "the user closed the form" if answer.action == "cancel" else "the user said no"
    return Decision.DENY, reason or missing


def question_schema(question: Question) -> FormSchema:
    """The form of a question: a choice, a free text, or both."""
    properties: dict[str, Any] = {}
    if question.options:
        choice = {"enum": [one_line(option) for option in question.options]}
        properties["choice"] = (
            {"type": "array", "title": "Choices", "items": {"type": "string", **choice}}
            if question.multiple
            else {"type": "string", "title": "Choice", **choice}
        )
    if not question.options or question.own_words:
        properties["text"] = {"type": "string", "title": "Answer"}
    required = list(properties) if len(properties) == 1 else []
    return {"type": "object", "properties": properties, "required": required}


def question_message(question: Question) -> str:
    """What the user is asked."""
    return plain_text(question.text, MAX_SHOWN_CHARS)


def question_answer(question: Question, answer: types.ElicitResult) -> UserAnswer | None:
    """The answer of a user; None if the user gave none."""
    if answer.action != "accept":
        return None
    content = answer.content or {}
    given = content.get("choice")
    picked = given if isinstance(given, list) else [given] if isinstance(given, str) else []
    known = {one_line(option): option for option in question.options}
    chosen = tuple(known[name] for name in picked if name in known)
    text = str(content.get("text") or "")
    return UserAnswer(chosen, "" if chosen else text)
