"""OpenAI's own client, unmodified, against agents as models of the Responses API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.core.events import ReasoningDelta, Replied, ReplyEvent, StopReason, TextDelta
from evoclaw.core.messages import Finish, Reply, Usage
from evoclaw.core.ports import Request
from evoclaw.core.profile import Profile
from evoclaw.providers.scripted import calls, says
from tests.support.chat_service import ChatService, HeldModel, script_of, serve_agents
from tests.support.lazy_imports import LazyModule
from tests.support.waiting import until

if TYPE_CHECKING:
    import openai
else:
    openai = LazyModule("openai")

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a town.",
    "parameters": {
        "type": "object",
        "properties": {"town": {"type": "string"}},
        "required": ["town"],
    },
    "strict": False,
}


@asynccontextmanager
async def client(house: ChatService, user: str = "ada") -> AsyncGenerator[Any]:
    bearer = await house.token(user=user)
    made = openai.AsyncOpenAI(api_key=bearer, base_url=f"{house.url}/v1", max_retries=0, timeout=20)
    async with made:
        yield made


class Thinker:
    """A model that reasons before it answers."""

    model = "scripted/thinker"
    profile = Profile()

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        yield ReasoningDelta("Let me ")
        yield ReasoningDelta("think.")
        yield TextDelta("Yes.")
        yield Replied(Reply("Yes.", reasoning="Let me think.", usage=Usage(10, 5)))


async def test_a_response_has_text_usage_and_the_parameters_of_its_request(tmp_path: Path) -> None:
    async with serve_agents(tmp_path, says("It rains.")) as house, client(house) as ai:
        found = await ai.responses.create(
            model="lead",
            instructions="Be short.",
            input="How is it in Bern?",
            metadata={"a": "b"},
            temperature=0.5,
        )
        assert (found.output_text, found.status, found.error) == ("It rains.", "completed", None)
        assert found.usage is not None
        assert (found.usage.input_tokens, found.usage.total_tokens) == (10, 15)
        assert (found.instructions, found.metadata) == ("Be short.", {"a": "b"})
        assert (found.model, found.temperature, found.tool_choice) == ("lead", 0.5, "auto")
        said = [message.text for message in script_of(house).requests[0].messages]
        assert said == ["You lead.", "Be short.", "How is it in Bern?"]
        assert (await ai.responses.retrieve(found.id)).to_dict() == {
            **found.to_dict(),
            "completed_at": pytest.approx(found.completed_at, abs=10),
        }


async def test_the_events_of_a_stream_follow_the_life_of_their_items(tmp_path: Path) -> None:
    async with serve_agents(tmp_path, model=Thinker()) as house, client(house) as ai:
        stream = await ai.responses.create(model="lead", input="Is it so?", stream=True)
        events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    last = events[-1]
    assert last.type == "response.completed"
    reasoning, message = last.response.output
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.summary] == ["Let me think."]
    assert message.type == "message"
    assert last.response.output_text == "Yes."


async def test_the_agents_own_calls_are_items_that_the_client_knows(tmp_path: Path) -> None:
    script = (calls(("work", {"what": "it"}), ("work", {"what": 3}), text="I look."), says("Done."))
    async with serve_agents(tmp_path, *script) as house, client(house) as ai:
        async with ai.responses.stream(model="lead", input="Work!") as stream:
            kinds = [event.type async for event in stream]
            found = await stream.get_final_response()
        assert house.house.ran == ["it"]
    first, *made, last = found.output
    call, refused = sorted(made, key=lambda item: item.status or "")
    assert (first.type, last.type) == ("message", "message")
    assert call.type == refused.type == "mcp_call"
    assert (call.server_label, call.name, call.arguments) == ("evoclaw", "work", '{"what":"it"}')
    assert (call.output, call.error, call.status) == ("worked on it", None, "completed")
    assert refused.status == "failed"
    assert found.output_text == "I look.Done."
    assert "response.mcp_call_arguments.done" in kinds
    assert "response.mcp_call.completed" in kinds
    assert "response.mcp_call.failed" in kinds


@pytest.mark.parametrize("chained", [True, False])
async def test_function_calls_of_the_caller_resume_the_run(tmp_path: Path, chained: bool) -> None:
    script = (
        calls(("weather", {"town": "Bern"}), ("work", {"what": "a"}), text="A moment."),
        calls(("weather", {"town": "Thun"})),
        says("Rain in Bern, sun in Thun."),
    )
    async with serve_agents(tmp_path, *script) as house, client(house) as ai:
        talk: list[Any] = [{"role": "user", "content": "How is it?"}]
        previous: Any = {}
        towns: list[str] = []
        for answer in ("rain", "sun", ""):
            found = await ai.responses.create(model="lead", input=talk, tools=[WEATHER], **previous)
            asked = [item for item in found.output if item.type == "function_call"]
            towns += [call.arguments for call in asked]
            outputs = [
                {"type": "function_call_output", "call_id": call.call_id, "output": answer}
                for call in asked
            ]
            talk = outputs if chained else [*talk, *found.output, *outputs]
            previous = {"previous_response_id": found.id} if chained else {}
        assert towns == ['{"town":"Bern"}', '{"town":"Thun"}']
        assert found.output_text == "Rain in Bern, sun in Thun."
        assert house.house.ran == ["a"], "our own call of the turn ran once"
        (run,) = await house.runs.list("local")
        assert run.turns == 3
        assert found.usage is not None
        assert found.usage.total_tokens == 15, "only what was not reported before"
        assert (await ai.responses.retrieve(found.id)).output_text == found.output_text


async def test_outputs_with_another_tool_choice_continue_with_the_whole_conversation(
    tmp_path: Path,
) -> None:
    script = (
        says("I am ready."),
        calls(("weather", {"town": "Bern"}), ("work", {"what": "a"})),
        says("Rain."),
    )
    async with serve_agents(tmp_path, *script) as house, client(house) as ai:
        first = await ai.responses.create(model="lead", input="Hello.")
        second = await ai.responses.create(
            model="lead",
            input="Bern?",
            tools=[WEATHER],
            tool_choice="required",
            previous_response_id=first.id,
        )
        (call,) = [item for item in second.output if item.type == "function_call"]
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "wet"}
        last = await ai.responses.create(
            model="lead", input=[output], tools=[WEATHER], previous_response_id=second.id
        )
        assert last.output_text == "Rain."
        heard = [message.text for message in script_of(house).requests[-1].messages]
        assert heard == ["You lead.", "Hello.", "I am ready.", "Bern?", "", "wet", "worked on a"]
        assert house.house.ran == ["a"]


@pytest.mark.parametrize("sent", ["another id", "one of two", "one twice", "after the end"])
async def test_outputs_that_do_not_answer_the_calls_are_a_bad_request(
    tmp_path: Path, sent: str
) -> None:
    script = (calls(("weather", {"town": "Bern"}), ("weather", {"town": "Thun"})), says("Done."))
    async with serve_agents(tmp_path, *script) as house, client(house) as ai:
        asked = await ai.responses.create(model="lead", input="x", tools=[WEATHER])
        ids = [item.call_id for item in asked.output]
        right = [{"type": "function_call_output", "call_id": id_, "output": "wet"} for id_ in ids]
        wrong = {
            "another id": [{**right[0], "call_id": "call_of_nobody"}, right[1]],
            "one of two": right[:1],
            "one twice": [right[0], right[0]],
            "after the end": right,
        }[sent]
        previous = asked.id
        if sent == "after the end":
            ended = await ai.responses.create(
                model="lead", input=right, tools=[WEATHER], previous_response_id=previous
            )
            previous = ended.id
        with pytest.raises(openai.BadRequestError):
            await ai.responses.create(
                model="lead", input=wrong, tools=[WEATHER], previous_response_id=previous
            )


async def test_a_streamed_function_call_has_its_arguments(tmp_path: Path) -> None:
    script = (calls(("weather", {"town": "Bern"})),)
    async with serve_agents(tmp_path, *script) as house, client(house) as ai:
        stream = await ai.responses.create(
            model="lead", input="x", tools=[WEATHER], tool_choice="required", stream=True
        )
        events = [event async for event in stream]
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


async def test_a_custom_tool_is_called_with_one_text(tmp_path: Path) -> None:
    patch: Any = {"type": "custom", "name": "apply_patch", "description": "Edit files."}
    script = (calls(("apply_patch", {"input": "*** Begin"})), says("Patched."))
    async with serve_agents(tmp_path, *script) as house, client(house) as ai:
        first = await ai.responses.create(
            model="lead", input="x", tools=[patch, {"type": "web_search"}]
        )
        (call,) = first.output
        assert call.type == "custom_tool_call"
        assert (call.name, call.input) == ("apply_patch", "*** Begin")
        output: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "ok"}
        last = await ai.responses.create(
            model="lead", input=[output], tools=[patch], previous_response_id=first.id
        )
        assert last.output_text == "Patched."


async def test_a_chain_of_responses_is_one_session_and_may_branch(tmp_path: Path) -> None:
    script = (says("I am ready."), says("Two."), says("Three."))
    async with serve_agents(tmp_path, *script) as house, client(house) as ai:
        first = await ai.responses.create(model="lead", input="Count.", instructions="Be short.")
        second = await ai.responses.create(
            model="lead", input="Next?", previous_response_id=first.id, instructions="Be short."
        )
        other = await ai.responses.create(
            model="lead", input="Or?", previous_response_id=first.id, instructions="Be long."
        )
        assert (second.output_text, other.output_text) == ("Two.", "Three.")
        assert (second.previous_response_id, other.previous_response_id) == (first.id, first.id)
        heard = [
            [message.text for message in request.messages]
            for request in script_of(house).requests[1:]
        ]
        before = ["You lead.", "Be short.", "Count.", "I am ready."]
        assert heard == [[*before, "Next?"], [*before, "Be long.\nOr?"]]
        runs = await house.runs.list("local")
        assert len({run.session_id for run in runs}) == 2


async def test_a_response_that_is_not_stored_cannot_be_retrieved_or_continued(
    tmp_path: Path,
) -> None:
    async with serve_agents(tmp_path, says("Hi."), says("No.")) as house, client(house) as ai:
        found = await ai.responses.create(model="lead", input="x", store=False)
        assert found.output_text == "Hi."
        with pytest.raises(openai.NotFoundError):
            await ai.responses.retrieve(found.id)
        with pytest.raises(openai.NotFoundError) as unknown:
            await ai.responses.create(model="lead", input="y", previous_response_id=found.id)
        assert unknown.value.param == "previous_response_id"
        assert unknown.value.code == "previous_response_not_found"


async def test_a_background_response_is_retrieved_and_cancelled(tmp_path: Path) -> None:
    held = HeldModel()
    async with serve_agents(tmp_path, model=held) as house, client(house) as ai:
        started = await ai.responses.create(model="lead", input="x", background=True)
        assert started.status in ("queued", "in_progress")
        await held.asked.wait()
        assert (await ai.responses.retrieve(started.id)).status == "in_progress"
        held.goes_on.set()

        async def is_done() -> bool:
            return (await ai.responses.retrieve(started.id)).status == "completed"

        await until(is_done)
        assert (await ai.responses.retrieve(started.id)).output_text == "Well, yes."
        held.goes_on.clear()
        held.asked.clear()
        other = await ai.responses.create(model="lead", input="y", background=True)
        await held.asked.wait()
        assert (await ai.responses.cancel(other.id)).status == "cancelled"
        assert (await ai.responses.retrieve(other.id)).status == "cancelled"
        run = await house.runs.get("local", other.id.removeprefix("resp_"))
        assert run is not None
        assert run.stop is StopReason.CANCELLED


async def test_a_background_response_is_streamed_later_and_after_a_lost_connection(
    tmp_path: Path,
) -> None:
    held = HeldModel()
    async with serve_agents(tmp_path, model=held) as house, client(house) as ai:
        started = await ai.responses.create(model="lead", input="x", background=True)
        await held.asked.wait()
        stream = await ai.responses.retrieve(started.id, stream=True)
        first = await anext(stream)
        assert (first.type, first.sequence_number) == ("response.created", 0)
        held.goes_on.set()
        events = [event async for event in stream]
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == "Well, yes."
        said = [event.text for event in events if event.type == "response.output_text.done"]
        assert said == ["Well, yes."]
        again = await ai.responses.retrieve(started.id, stream=True, starting_after=100)
        (last,) = [event async for event in again]
        assert (last.type, last.sequence_number) == ("response.completed", 101)
        assert last.response.output_text == "Well, yes."


async def test_the_input_items_of_a_response_can_be_listed(tmp_path: Path) -> None:
    async with serve_agents(tmp_path, says("1")) as house, client(house) as ai:
        given: Any = [
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "Two?"},
        ]
        made = await ai.responses.create(model="lead", input=given, instructions="Be short.")
        listed = await ai.responses.input_items.list(made.id, order="asc")
        texts = [(item.role, item.content[-1].text) for item in listed.data]
        assert texts == [
            ("system", "Be short."), ("user", "One?"), ("assistant", "Yes."), ("user", "Two?"),
        ]  # fmt: skip
        pages = [item.id async for item in ai.responses.input_items.list(made.id, limit=1)]
        assert pages == [item.id for item in reversed(listed.data)]


async def test_a_deleted_response_is_gone_unless_others_continue_it(tmp_path: Path) -> None:
    async with (
        serve_agents(tmp_path, says("1"), says("2"), says("3")) as house,
        client(house) as ai,
    ):
        alone = await ai.responses.create(model="lead", input="x")
        await ai.responses.delete(alone.id)
        with pytest.raises(openai.NotFoundError):
            await ai.responses.retrieve(alone.id)
        first = await ai.responses.create(model="lead", input="x")
        await ai.responses.create(model="lead", input="y", previous_response_id=first.id)
        with pytest.raises(openai.ConflictError, match="same conversation"):
            await ai.responses.delete(first.id)


async def test_responses_of_another_user_do_not_exist(tmp_path: Path) -> None:
    async with serve_agents(tmp_path, says("Hi.")) as house, client(house) as ai:
        found = await ai.responses.create(model="lead", input="x")
        async with client(house, user="eve") as other:
            for attempt in (
                other.responses.retrieve(found.id),
                other.responses.cancel(found.id),
                other.responses.delete(found.id),
                other.responses.create(model="lead", input="x", previous_response_id=found.id),
            ):
                with pytest.raises(openai.NotFoundError):
                    await attempt


async def test_structured_output_is_parsed_by_the_client(tmp_path: Path) -> None:
    from pydantic import BaseModel

    class Sum(BaseModel):
        total: int

    script = (says("five"), says('{"total": 5}'))
    async with serve_agents(tmp_path, *script) as house, client(house) as ai:
        found = await ai.responses.parse(model="lead", input="2+3", text_format=Sum)
        assert found.output_parsed == Sum(total=5)
        assert len(script_of(house).requests) == 2, "the first answer did not fit"


async def test_a_cut_reply_is_incomplete_and_a_failed_provider_fails(tmp_path: Path) -> None:
    down = ProviderError(ProviderErrorKind.SERVER_ERROR, "the server is down")
    script = (says("Well", finish=Finish.LENGTH), down, down)
    async with serve_agents(tmp_path, *script) as house, client(house) as ai:
        cut = await ai.responses.create(model="lead", input="x", max_output_tokens=5)
        assert cut.status == "incomplete"
        assert cut.incomplete_details is not None
        assert cut.incomplete_details.reason == "max_output_tokens"
        with pytest.raises(openai.APIStatusError) as failed:
            await ai.responses.create(model="lead", input="x")
        assert failed.value.status_code == 502
        stream = await ai.responses.create(model="lead", input="x", stream=True)
        last = [event async for event in stream][-1]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert "the server is down" in last.response.error.message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"conversation": "c"}, "conversation"),
        ({"background": True, "store": False}, "background"),
        ({"input": [{"type": "message", "role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "bot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0]",
        ),
        ({"input": ""}, "input[0].content"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ],
)
async def test_bad_input_is_refused_with_its_position(
    tmp_path: Path, body: dict[str, Any], param: str
) -> None:
    async with serve_agents(tmp_path) as house, client(house) as ai:
        with pytest.raises(openai.BadRequestError) as refused:
            await ai.responses.create(**{"model": "lead", "input": "x", **body})
    assert refused.value.param == param
