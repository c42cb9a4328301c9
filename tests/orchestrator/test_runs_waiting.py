"""Runs that wait for somebody, hear something meanwhile, or are not wanted any more."""

from __future__ import annotations

import asyncio
import logging

import pytest
from msgspec.structs import replace

from evoclaw.core.events import (
    CallFinished,
    Prompted,
    Record,
    RunFinished,
    RunResumed,
    StopReason,
)
from evoclaw.core.messages import ErrorKind, Reply, TextBlock, ToolResult, UserMessage
from evoclaw.core.ports import ALLOW, Ask, Policy, Request, Verdict
from evoclaw.core.replay import Replay
from evoclaw.core.tools import Call
from evoclaw.governance.approvals import HUMAN_SCOPE, Answerer, ApprovalSettings
from evoclaw.orchestrator.people.approvals import CallApprovals, Decision
from evoclaw.orchestrator.runs.driver import ActiveRun
from evoclaw.orchestrator.runs.runs import RunNotFound, RunRequest, RunStatus, SessionBusy
from evoclaw.orchestrator.sessions.caller_tools import CallerCallStore, caller_tool, parse_call_id
from evoclaw.providers.scripted import calls, says
from evoclaw.store.databases.database import add_checksum
from evoclaw.tools.question import UserAnswer
from tests.support.databases import Place
from tests.support.runs import QUICK, WHO, Gate, RunServiceHarness, open_run_service
from tests.support.waiting import until

PERSON = Answerer("person", "ann", "local", frozenset({HUMAN_SCOPE}))


class AskAll(Policy):
    async def judge(self, call: Call) -> Verdict:
        return ALLOW if call.name == "question" else Ask("test", "may it?")

    async def admit(self, turn: int) -> Verdict:
        return ALLOW


def asks_then_says(agent: str, request: Request) -> Reply:
    """Ask the user something, then repeat what he said."""
    last = request.history.to_tuple()[-1]
    if isinstance(last, ToolResult):
        return says(last.text)
    return calls(("question", {"question": "Which one?"}))


def works_then_says(agent: str, request: Request) -> Reply:
    last = request.history.to_tuple()[-1]
    if isinstance(last, ToolResult):
        return says(last.text)
    return calls(("work", {"what": "it"}))


async def parked(house: RunServiceHarness) -> str:
    """A run that waits for an answer; its id."""
    house.answer = asks_then_says
    view = await house.wait_ended((await house.start("go")).run_id)
    assert view.state is RunStatus.WAITING
    await house.wait_for_state(view.run_id, RunStatus.WAITING)
    return view.run_id


async def answer(house: RunServiceHarness, text: str) -> None:
    ((_, question),) = await house.questions.waiting()
    assert await house.questions.answer(question.id, UserAnswer(text=text)) == ""


def driven(house: RunServiceHarness, run_id: str) -> ActiveRun:
    """A run as it goes on here."""
    return house.runs._driver.active["local", run_id]  # pyright: ignore[reportPrivateUsage]


def steered(records: list[Record]) -> list[str]:
    events = [record.event for record in records]
    return [e.message.text for e in events if isinstance(e, Prompted) and e.why == "steer"]


async def test_a_waiting_run_holds_no_slot_and_resumes_when_woken(place: Place) -> None:
    async with open_run_service(place, settings=replace(QUICK, look_s=60)) as house:
        run_id = await parked(house)
        assert house.runs.active_count == 0
        await answer(house, "the red one")
        await house.runs.resume("local", run_id)
        view = await house.wait_ended(run_id)
        assert (view.state, view.text) == (RunStatus.ENDED, "The user answered: the red one")
        await house.runs.resume("local", run_id)
        assert (await house.wait_ended(run_id)).stop is StopReason.COMPLETED


