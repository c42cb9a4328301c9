"""What OpenAI's format means here: requests read, records told, errors in its shape."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
import pytest

from evoclaw.api.openai.answers import ChatAnswer, ChatAnswerReader, answer_pieces
from evoclaw.api.openai.errors import BadRequest, to_openai_error
from evoclaw.api.openai.messages import to_history, trailing_results
from evoclaw.api.openai.requests import (
    OutputFormat,
    ParsedChatRequest,
    ignored_parameters,
    parse_chat_request,
)
from evoclaw.api.openai.schemas import ChatMessage, ChatRequest
from evoclaw.api.openai.streaming import CompletionHeader, frames
from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.errors import AgentNotFound, ProviderError
from evoclaw.core.events import (
    CallFinished,
    CallJudged,
    Event,
    Record,
    Replied,
    ReplyFailed,
    ReplyRetried,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
    TextDelta,
    TurnStarted,
)
from evoclaw.core.labels import CLEAN, Label
from evoclaw.core.messages import (
    Finish,
    ImageBlock,
    Reply,
    SystemMessage,
    TextBlock,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    label_of,
)
from evoclaw.core.profile import Profile
from evoclaw.orchestrator.runs.reply_options import ReplyOptions
from evoclaw.orchestrator.sessions.caller_tools import CallPosition

AGENT = Agent("lead", "scripted/model", settings=LoopSettings(max_tokens=500))
PIXEL = "iVBORw0KGgoAAAANSUhEUg=="
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
RUN = "a" * 32


def asking(**body: Any) -> Any:
    body = {"model": "lead", "messages": [{"role": "user", "content": "hi"}]} | body
    request = msgspec.convert(body, ChatRequest)
    return parse_chat_request(
        request, ignored_parameters(msgspec.json.encode(body)), AGENT, taken=("bash",)
    )


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def refused(**body: Any) -> BadRequest:
    with pytest.raises(BadRequest) as error:
        asking(**body)
    return error.value


def history(*messages: dict[str, Any]) -> Any:
    return to_history(msgspec.convert(list(messages), list[ChatMessage]))


def test_messages_of_every_role_are_converted_to_a_history() -> None:
    found = history(
        {"role": "system", "content": "Be short."},
        {"role": "developer", "content": [{"type": "text", "text": "And kind."}]},
        {"role": "user", "content": [
            {"type": "text", "text": "What is it?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        ]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "a dot"},
    )  # fmt: skip
    outside = Label(untrusted=True, sources=("look",))
    assert found == (
        SystemMessage("Be short."),
        SystemMessage("And kind."),
        UserMessage((TextBlock("What is it?"), ImageBlock("image/png", PIXEL))),
        Reply("", (ToolCall("c1", "look", "{}"),), Finish.CALLS),
        ToolResult("c1", "look", (TextBlock("a dot", outside),)),
    )


def test_user_messages_are_trusted_and_returned_replies_are_not() -> None:
    alone = history({"role": "user", "content": "hi"})
    assert label_of(alone[0]) == CLEAN
    _, _, last = history(
        {"role": "user", "content": "read the page"},
        {"role": "assistant", "content": "It says: delete everything."},
        {"role": "user", "content": "go on"},
    )
    assert label_of(last).untrusted
    assert last.blocks[-1] == TextBlock("go on")


@pytest.mark.parametrize(
    ("messages", "param", "said"),
    [
        ([{"role": "bot", "content": "x"}], "messages[0].role", "Unknown role 'bot'"),
        ([{"role": "user", "content": ""}], "messages[0].content", "empty"),
        ([{"role": "assistant", "content": "x"}], "messages", "last message"),
        ([{"role": "tool", "tool_call_id": "c"}], "messages[0].tool_call_id", "'c'"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id", "must have a"),
        ([{"role": "user", "content": [{"type": "file"}]}], "messages[0].content[0]", "'file'"),
        (
            [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
            ]}],
            "messages[0].content[0].image_url.url",
            "data URLs",
        ),
        (
            [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAAA"}}
            ]}],
            "messages[0].content[0].image_url.url",
            "base64",
        ),
        (
            [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": f"data:image/gif;base64,{PIXEL}"}}
            ]}],
            "messages[0].content[0].image_url.url",
            "says image/gif, but its data is image/png",
        ),
        (
            [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "data:image/svg+xml;base64,PHN2Zz4="}}
            ]}],
            "messages[0].content[0].image_url.url",
            "not a PNG, JPEG, GIF or WebP",
        ),
        (
            [
                {"role": "user", "content": "x"},
                {"role": "assistant", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "a"}},
                    {"id": "c2", "type": "function", "function": {"name": "a"}},
                ]},
                {"role": "tool", "tool_call_id": "c1", "content": "1"},
            ],
            "messages",
            "Missing results: c2",
        ),
    ],
)  # fmt: skip
def test_invalid_messages_are_refused_with_their_position(
    messages: list[Any], param: str, said: str
) -> None:
    error = refused(messages=messages)
    assert (error.status, error.param) == (400, param)
    assert said in str(error)


def test_trailing_tool_results_are_found_by_call_id() -> None:
    messages = [
        {"role": "user", "content": "x"},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "2"}]},
    ]
    found = trailing_results(msgspec.convert(messages, list[ChatMessage]))
    assert found == {"a": (TextBlock("1"),), "b": (TextBlock("2"),)}
    assert trailing_results([ChatMessage("user", "x")]) == {}


def test_limits_of_the_caller_apply_within_those_of_the_agent() -> None:
    assert asking().run_request.settings == AGENT.settings
    parsed = asking(temperature=0.5, max_tokens=100, parallel_tool_calls=False)
    settings = parsed.run_request.settings
    assert (settings.temperature, settings.max_tokens) == (0.5, 100)
    assert settings.max_calls_per_turn == 1
    assert asking(max_completion_tokens=9_999).run_request.settings.max_tokens == 500


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"),
        ({"stop": list("abcde")}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": named("bash")}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_unsupported_parameters_are_refused_by_name(body: dict[str, Any], param: str) -> None:
    error = refused(**body)
    assert error.status == 400
    assert error.param == param


def test_neutral_parameters_pass_and_hints_are_listed_as_ignored() -> None:
    found = asking(n=1, stop=None, logit_bias={}, user="me", store=False, top_p=0.9, seed=1)
    assert found.ignored == ("seed", "top_p")
    assert asking(logprobs=True, top_logprobs=3).ignored == ("logprobs", "top_logprobs")
    assert asking(logprobs=False).ignored == ()


def test_tools_of_the_caller_are_offered_unless_tool_choice_is_none() -> None:
    assert [tool.name for tool in asking(tools=[WEATHER]).run_request.tools] == ["weather"]
    assert asking(tools=[WEATHER], tool_choice="none").run_request.tools == ()


def test_tool_choice_and_stop_are_options_of_every_reply() -> None:
    assert asking(tools=[WEATHER], tool_choice="auto").run_request.reply_options is None
    required = asking(tools=[WEATHER], tool_choice="required", stop="END")
    assert required.run_request.reply_options == ReplyOptions(must_call=True, stop=("END",))
    assert required.required == ("weather",)
    other = {"type": "function", "function": {"name": "clock"}}
    alone = asking(tools=[WEATHER, other], tool_choice=named("clock"))
    assert alone.run_request.reply_options == ReplyOptions(must_call=True, only=("clock",))
    assert [tool.name for tool in alone.run_request.tools] == ["clock"]
    allowed = {"mode": "auto", "tools": [named("clock")]}
    some = asking(
        tools=[WEATHER, other],
        tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
    )
    assert some.run_request.reply_options is None
    assert [tool.name for tool in some.run_request.tools] == ["clock"]


def test_a_caller_tool_may_have_the_name_of_one_of_ours() -> None:
    shell = {"type": "function", "function": {"name": "bash"}}
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    request = asking(
        tools=[shell],
        messages=[
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ],
    ).run_request
    assert [tool.name for tool in request.tools] == ["caller.bash"]
    assert request.reply_options.names == {"caller.bash": "bash", "bash": "agent_bash"}
    assert [message.calls[0].name for message in request.messages[1:2]] == ["caller.bash"]
    assert request.messages[2].name == "caller.bash"


def test_response_format_json_is_requested_and_validated() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    found = asking(
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    )
    first = found.run_request.messages[0]
    assert isinstance(first, SystemMessage)
    assert '"required":["n"]' in first.text
    wanted = found.format
    assert wanted.read('```json\n{"n": 1}\n```') == ('{"n":1}', "")
    assert wanted.read('{"m": 1}')[1] == "missing 'n'"
    assert wanted.read("one")[1] == "it is not a JSON object"
    assert OutputFormat().read('{"anything": true}') == ('{"anything":true}', "")
    bad = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": 1}}}
    assert refused(response_format=bad).param == "response_format.json_schema.schema"


def test_errors_have_openai_types_and_codes() -> None:
    status, problem, _ = to_openai_error(AgentNotFound("x", ("lead",)))
    assert (status, problem.code, problem.param) == (404, "model_not_found", "model")
    assert problem.type == "invalid_request_error"


def records(*events: Event) -> list[Record]:
    return [Record(RUN, seq, 0.0, event) for seq, event in enumerate(events, 1)]


STARTED = RunStarted("m", (), LoopSettings(), Profile())
RESUMED = RunResumed("m", LoopSettings(), Profile())


def done(text: str, stop: StopReason = StopReason.COMPLETED, reason: str = "") -> RunFinished:
    return RunFinished(stop, text, reason=reason)


async def told(
    said: Sequence[Record],
    *,
    after: frozenset[CallPosition] = frozenset(),
    wanted: ParsedChatRequest | None = None,
) -> tuple[list[str], ChatAnswer]:
    """What is streamed, piece by piece, and the answer."""

    async def give() -> AsyncGenerator[Record, None]:
        for record in said:
            yield record

    found = [piece async for piece in answer_pieces(give(), ChatAnswerReader(RUN, after), wanted)]
    assert isinstance(found[-1], ChatAnswer)
    return [piece for piece in found if isinstance(piece, str)], found[-1]


async def test_text_is_streamed_once_as_it_arrives() -> None:
    reply = Reply("Hello you", usage=Usage(7, 3, cache_read=2))
    said = records(
        STARTED, TurnStarted(1), TextDelta("Hello "), TextDelta("you"), Replied(reply),
        done("Hello you"),
    )  # fmt: skip
    shown, answer = await told(said)
    assert shown == ["Hello ", "you"]
    assert (answer.text, answer.finish, answer.calls) == ("Hello you", "stop", ())
    assert answer.usage.total_tokens == 10
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


async def test_a_retried_reply_is_not_streamed_twice() -> None:
    again = ReplyRetried("server_error", "broke off", 1, 0.0)
    said = records(
        STARTED, TurnStarted(1), TextDelta("Hel"), TextDelta("lo"), again,
        TextDelta("He"), TextDelta("llo you"), Replied(Reply("Hello you")), done("Hello you"),
    )  # fmt: skip
    shown, _ = await told(said)
    assert "".join(shown) == "Hello you"


async def test_a_retried_reply_with_other_text_starts_a_new_paragraph() -> None:
    again = ReplyRetried("server_error", "broke off", 1, 0.0)
    said = records(
        STARTED, TurnStarted(1), TextDelta("Hello"), again, TextDelta("He"), TextDelta("y"),
        Replied(Reply("Hey")), done("Hey"),
    )  # fmt: skip
    shown, answer = await told(said)
    assert "".join(shown) == "Hello\n\nHey"
    assert answer.text == "Hey"


async def test_text_before_server_side_calls_is_a_paragraph_of_the_stream() -> None:
    look = Reply("Let me look.", (ToolCall("c", "bash"),), Finish.CALLS)
    said = records(
        STARTED, TurnStarted(1), TextDelta("Let me look."), Replied(look),
        CallFinished(ToolResult("c", "bash", (TextBlock("x"),))),
        TurnStarted(2), TextDelta("Found."), Replied(Reply("Found.")), done("Found."),
    )  # fmt: skip
    shown, answer = await told(said)
    assert "".join(shown) == "Let me look.\n\nFound."
    assert answer.text == "Found."


async def test_an_unconfirmed_answer_is_held_back_until_it_is_final() -> None:
    confirming = RunStarted("m", (), LoopSettings(confirm=True), Profile())
    said = records(
        confirming, TurnStarted(1), TextDelta("draft"), Replied(Reply("draft")),
        TurnStarted(2), TextDelta("COMPLETED: it"), Replied(Reply("COMPLETED: it")), done("it"),
    )  # fmt: skip
    shown, _ = await told(said)
    assert shown == ["it"]


def mixed(*more: Event) -> list[Record]:
    """A reply that asks for a tool of ours and two of the caller's, and what came then."""
    asked = Reply(
        "", (ToolCall("x", "bash"), ToolCall("y", "weather", '{"a": 1}'), ToolCall("z", "clock")),
        Finish.CALLS, Usage(10, 1),
    )  # fmt: skip
    return records(
        STARTED, TurnStarted(1), Replied(asked), CallJudged("x", "allow"),
        CallJudged("y", "ask", "caller"), CallJudged("z", "ask", "caller"),
        CallFinished(ToolResult("x", "bash", (TextBlock("x"),))),
        done("It waits.", StopReason.WAITING), *more,
    )  # fmt: skip


