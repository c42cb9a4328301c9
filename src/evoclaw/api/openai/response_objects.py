"""The response object of OpenAI's Responses API, its id, and its output items."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from evoclaw.api.openai.answers import ChatAnswer
from evoclaw.api.openai.errors import to_openai_error
from evoclaw.api.openai.schemas import UsageOut
from evoclaw.core.messages import (
    JSON,
    Block,
    ImageBlock,
    Message,
    Reply,
    SystemMessage,
    ToolResult,
    UserMessage,
)

SERVER_LABEL = "evoclaw"
"""The `server_label` of calls that the agent made with its own tools."""
_RESPONSE_ID = re.compile(r"resp_([A-Za-z0-9-]{1,100})(?:_([1-9][0-9]{0,5}))?")
_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseId(Struct, frozen=True):
    """The id of a response: its run, and the turn that the response before it ended with."""

    run_id: str
    after_turn: int = 0

    def __str__(self) -> str:
        return f"resp_{self.run_id}" + (f"_{self.after_turn}" if self.after_turn else "")


def parse_response_id(text: str) -> ResponseId | None:
    """Parse the id of a response; None if it is malformed."""
    found = _RESPONSE_ID.fullmatch(text)
    return None if found is None else ResponseId(found.group(1), int(found.group(2) or 0))


class ResponseHeader(Struct, frozen=True):
    """What stays the same while a response is made."""

    id: str
    created_at: int
    model: str
    echo: dict[str, JSON]
    """The parameters of the request that the response repeats."""

    def response(
        self,
        status: str,
        output: list[JSON],
        *,
        answer: ChatAnswer | None = None,
        completed_at: int | None = None,
    ) -> dict[str, JSON]:
        """The response object."""
        finish = "" if answer is None else answer.finish
        reason = _INCOMPLETE_REASONS.get(finish) if status == "incomplete" else None
        error = None
        if answer is not None and answer.error is not None:
            _, problem, _ = to_openai_error(answer.error)
            error = {"code": problem.code or "server_error", "message": problem.message}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": completed_at,
            "status": status,
            "error": error,
            "incomplete_details": None if reason is None else {"reason": reason},
            "model": self.model,
            "output": output,
            "usage": None if answer is None else usage_object(answer.usage),
            **self.echo,
        }


def status_of(answer: ChatAnswer, *, is_cancelled: bool) -> str:
    """The status of a response whose answer is known."""
    if answer.error is not None:
        return "failed"
    if is_cancelled:
        return "cancelled"
    return "incomplete" if answer.finish in _INCOMPLETE_REASONS else "completed"


def usage_object(usage: UsageOut) -> JSON:
    """Token usage in the format of the Responses API."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }


def text_part(text: str) -> dict[str, JSON]:
    """The content of a message item."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message_item(item_id: str, text: str | None, status: str) -> dict[str, JSON]:
    """A message of the agent; None: without content yet."""
    content = [] if text is None else [text_part(text)]
    return {
        "type": "message",
        "id": item_id,
        "status": status,
        "role": "assistant",
        "content": content,
    }


def reasoning_item(item_id: str, text: str | None, status: str) -> dict[str, JSON]:
    """The reasoning of the model."""
    summary = [] if text is None else [{"type": "summary_text", "text": text}]
    return {"type": "reasoning", "id": item_id, "status": status, "summary": summary}


def agent_call_item(item_id: str, name: str, arguments: str) -> dict[str, JSON]:
    """A call that the agent makes with a tool of its own."""
    return {
        "type": "mcp_call",
        "id": item_id,
        "server_label": SERVER_LABEL,
        "name": name,
        "arguments": arguments,
        "output": None,
        "error": None,
        "status": "in_progress",
    }


def caller_call_item(
    item_id: str, call_id: str, name: str, arguments: str, *, custom: bool
) -> dict[str, JSON]:
    """A call that the caller has to run."""
    kind = "custom_tool_call" if custom else "function_call"
    return {
        "type": kind,
        "id": item_id,
        "call_id": call_id,
        "name": name,
        "input" if custom else "arguments": arguments,
        "status": "completed",
    }


def input_items(response_id: str, messages: Sequence[Message]) -> list[dict[str, JSON]]:
    """The messages that a run was started with, as input items with ids of their own."""
    found: list[dict[str, JSON]] = []

    def add(kind: str, **fields: JSON) -> None:
        item_id = f"in_{response_id.removeprefix('resp_')}_{len(found)}"
        found.append({"type": kind, "id": item_id, "status": "completed", **fields})

    for message in messages:
        match message:
            case ToolResult():
                add("function_call_output", call_id=message.call_id, output=message.text)
            case SystemMessage(text):
                add("message", role="system", content=[{"type": "input_text", "text": text}])
            case UserMessage(blocks):
                add("message", role="user", content=[_input_part(block) for block in blocks])
            case Reply(text, calls):
                if text:
                    add("message", role="assistant", content=[text_part(text)])
                for call in calls:
                    arguments = call.arguments
                    add("function_call", call_id=call.id, name=call.name, arguments=arguments)
    return found


def _input_part(block: Block) -> JSON:
    if isinstance(block, ImageBlock):
        url = f"data:{block.media_type};base64,{block.data}"
        return {"type": "input_image", "detail": "auto", "image_url": url}
    return {"type": "input_text", "text": block.text}
