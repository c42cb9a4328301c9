"""Finds stored responses, and continues the conversation of one in its session."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.api.openai.chat_runs import ChatContext
from evoclaw.api.openai.errors import BadRequest
from evoclaw.api.openai.messages import to_history
from evoclaw.api.openai.response_objects import ResponseId, parse_response_id
from evoclaw.api.openai.response_requests import ConvertedRequest, ResponseRequest
from evoclaw.api.openai.schemas import (
    ChatMessage,
    ChatRequest,
    ContentPart,
    FunctionCall,
    ToolCallParam,
)
from evoclaw.core.messages import JSON, Message, Reply, SystemMessage, ToolResult
from evoclaw.core.state import fold
from evoclaw.orchestrator.runs.requests import RunRequest, RunStatus, RunView, decode_run_request
from evoclaw.orchestrator.sessions.caller_tools import CallPosition

ECHO_KEY = "response"
"""The key of a run request's `api_data` with the parameters that a response repeats."""


class StoredResponse(Struct, frozen=True):
    """A stored response: its run, and what the run was started with."""

    id: ResponseId
    view: RunView
    request: RunRequest

    @property
    def echo(self) -> dict[str, JSON]:
        """The parameters of the request that the response repeats."""
        return self.request.api_data[ECHO_KEY]


async def find_response(context: ChatContext, response_id: str, param: str = "") -> StoredResponse:
    """The stored response of an id; a 404 if there is none, or the caller may not see it."""
    parsed = parse_response_id(response_id)
    view = None if parsed is None else await context.runs.get(context.tenant, parsed.run_id)
    if parsed is not None and view is not None and await context.owns(view.session_id):
        blob = await context.conversations.store.run_request(view.run_id)
        request = decode_run_request(blob)
        if request.api_data.get(ECHO_KEY, {}).get("store"):
            return StoredResponse(parsed, view, request)
    raise BadRequest(
        f"There is no stored response {response_id!r}.",
        param or "response_id",
        "previous_response_not_found" if param else "response_not_found",
        status=404,
    )


class Continuation(Struct, frozen=True):
    """How a request continues the conversation of a response."""

    chat: ChatRequest
    session_id: str = ""
    """The session to send it to; empty: its run is resumed with outputs of function calls."""
    history: tuple[Message, ...] = ()
    """With outputs: the whole conversation, if the run cannot be resumed with them."""


async def continued(
    context: ChatContext, data: ResponseRequest, converted: ConvertedRequest
) -> Continuation:
    """How a request continues the response that it names."""
    found = await find_response(context, data.previous_response_id or "", "previous_response_id")
    if found.view.agent != data.model:
        raise BadRequest(
            f"The response belongs to the agent {found.view.agent!r}. Use it as the model.", "model"
        )
    chat = converted.chat
    messages = [message for message in chat.messages if message.role != "tool"]
    if data.instructions and data.instructions == found.echo.get("instructions"):
        messages = messages[1:]  # the conversation has them already
    outputs = [message for message in chat.messages if message.role == "tool"]
    if not outputs:
        session_id = await _session_after(context, found)
        return Continuation(replace(chat, messages=[_joined(messages)]), session_id)
    if any(message.role not in ("system", "developer") for message in messages):
        raise BadRequest(
            "Send the outputs of function calls without other items, then the next message.",
            "input",
        )
    return await _with_outputs(context, found, chat, outputs)


async def _with_outputs(
    context: ChatContext, found: StoredResponse, chat: ChatRequest, outputs: list[ChatMessage]
) -> Continuation:
    """Outputs of function calls, after the reply that made the calls."""
    state = fold(await context.conversations.store.records(found.view.run_id))
    reply = state.open_reply or Reply()
    by_id = {
        CallPosition(found.view.run_id, state.turn, index).call_id(): call
        for index, call in enumerate(reply.calls)
    }
    asked = [
        ToolCallParam(call_id, FunctionCall(call.name, call.arguments))
        for call_id, call in by_id.items()
        if call.id not in state.answers
    ]
    before = [
        ChatMessage("user", found.view.asked or "-"),
        ChatMessage("assistant", tool_calls=asked),
    ]
    messages = [*before, *outputs]
    _, _, *results = to_history(messages)
    given = {
        by_id[result.call_id].id: result for result in results if isinstance(result, ToolResult)
    }
    answers = [
        state.answers.get(call.id) or replace(given[call.id], call_id=call.id)
        for call in reply.calls
    ]
    history = [message for message in state.history if not isinstance(message, SystemMessage)]
    return Continuation(replace(chat, messages=messages), "", (*history, *answers))


def _joined(messages: list[ChatMessage]) -> ChatMessage:
    """New messages of a conversation as one, because a session continues with one message."""
    if len(messages) == 1 and messages[0].role == "user":
        return messages[0]
    parts: list[ContentPart] = []
    for message in messages:
        content = message.content or ""
        parts += [ContentPart("text", content)] if isinstance(content, str) else content
    return ChatMessage("user", parts)


async def _session_after(context: ChatContext, found: StoredResponse) -> str:
    """The session of a response; a branch of it if the session has continued since, or waits."""
    view = found.view
    latest = await context.runs.list(context.tenant, session_id=view.session_id, limit=1)
    if latest and latest[0].run_id == view.run_id and view.state is RunStatus.ENDED:
        return view.session_id
    if view.state is RunStatus.WAITING:
        await context.runs.cancel(context.tenant, view.run_id)
    return (await context.conversations.branch_after(view.run_id)).id