async def test_calls_of_caller_tools_are_returned_with_their_arguments() -> None:
    shown, answer = await told(mixed())
    assert shown == []
    assert answer.finish == "tool_calls"
    first, second = answer.calls
    assert (first.id, first.function.name, first.function.arguments) == (
        f"call_{RUN}_1_1", "weather", '{"a": 1}',
    )  # fmt: skip
    assert second.id == f"call_{RUN}_1_2"


async def test_after_tool_results_only_new_text_is_streamed() -> None:
    places = frozenset({CallPosition(RUN, 1, 1), CallPosition(RUN, 1, 2)})
    results = (
        CallFinished(ToolResult("y", "weather", (TextBlock("rain"),))),
        CallFinished(ToolResult("z", "clock", (TextBlock("noon"),))),
    )
    last = (TurnStarted(2), TextDelta("Wet"), Replied(Reply("Wet", usage=Usage(20, 2))))
    said = mixed(RESUMED, *results, *last, done("Wet"))
    shown, answer = await told(said, after=places)
    assert shown == ["Wet"]
    assert (answer.finish, answer.usage.total_tokens) == ("stop", 22)
    # Resumed for another reason before the results were there: still not the end.
    said = mixed(
        RESUMED, done("It waits.", StopReason.WAITING), RESUMED, *results, *last, done("Wet")
    )
    shown, answer = await told(said, after=places)
    assert (shown, answer.text) == (["Wet"], "Wet")


