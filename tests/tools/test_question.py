from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.chain import Chain
from evoclaw.core.conflicts import conflict
from evoclaw.core.errors import ToolFailure
from evoclaw.core.events import ApprovalAnswered, CallFinished, CallStarted, Event, RunFinished
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import JSON, ErrorKind, ToolResult, user
from evoclaw.core.ports import ALLOW, Ask, NoApprover, Policy, Ports, Verdict
from evoclaw.core.state import RunState, new_run
from evoclaw.core.tools import Call
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.people.questions import PendingQuestions, Questions
from evoclaw.providers.scripted import Scripted, calls
from evoclaw.store.sessions.sessions import SessionStore
from evoclaw.tools.question import (
    Question,
    ScriptedUser,
    UserAnswer,
    UserPrompter,
    answer_problem,
    parse_answer,
    question,
)
from tests.support.tool_calls import call_of

COLOUR: dict[str, JSON] = {"question": "Which colour?", "options": ["red", "blue"]}


async def use(person: UserPrompter, **arguments: JSON) -> ToolResult:
    executor = LocalExecutor([question], given={UserPrompter: person})
    async with asyncio.timeout(30):
        return await executor.execute(call_of(question, **arguments), lambda _: None)


async def test_the_answer_of_the_user_is_returned_to_the_model() -> None:
    person = ScriptedUser("2", "something else")
    result = await use(person, **COLOUR)
    assert result.text == "The user answered: blue"
    assert result.details == {"question_id": "r.1.0", "chosen": ["blue"], "text": ""}
    assert person.asked == [Question("r.1.0", "Which colour?", ("red", "blue"))]


class NoUser:
    async def ask(self, question: Question) -> UserAnswer | None:
        return None


async def test_without_a_user_the_model_is_told_to_state_its_assumption() -> None:
    with pytest.raises(ToolFailure, match="No user can be asked here.*assumed") as failure:
        await use(NoUser(), **COLOUR)
    assert failure.value.kind is ErrorKind.EXECUTION_FAILED


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("red", UserAnswer(("red",))),
        ("BLUE ", UserAnswer(("blue",))),
        ("1", UserAnswer(("red",))),
        ("3", UserAnswer(text="3")),
        ("red, blue", UserAnswer(text="red, blue")),
        ("green, please", UserAnswer(text="green, please")),
    ],
)
def test_typed_input_is_parsed_as_option_number_or_free_text(said: str, answer: UserAnswer) -> None:
    assert parse_answer(Question("q", "?", ("red", "blue")), said) == answer


def test_multiple_choice_input_is_split_at_commas() -> None:
    asked = Question("q", "?", ("red", "blue"), multiple=True)
    assert parse_answer(asked, "2, red, 1") == UserAnswer(("blue", "red"))
    assert answer_problem(asked, UserAnswer(("blue", "red"))) == ""


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (UserAnswer(("green",)), "not one of the options"),
        (UserAnswer(("red", "blue")), "only one"),
        (UserAnswer(text="green"), "one of the options"),
        (UserAnswer(), "no answer"),
        (UserAnswer(text="  "), "one of the options"),
    ],
)
async def test_an_invalid_answer_is_refused(answer: UserAnswer, problem: str) -> None:
    strict = Question("q", "?", ("red", "blue"), own_words=False)
    assert problem in answer_problem(strict, answer)
    with pytest.raises(ToolFailure, match="cannot be used"):
        await use(ScriptedUser(answer), **COLOUR, own_words=False)


@pytest.mark.parametrize("options", [["a", "a"], ["a", " "]])
async def test_indistinguishable_options_are_refused_before_the_user_is_asked(
    options: list[str],
) -> None:
    person = ScriptedUser("a")
    with pytest.raises(ToolFailure) as failure:
        await use(person, question="?", options=options)
    assert (failure.value.kind, person.asked) == (ErrorKind.INVALID_PARAMS, [])


def test_the_question_tool_waits_five_minutes_and_needs_interact() -> None:
    tool = question.tool
    assert (tool.timeout, tool.max_timeout, tool.permissions) == (300, 300, {"interact"})
    assert not conflict(call_of(question, **COLOUR), call_of(question, **COLOUR))