async def test_an_answer_resumes_a_run_once_even_if_the_run_then_waits_again(place: Place) -> None:
    async with open_run_service(place) as house:
        run_id = await parked(house)
        gate = house.gate = Gate()
        house.answer = lambda agent, request: calls(("question", {"question": "And then?"}))
        await answer(house, "the red one")
        await gate.next()
        # The poll still finds the first question, answered, while the run goes on.
        await house.runs._supervisor._resume_answered()  # pyright: ignore[reportPrivateUsage]
        gate.open("calls")
        await until(lambda: house.runs.active_count == 0, 30, "the run waits again")
        events = [record.event for record in await house.records(run_id)]
        assert sum(isinstance(event, RunResumed) for event in events) == 1


async def test_an_answer_stored_by_another_process_resumes_the_run(place: Place) -> None:
    async with open_run_service(place) as house:
        run_id = await parked(house)
        async with open_run_service(place, serve=False) as elsewhere:
            await answer(elsewhere, "blue")
        view = await house.wait_for_state(run_id, RunStatus.ENDED)
        assert view.text == "The user answered: blue"


async def test_a_run_answered_while_no_service_was_up_resumes_at_startup(place: Place) -> None:
    async with open_run_service(place) as house:
        run_id = await parked(house)
    async with open_run_service(place, serve=False) as elsewhere:
        await answer(elsewhere, "green")
    async with open_run_service(place) as house:
        house.answer = asks_then_says
        assert (
            await house.wait_for_state(run_id, RunStatus.ENDED)
        ).text == "The user answered: green"


async def test_a_run_waits_for_an_approval_and_uses_it_once(place: Place) -> None:
    async with open_run_service(place) as house:
        house.answer, house.policy = works_then_says, AskAll()
        approvals = CallApprovals(house.approvals, ApprovalSettings(nobody="wait"))
        house.approver = approvals.approver("s")
        run_id = (await house.start("go")).run_id
        await house.wait_for_state(run_id, RunStatus.WAITING)
        (case,) = await approvals.waiting()
        assert await approvals.answer(case.request.id, Decision.ONCE, PERSON) == ""
        view = await house.wait_for_state(run_id, RunStatus.ENDED)
        assert (view.text, house.ran) == ("worked on it", ["it"])


async def test_an_expired_approval_request_does_not_block_a_run_forever(place: Place) -> None:
    async with open_run_service(place) as house:
        house.answer, house.policy = works_then_says, AskAll()
        settings = ApprovalSettings(nobody="wait", expires_s=1)
        house.approver = CallApprovals(house.approvals, settings).approver("s")
        view = await house.wait_for_state((await house.start("go")).run_id, RunStatus.ENDED)
        assert "not approved" in view.text
        assert house.ran == []


async def test_a_run_waits_until_the_result_of_a_caller_tool_arrives(place: Place) -> None:
    async with open_run_service(place) as house:

        def reply(agent: str, request: Request) -> Reply:
            last = request.history.to_tuple()[-1]
            return says(last.text) if isinstance(last, ToolResult) else calls(("weather", {}))

        house.answer = reply
        view, _ = await house.runs.start(WHO, RunRequest("go", tools=(caller_tool("weather"),)))
        await house.wait_for_state(view.run_id, RunStatus.WAITING)
        shown = f"call_{view.run_id}_1_0"
        assert parse_call_id("local", shown) is not None

        async def may(session_id: str) -> bool:
            return session_id == view.session_id

        callers = CallerCallStore(house.store.questions)
        assert await callers.deliver({shown: (TextBlock("rain"),)}, may)
        await house.runs.resume("local", view.run_id)
        assert (await house.wait_for_state(view.run_id, RunStatus.ENDED)).text == "rain"


async def test_a_watcher_follows_a_run_through_its_waiting_state(place: Place) -> None:
    async with open_run_service(place) as house:
        run_id = await parked(house)
        first = await house.records(run_id)
        assert isinstance(first[-1].event, RunFinished)
        following = asyncio.create_task(house.records(run_id, follow=True))
        await answer(house, "x")
        await house.runs.resume("local", run_id)
        all_ = await following
        assert all_[: len(first)] == first
        assert isinstance(all_[len(first)].event, RunResumed)
        assert [record.seq for record in all_] == list(range(1, len(all_) + 1))
        assert all_ == await house.store.records(run_id)


