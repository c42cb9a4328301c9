"""Sessions branched, given another title, forgotten."""

from __future__ import annotations

import pytest

from evoclaw.core.agent import Agent
from evoclaw.core.labels import Principal
from evoclaw.core.messages import Reply, ToolResult, UserMessage
from evoclaw.core.ports import Request
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.orchestrator.runs.requests import EdgeNotUsable
from evoclaw.orchestrator.runs.runs import RunStatus, SessionBusy, SessionNotFound
from evoclaw.providers.scripted import calls, says
from evoclaw.store.sessions.sessions import Session
from evoclaw.tools.question import UserAnswer
from tests.support.databases import Place
from tests.support.runs import LEAD, Gate, RunServiceHarness, open_run_service


async def spoken(house: RunServiceHarness, session_id: str) -> list[str]:
    said = await house.store.messages(session_id)
    return [m.text for _, m in said if isinstance(m, UserMessage | Reply | ToolResult)]


async def test_a_session_branch_continues_independently(place: Place) -> None:
    async with open_run_service(place) as house:
        first = await house.start("one")
        await house.wait_ended(first.run_id)
        await house.wait_ended((await house.start("two", session=first.session_id)).run_id)
        session = await house.talks.branch(first.session_id, 2)
        assert (session.owner, session.agent, session.title) == ("ann", "lead", "one")
        assert await spoken(house, session.id) == ["one", "lead: one"]
        await house.wait_ended((await house.start("three", session=session.id)).run_id)
        assert await spoken(house, session.id) == ["one", "lead: one", "three", "lead: three"]
        assert await spoken(house, first.session_id) == ["one", "lead: one", "two", "lead: two"]
        with pytest.raises(SessionNotFound):
            await house.talks.branch("nobody", 1)
        with pytest.raises(SessionNotFound):
            await house.talks.of("other").branch(session.id, 1)


async def test_a_session_branch_never_reruns_calls_of_the_original(place: Place) -> None:
    async with open_run_service(place) as house:

        def reply(agent: str, request: Request) -> Reply:
            last = request.history.to_tuple()[-1]
            work = calls(("work", {"what": "a"}), ("work", {"what": "b"}))
            return says("done") if isinstance(last, ToolResult) else work

        house.answer = reply
        view = await house.start("go")
        await house.wait_ended(view.run_id)
        ran = list(house.ran)
        for at in (2, 3):
            branched = await house.talks.branch(view.session_id, at)
            assert await spoken(house, branched.id) == ["go"]
        whole = await house.talks.branch(view.session_id, 4)
        assert len(await spoken(house, whole.id)) == 4
        house.answer = lambda agent, request: says("fine")
        await house.wait_ended((await house.start("and?", session=whole.id)).run_id)
        assert house.ran == ran


async def test_a_session_title_is_sanitized_to_one_line(place: Place) -> None:
    async with open_run_service(place) as house:
        view = await house.start("one")
        session = await house.talks.rename(view.session_id, "a\nnew \x1b[1mname")
        assert session.title == "a new [1mname"
        assert await house.store.session(view.session_id) == session
        with pytest.raises(SessionNotFound):
            await house.talks.of("other").rename(view.session_id, "x")


async def test_a_deleted_session_leaves_no_data(place: Place) -> None:
    async with open_run_service(place) as house:
        gate = house.gate = Gate()
        view = await house.start("secret")
        await gate.next()
        with pytest.raises(SessionBusy):
            await house.talks.delete(view.session_id)
        gate.open("lead: secret")
        await house.wait_ended(view.run_id)
        with pytest.raises(SessionNotFound):
            await house.talks.of("other").delete(view.session_id)
        below = await house.store.create(Session("below", "help", "ann", parent=view.session_id))
        assert set(await house.talks.delete(view.session_id)) == {view.session_id, below.id}
        assert await house.store.session(view.session_id) is None
        assert await house.store.session(below.id) is None
        assert await house.runs.get("local", view.run_id) is None
        assert await house.store.records(view.run_id) == []
        assert await house.store.messages(view.session_id) == []
        with pytest.raises(SessionNotFound):
            await house.talks.delete(view.session_id)


async def test_the_idempotency_key_of_a_deleted_run_starts_a_new_run(place: Place) -> None:
    async with open_run_service(place) as house:
        first = await house.start("hello", key="k")
        await house.wait_ended(first.run_id)
        await house.talks.delete(first.session_id)
        second = await house.start("hello", key="k")
        assert second.run_id != first.run_id
        assert (await house.wait_ended(second.run_id)).text == "lead: hello"
        assert (await house.start("hello", key="k")).run_id == second.run_id


async def test_a_session_stays_on_the_edge_that_was_chosen_and_a_waiting_run_on_its_own(
    place: Place,
) -> None:
    async with open_run_service(place) as house:
        house.edges = [Member("garage"), Member("local")]

        def reply(agent: str, request: Request) -> Reply:
            last = request.history.to_tuple()[-1]
            asked = isinstance(last, UserMessage) and last.text == "ask"
            return calls(("question", {"question": "Which?"})) if asked else says("fine")

        house.answer = reply
        first = await house.start("hello", on="garage")
        await house.wait_ended(first.run_id)
        waiting = await house.start("ask", session=first.session_id)
        await house.wait_ended(waiting.run_id)
        assert house.worked_on == ["garage", "garage"]
        await house.talks.move(first.session_id, "local")
        ((_, question),) = await house.questions.waiting(first.session_id)
        assert await house.questions.answer(question.id, UserAnswer(text="that one")) == ""
        await house.wait_for_state(waiting.run_id, RunStatus.ENDED)
        assert house.worked_on[2:] == ["garage"], "the waiting run did not move"
        branched = await house.talks.branch(first.session_id, 1)
        await house.wait_ended((await house.start("on", session=branched.id)).run_id)
        assert house.worked_on[3:] == ["local"]


async def test_a_session_cannot_work_on_an_unknown_edge_or_against_its_agent(place: Place) -> None:
    bound = Agent("guard", "scripted/model", "You guard.", frozenset({"*"}), on="gate")
    async with open_run_service(place, agents=(LEAD, bound)) as house:
        house.edges = [Member("gate"), Member("local")]
        with pytest.raises(EdgeNotUsable, match="known edges: gate, local"):
            await house.start("hello", on="attic")
        with pytest.raises(EdgeNotUsable) as refused:
            await house.start("hello", on="attic", who=Principal("other", "eve"))
        assert "gate" not in str(refused.value), "the fleet belongs to another tenant"
        with pytest.raises(EdgeNotUsable, match="'guard' works on 'gate' only"):
            await house.start("hello", agent="guard", on="local")
        session = await house.talks.open("lead", owner="ann")
        with pytest.raises(EdgeNotUsable):
            await house.start("hello", session=session.id, on="attic")
        assert await house.store.runs() == []
        await house.wait_ended((await house.start("hello", agent="guard", on="gate")).run_id)
        await house.wait_ended((await house.start("hello", on="*")).run_id)