class Supervised(Policy):
    """Asks about everything but questions."""

    async def judge(self, call: Call) -> Verdict:
        return ALLOW if call.name == "question" else Ask("supervised", "?")


def ports(questions: Questions, provider: Scripted) -> Ports:
    parking = PendingQuestions(questions, "s1", NoApprover())
    executor = LocalExecutor([question], given={UserPrompter: questions.person("s1")})
    return Ports(provider, executor, Chain((Supervised(), parking)), parking)


async def play(state: RunState, made: Ports) -> list[Event]:
    async with asyncio.timeout(30):
        return [event async for event in run_loop(state, made, LoopSettings())]


async def test_a_waiting_run_resumes_with_the_stored_answer_exactly_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sessions.db"
    state = new_run([user("paint it")], "run")
    async with await SessionStore.open(path, durable=False) as store:
        questions = Questions(store.questions, suspends_runs=True)
        events = await play(state, ports(questions, Scripted(calls(("question", COLOUR)))))
        end = events[-1]
        assert isinstance(end, RunFinished)
        assert (end.stop, end.reason) == ("waiting", "Which colour?")
        assert not any(isinstance(event, CallStarted) for event in events)
        # Resumed too early, the same question is asked, not a second one.
        events = await play(state, ports(questions, Scripted()))
        assert [e.decision for e in events if isinstance(e, ApprovalAnswered)] == ["pending"]
        ((session, asked),) = await questions.waiting("s1")
        assert (session, asked.text, asked.id) == ("s1", "Which colour?", "run.1.0")
    async with await SessionStore.open(path, durable=False) as store:
        questions = Questions(store.questions, suspends_runs=True)
        assert "not one of the options" in await questions.answer(asked.id, UserAnswer(("green",)))
        assert await questions.answer(asked.id, UserAnswer(("red",))) == ""
        assert "already" in await questions.answer(asked.id, UserAnswer(("blue",)))
        assert (
            await questions.answer("run.9.9", UserAnswer(("red",))) == "there is no such question"
        )
        provider = Scripted(calls(("question", COLOUR), text="and now?"))
        events = await play(state, ports(questions, provider))
        results = [e.result.text for e in events if isinstance(e, CallFinished)]
        assert results == ["The user answered: red"]
        end = events[-1]
        assert isinstance(end, RunFinished) and end.stop == "waiting", "the same words anew"
        assert [asked.id for _, asked in await questions.waiting()] == ["run.2.0"]


async def test_the_first_answer_from_any_interface_counts(
    tmp_path: Path,
) -> None:
    class Silent:
        def __init__(self) -> None:
            self.asked, self.left = asyncio.Event(), 0

        async def ask(self, question: Question) -> UserAnswer | None:
            self.asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.left += 1
            return None

    async with await SessionStore.open(tmp_path / "s.db", durable=False) as store:
        face = Silent()
        questions = Questions(store.questions, local_person=face)
        asking = asyncio.create_task(use(questions.person("s1"), **COLOUR))
        async with asyncio.timeout(30):
            await face.asked.wait()
            assert await questions.answer("r.1.0", UserAnswer(("blue",))) == ""
            assert (await asking).text == "The user answered: blue"
        assert face.left == 1, "the face does not go on asking"

        live = Questions(store.questions, local_person=ScriptedUser("red"))
        assert (await use(live.person("s1"), **COLOUR)).text == "The user answered: blue"


async def test_a_resumed_question_call_asks_the_same_question_again(
    tmp_path: Path,
) -> None:
    async with await SessionStore.open(tmp_path / "s.db", durable=False) as store:
        with pytest.raises(ToolFailure, match="No user"):
            await use(Questions(store.questions).person("s1"), **COLOUR)
        person = ScriptedUser("red", "blue")
        questions = Questions(store.questions, local_person=person)
        call = call_of(question, **COLOUR)
        resumed = Call(call.id, call.tool, call.arguments, "r.1.0.2", 300.0, resumed=True)
        executor = LocalExecutor([question], given={UserPrompter: questions.person("s1")})
        for _ in range(2):
            result = await executor.execute(resumed, lambda _: None)
            assert result.text == "The user answered: red"
        assert len(person.asked) == 1
