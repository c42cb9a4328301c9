"""What a caller wants of every reply: a call, some tools, an end at some text, other names."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from evoclaw.core.events import Replied, ReplyEvent, TextDelta
from evoclaw.core.history import History
from evoclaw.core.messages import Finish, Reply, TextBlock, ToolCall, ToolResult, user
from evoclaw.core.ports import Request
from evoclaw.core.profile import Profile
from evoclaw.core.tools import Tool
from evoclaw.core.toolset import Toolset
from evoclaw.orchestrator.runs.reply_options import ReplyOptions, ReplyOptionsProvider
from evoclaw.providers.scripted import calls, says

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS = Toolset([Tool(name, "", SCHEMA) for name in ("read", "caller.read", "weather")])
SWAPPED = {"caller.read": "read", "read": "agent_read"}


class Model:
    """Replies in given pieces, and keeps what it was asked."""

    model = "scripted/model"
    profile = Profile()

    def __init__(self, reply: Reply, *pieces: str) -> None:
        self._reply, self._pieces = reply, pieces
        self.asked: list[Request] = []

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        self.asked.append(request)
        for piece in self._pieces:
            yield TextDelta(piece)
        yield Replied(self._reply)


async def ask(
    options: ReplyOptions, model: Model, history: History | None = None, **more: Any
) -> tuple[str, Reply]:
    """The text that was streamed, and the reply."""
    request = Request(history or History([user("x")]), TOOLS, **more)
    events = [event async for event in ReplyOptionsProvider(model, options).stream(request)]
    assert isinstance(last := events[-1], Replied)
    return "".join(event.text for event in events if isinstance(event, TextDelta)), last.reply


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["one END two"], "one "),
        (["one E", "N", "D two"], "one "),
        (["one E", "NGINE"], "one ENGINE"),
        (["one EN"], "one EN"),
        (["EEND", "x"], "E"),
        (["one STOP END"], "one "),
    ],
)
async def test_a_reply_ends_where_a_stop_text_begins(pieces: list[str], shown: str) -> None:
    model = Model(says("".join(pieces)), *pieces)
    text, reply = await ask(ReplyOptions(stop=("END", "STOP")), model)
    assert text == reply.text == shown
    assert model.asked[0].stop == ("END", "STOP"), "a server that can stop does"


async def test_calls_after_a_stop_text_are_dropped() -> None:
    _, reply = await ask(ReplyOptions(stop=("END",)), Model(calls(("read", {}), text="a END")))
    assert (reply.text, reply.calls, reply.finish) == ("a ", (), Finish.STOP)


async def test_a_call_is_forced_unless_the_model_must_close() -> None:
    model = Model(says("hi"))
    await ask(ReplyOptions(must_call=True), model)
    await ask(ReplyOptions(must_call=True), model, offer_tools=False)
    assert [request.must_call for request in model.asked] == [True, False]


async def test_only_the_named_tools_are_offered_and_called() -> None:
    model = Model(calls(("read", {}), ("weather", {})))
    _, reply = await ask(ReplyOptions(must_call=True, only=("weather",)), model)
    assert [tool.name for tool in model.asked[0].tools] == ["weather"]
    assert [call.name for call in reply.calls] == ["weather"]


async def test_the_model_is_shown_other_names_and_records_keep_their_own() -> None:
    earlier = Reply(calls=(ToolCall("a", "caller.read", "{}"), ToolCall("b", "read", "{}")))
    talk = History([user("x"), earlier, ToolResult("a", "caller.read", (TextBlock("1"),))])
    model = Model(calls(("read", {}), ("agent_read", {}), ("weather", {})))
    options = ReplyOptions(names=SWAPPED)
    _, reply = await ask(options, model, talk)
    assert [tool.name for tool in model.asked[0].tools] == ["agent_read", "read", "weather"]
    shown = model.asked[0].history
    assert isinstance(first := shown[1], Reply)
    assert [call.name for call in first.calls] == ["read", "agent_read"]
    assert isinstance(result := shown[2], ToolResult)
    assert result.name == "read"
    assert [call.name for call in reply.calls] == ["caller.read", "read", "weather"]


async def test_a_growing_history_is_renamed_message_by_message() -> None:
    talk = History([user("x")])
    model = Model(says("hi"))
    provider = ReplyOptionsProvider(model, ReplyOptions(names=SWAPPED))
    for _ in range(2):
        async for _event in provider.stream(Request(talk, TOOLS)):
            pass
        talk.append(Reply(calls=(ToolCall("b", "read", "{}"),)))
    first, second = (request.history for request in model.asked)
    assert first is second
    assert len(second) == 2
