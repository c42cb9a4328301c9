"""The approver that asks the user of an editor."""

from __future__ import annotations

import msgspec
from acp import RequestError
from acp.helpers import text_block, tool_content
from acp.interfaces import Client
from acp.schema import AllowedOutcome, PermissionOption, ToolCallUpdate
from pydantic import ValidationError

from evoclaw.api.acp.tool_calls import CallViews, fenced
from evoclaw.api.acp.updates import tool_call_id
from evoclaw.core.ports import Approval, Ask, Decision
from evoclaw.core.tools import Call
from evoclaw.governance.approvals import scope_of
from evoclaw.orchestrator.sanitizing import one_line

MAX_REASON_CHARS = 1_000
MAX_SCOPE_CHARS = 1_000
"""Of the words that say what an approval for the session covers."""


class EditorApprover:
    """Asks with `session/request_permission`; any answer that is not an approval denies."""

    def __init__(self, client: Client, session_id: str, views: CallViews) -> None:
        """Ask the client about calls of a session."""
        self._client, self._session_id, self._views = client, session_id, views

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Show the call, why it needs an approval, and what each answer covers."""
        try:
            response = await self._client.request_permission(
                session_id=self._session_id,
                tool_call=self._shown(call, ask),
                options=_options(call, ask),
            )
        except (RequestError, ValidationError) as problem:
            return Approval(Decision.DENY, f"the editor did not ask its user: {problem}")
        except ConnectionError:
            return Approval(Decision.DENY, "the editor is no longer connected")
        match response.outcome:
            case AllowedOutcome(option_id=Decision.ONCE.value):
                return Approval(Decision.ONCE)
            case AllowedOutcome(option_id=Decision.SESSION.value):
                return Approval(Decision.SESSION)
            case _:
                return Approval(Decision.DENY, "the user said no")

    def _shown(self, call: Call, ask: Ask) -> ToolCallUpdate:
        view = self._views.of(call.name, call.arguments)
        where = f" on {one_line(call.machine)}" if call.machine else ""
        reason = one_line(ask.for_people or ask.reason, MAX_REASON_CHARS)
        given = msgspec.json.encode(call.arguments).decode()
        return ToolCallUpdate(
            tool_call_id=tool_call_id(call.request_id),
            title=view.title + where,
            kind=view.kind,
            status="pending",
            content=[
                *(view.content or [fenced(given)]),
                tool_content(text_block(f"Why you are asked: {reason}")),
            ],
            locations=view.locations,
            raw_input=call.arguments,
        )


def _options(call: Call, ask: Ask) -> list[PermissionOption]:
    covers = one_line(scope_of(call, ask).description, MAX_SCOPE_CHARS)
    return [
        PermissionOption(option_id=Decision.ONCE.value, name="Allow once", kind="allow_once"),
        PermissionOption(
            option_id=Decision.SESSION.value, name=f"Always allow {covers}", kind="allow_always"
        ),
        PermissionOption(option_id=Decision.DENY.value, name="Reject", kind="reject_once"),
    ]
