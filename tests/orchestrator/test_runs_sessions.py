"""Sessions branched, given another title, forgotten."""

from __future__ import annotations

import pytest

from evoclaw.core.messages import Reply, ToolResult, UserMessage
from evoclaw.core.ports import Request
from evoclaw.orchestrator.runs.runs import SessionBusy, SessionNotFound
from evoclaw.providers.scripted import calls, says
from evoclaw.store.sessions.sessions import Session
from tests.support.databases import Place
from tests.support.runs import Gate, RunServiceHarness, open_run_service


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