async def test_an_active_run_can_be_cancelled(place: Place) -> None:
    async with open_run_service(place) as house:
        gate = house.gate = Gate()
        view = await house.start("long")
        await gate.next()
        assert await house.runs.cancel("local", view.run_id)
        ended = await house.wait_ended(view.run_id)
        assert (ended.state, ended.stop) == (RunStatus.ENDED, StopReason.CANCELLED)
        assert not await house.runs.cancel("local", view.run_id)
        assert len(house.requests) == 1


async def test_cancelling_a_queued_run_does_not_affect_the_run_before_it(place: Place) -> None:
    async with open_run_service(place) as house:
        gate = house.gate = Gate()
        first = await house.start("one")
        await gate.next()
        second = await house.start("two", session=first.session_id)
        assert await house.runs.cancel("local", second.run_id)
        assert (await house.wait_ended(second.run_id)).stop is StopReason.CANCELLED
        gate.open("lead: one")
        assert (await house.wait_ended(first.run_id)).text == "lead: one"
        said = await house.store.messages(first.session_id)
        assert [m.text for _, m in said if isinstance(m, UserMessage | Reply)] == [
            "one",
            "lead: one",
        ]
        assert len(house.requests) == 1


async def test_cancelling_a_waiting_run_withdraws_its_question(place: Place) -> None:
    async with open_run_service(place) as house:
        run_id = await parked(house)
        assert await house.runs.cancel("local", run_id)
        view = await house.wait_for_state(run_id, RunStatus.ENDED)
        assert view.stop is StopReason.CANCELLED
        assert await house.questions.waiting() == []
        records = await house.records(run_id)
        finished = [r.event.result for r in records if isinstance(r.event, CallFinished)]
        assert [result.error for result in finished] == [ErrorKind.CANCELLED]
        assert [record async for record in Replay(records).records()] == records
        house.answer = lambda agent, request: says("next")
        after = await house.start("and now?", session=view.session_id)
        assert (await house.wait_ended(after.run_id)).text == "next"


async def test_approval_requests_of_a_cancelled_run_are_withdrawn(place: Place) -> None:
    async with open_run_service(place) as house:
        house.answer, house.policy = works_then_says, AskAll()
        approvals = CallApprovals(house.approvals, ApprovalSettings(nobody="wait"))
        house.approver = approvals.approver("s")
        run_id = (await house.start("go")).run_id
        await house.wait_for_state(run_id, RunStatus.WAITING)
        assert await house.runs.cancel("local", run_id)
        await house.wait_for_state(run_id, RunStatus.ENDED)
        assert await approvals.waiting() == []
        assert house.ran == []


async def test_a_cancellation_survives_a_restart(place: Place) -> None:
    async with open_run_service(place, serve=False) as idle:
        view = await idle.start("never")
        assert await idle.runs._inbox.cancel("local", view.run_id)  # pyright: ignore[reportPrivateUsage]
    async with open_run_service(place) as house:
        assert (
            await house.wait_for_state(view.run_id, RunStatus.ENDED)
        ).stop is StopReason.CANCELLED
        assert house.requests == []


async def test_a_watcher_disconnect_does_not_cancel_the_run(place: Place) -> None:
    async with open_run_service(place) as house:
        gate = house.gate = Gate()
        view = await house.start("long")
        await gate.next()
        watching = house.runs.watch("local", view.run_id)
        await anext(watching)
        await watching.aclose()
        gate.open("lead: long")
        assert (await house.wait_ended(view.run_id)).stop is StopReason.COMPLETED