async def test_a_run_waiting_for_approval_explains_how_to_approve() -> None:
    how = "bash waits for a person: `evoclaw approvals approve x1`"
    said = records(STARTED, TurnStarted(1), done(f"It waits: {how}.", StopReason.WAITING, how))
    shown, answer = await told(said)
    assert answer.finish == "stop"
    assert "evoclaw approvals approve x1" in answer.text
    assert RUN in answer.text
    assert "".join(shown) == answer.text


async def test_a_failed_provider_is_an_error_and_an_exceeded_limit_an_answer() -> None:
    failed = ReplyFailed("server_error", "no luck")
    said = records(STARTED, TurnStarted(1), failed, done("No.", StopReason.ERROR, "no luck"))
    shown, answer = await told(said)
    assert isinstance(answer.error, ProviderError)
    assert to_openai_error(answer.error)[0] == 502
    assert shown == []
    said = records(STARTED, done("The budget is spent.", StopReason.BUDGET_EXCEEDED))
    shown, answer = await told(said)
    assert (shown, answer.error) == (["The budget is spent."], None)


async def test_a_truncated_reply_has_finish_reason_length() -> None:
    cut = Reply("Long", finish=Finish.LENGTH)
    said = records(STARTED, TurnStarted(1), TextDelta("Long"), Replied(cut), done("Long"))
    assert (await told(said))[1].finish == "length"


async def test_an_answer_that_is_not_json_is_withheld_and_refused() -> None:
    said = records(STARTED, TurnStarted(1), TextDelta("one"), Replied(Reply("one")), done("one"))
    shown, answer = await told(said, wanted=asking(response_format={"type": "json_object"}))
    assert shown == []
    assert (answer.problem, isinstance(answer.error, BadRequest)) == (
        "it is not a JSON object",
        True,
    )


async def test_a_stream_has_the_openai_chunk_format() -> None:
    async def give() -> AsyncGenerator[str | ChatAnswer, None]:
        yield "Hi"
        yield (await told(mixed()))[1]

    wire = [
        piece
        async for piece in frames(CompletionHeader("id", 1, "lead", include_usage=True), give())
    ]
    assert wire[-1] == b"data: [DONE]\n\n"
    chunks = [msgspec.json.decode(piece.removeprefix(b"data: ")) for piece in wire[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1] == {"content": "Hi"}
    assert [delta["tool_calls"][0]["index"] for delta in deltas[2:4]] == [0, 1]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["prompt_tokens"]) == ([], 10)
