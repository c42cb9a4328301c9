"""Tool names with `.` or `@`: what vendors accept is sent, and calls get the tools' own names."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from evoclaw.core.messages import Reply, TextBlock, ToolCall, ToolResult, user
from evoclaw.core.ports import Request
from evoclaw.core.tools import Tool
from evoclaw.providers.http import Http
from evoclaw.providers.recovered_calls import RecoveredCallsProvider
from evoclaw.providers.request_encoding import vendor_tool_name
from evoclaw.providers.scripted import Scripted, says
from evoclaw.providers.text_calls import TextCallProvider
from tests.support.llm_servers import (
    anthropic_says,
    chunk,
    event,
    ollama_says,
    openai_says,
    serving,
    streamed,
)
from tests.support.provider_requests import history, provider_for, reply_of

ACCEPTED = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
NAMES = ("read", "read@pi", "read.pi", "a" * 60 + ".b@c")
TOOLS = [Tool(name, "Read a file.", SCHEMA) for name in NAMES]
SENT = vendor_tool_name("read@pi")
DONE = "data: [DONE]\n\n"


def replies(dialect: str) -> list[str]:
    """A call of `read@pi` by the name that the vendor was told."""
    if dialect == "openai":
        call = {"index": 0, "id": "c", "function": {"name": SENT, "arguments": "{}"}}
        return [chunk({"tool_calls": [call]}), chunk({}, "tool_calls"), DONE]
    if dialect == "anthropic":
        block: Any = {"type": "tool_use", "id": "c", "name": SENT, "input": {}}
        start, *_, stop, end = anthropic_says()
        return [
            start,
            event({"type": "content_block_start", "index": 0, "content_block": block}),
            stop,
            end,
        ]
    call: Any = {"id": "c", "function": {"name": SENT, "arguments": {}}}
    first: Any = {
        "model": "q",
        "message": {"role": "assistant", "tool_calls": [call]},
        "done": False,
    }
    return [json.dumps(first) + "\n", *ollama_says()]


def names_sent(dialect: str, body: dict[str, Any]) -> list[str]:
    if dialect == "anthropic":
        return [tool["name"] for tool in body["tools"]]
    return [tool["function"]["name"] for tool in body["tools"]]


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "ollama"])
async def test_names_are_sent_as_vendors_accept_them_and_calls_get_the_tools_own(
    dialect: str, http: Http
) -> None:
    earlier = Reply(calls=(ToolCall("b", "read@pi", "{}"),))
    talk = history(user("x"), earlier, ToolResult("b", "read@pi", (TextBlock("ok"),)))
    async with serving(streamed(replies(dialect))) as server:
        reply = await reply_of(provider_for(dialect, server.url, http), Request(talk, TOOLS))
    assert [call.name for call in reply.calls] == ["read@pi"]
    sent = names_sent(dialect, server.requests[0].json)
    assert sent[0] == "read"
    assert all(ACCEPTED.match(name) for name in sent)
    assert len(set(sent)) == len(TOOLS)
    assert sent[1] == SENT
    conversation = json.dumps(server.requests[0].json["messages"])
    assert f'"{SENT}"' in conversation, "the call of an earlier turn has the name of the tool list"
    assert "read@pi" not in conversation


@pytest.mark.parametrize(
    ("dialect", "choice", "stop"),
    [
        ("openai", "required", {"stop": ["END"]}),
        ("anthropic", {"type": "any"}, {"stop_sequences": ["END"]}),
        ("ollama", None, {}),
    ],
)
async def test_a_forced_call_and_stop_texts_are_sent(
    dialect: str, choice: Any, stop: dict[str, Any], http: Http
) -> None:
    request = Request(history(user("x")), TOOLS, must_call=True, stop=("END",))
    async with serving(streamed(replies(dialect))) as server:
        await reply_of(provider_for(dialect, server.url, http), request)
    body = server.requests[0].json
    assert body.get("tool_choice") == choice
    assert {key: body[key] for key in stop} == stop
    assert dialect != "ollama" or body["options"]["stop"] == ["END"]


async def test_a_call_by_the_tools_own_name_is_kept(http: Http) -> None:
    call = {"index": 0, "id": "c", "function": {"name": "read@pi", "arguments": "{}"}}
    pieces = [chunk({"tool_calls": [call]}), chunk({}, "tool_calls"), DONE]
    async with serving(streamed(pieces)) as server:
        reply = await reply_of(
            provider_for("openai", server.url, http), Request(history(user("x")), TOOLS)
        )
    assert reply.calls[0].name == "read@pi"


@pytest.mark.parametrize("written", [SENT, "read@pi"])
async def test_a_call_recovered_from_text_gets_the_tools_own_name(written: str, http: Http) -> None:
    text = json.dumps({"name": written, "arguments": {"path": "note.txt"}})
    async with serving(streamed(openai_says(text))) as server:
        provider = RecoveredCallsProvider(provider_for("openai", server.url, http))
        reply = await reply_of(provider, Request(history(user("x")), TOOLS))
    assert [(call.name, call.arguments) for call in reply.calls] == [
        ("read@pi", '{"path":"note.txt"}')
    ]


@pytest.mark.parametrize("style", ["hermes", "react"])
async def test_calls_in_text_styles_have_the_tools_own_names(style: Any) -> None:
    written = {
        "hermes": '<tool_call>\n{"name": "read@pi", "arguments": {}}\n</tool_call>',
        "react": "Action: read@pi\nAction Input: {}",
    }[style]
    model = Scripted(says(written))
    reply = await reply_of(TextCallProvider(model, style), Request(history(user("x")), TOOLS))
    assert [call.name for call in reply.calls] == ["read@pi"]
    assert '"read@pi"' in model.requests[0].messages[0].text, "no vendor reads a text's names"