async def test_steering_messages_are_delivered_to_the_run_once(place: Place) -> None:
    async with open_run_service(place) as house:
        gate = house.gate = Gate()
        view = await house.start("begin")
        assert await gate.next() == "lead: begin"
        await house.runs.steer("local", view.run_id, "in French")
        await house.runs.steer("local", view.run_id, "and short")
        gate.wide = True
        gate.open("lead: begin")
        ended = await house.wait_ended(view.run_id)
        assert (ended.text, ended.turns) == ("lead: and short", 2)
        records = await house.records(view.run_id)
        assert steered(records) == ["in French", "and short"]
        with pytest.raises(SessionBusy):
            await house.runs.steer("local", view.run_id, "too late")
        with pytest.raises(RunNotFound):
            await house.runs.steer("local", "nobody", "hello")
        assert len(await house.runs.list("local")) == 1


async def test_a_steering_message_sent_through_another_process_is_delivered(place: Place) -> None:
    async with open_run_service(place) as house:
        gate = house.gate = Gate()
        view = await house.start("begin")
        await gate.next()
        async with open_run_service(place, serve=False) as elsewhere:
            await elsewhere.runs.steer("local", view.run_id, "from afar")
        steering = driven(house, view.run_id).steering
        assert steering is not None

        async def heard() -> bool:
            return steering.received == 1

        async with asyncio.timeout(30):
            await house.runs.hub.wait_until(("local", view.run_id), heard)
        gate.wide = True
        gate.open("lead: begin")
        assert (await house.wait_ended(view.run_id)).text == "lead: from afar"


async def test_a_steering_message_that_arrives_too_late_starts_the_next_run(place: Place) -> None:
    async with open_run_service(place) as house:
        gate = house.gate = Gate()
        view = await house.start("begin")
        await gate.next()
        async with open_run_service(place, serve=False, settings=QUICK) as elsewhere:
            # Kept, and the process that drives the run never looks.
            driven(house, view.run_id).steering = None
            await elsewhere.runs.steer("local", view.run_id, "one more")
            await elsewhere.runs.steer("local", view.run_id, "thing")
        gate.wide = True
        gate.open("lead: begin")
        assert (await house.wait_ended(view.run_id)).text == "lead: begin"
        newest = (await house.runs.list("local"))[0]
        next_ = await house.wait_ended(newest.run_id)
        assert next_.run_id != view.run_id
        assert (next_.asked, next_.session_id) == ("one more\n\nthing", view.session_id)
        assert next_.text == "lead: one more\n\nthing"


async def test_an_interrupted_run_receives_undelivered_steering_messages_on_resume(
    place: Place,
) -> None:
    async with open_run_service(place) as house:
        gate = house.gate = Gate()
        view = await house.start("begin")
        await gate.next()
        await house.runs.steer("local", view.run_id, "first")
        gate.open("lead: begin")
        assert await gate.next() == "lead: first"
        await house.runs.steer("local", view.run_id, "second")
    async with open_run_service(place) as house:
        assert (await house.wait_ended(view.run_id)).text == "lead: second"
        records = await house.records(view.run_id)
        assert steered(records) == ["first", "second"]
        assert [record async for record in Replay(records).records()] == records


class Told(logging.Handler):
    """Hears when something is said of a kind."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words, self.heard = words, asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.words in record.getMessage():
            self.heard.set()


async def test_an_unreadable_run_does_not_stop_the_supervision_of_other_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_run_service(place) as house:
        broken = await house.start("hello")
        await house.wait_ended(broken.run_id)
        row = ("local", broken.run_id, 0, add_checksum(b"no message"))
        put = "INSERT INTO queue_inbox VALUES (?, ?, ?, ?)"
        await house.store.database.write(lambda c: c.execute(put, row))
    told = Told("an internal error")
    monkeypatch.setattr(
        logging.getLogger("evoclaw.orchestrator.runs.supervisor"), "handlers", [told]
    )
    async with open_run_service(place) as house:
        async with asyncio.timeout(30):
            await told.heard.wait()  # the first look of a new process finds it
        run_id = await parked(house)
        await answer(house, "the red one")  # as another process would: nobody wakes the run
        view = await house.wait_for_state(run_id, RunStatus.ENDED)
        assert "the red one" in view.text
