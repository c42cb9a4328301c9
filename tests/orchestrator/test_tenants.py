"""Tenants in one process: the same names for sessions and runs, and nothing in common."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.deadline import Deadline
from evoclaw.core.events import Record
from evoclaw.core.labels import Principal
from evoclaw.core.messages import ErrorKind, Reply
from evoclaw.core.ports import ALLOW, Policy, Verdict
from evoclaw.core.tools import Call
from evoclaw.orchestrator.people.questions import Questions
from evoclaw.orchestrator.sessions.conversations import Conversations, SessionNotFound
from evoclaw.orchestrator.sessions.run_ids import tenant_run_id
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.sessions.sessions import Session
from evoclaw.tools.question import Question, UserAnswer
from tests.support.conversations import agent, end_of, open_session_harness, results

ASKS = calls(("question", {"question": "Which?", "options": ["red", "blue"]}))


def work(what: str) -> Reply:
    return calls(("work", {"what": what}))


async def said(
    talks: Conversations, message: str, session: str = "main", run_id: str = "", owner: str = "bob"
) -> list[Record]:
    await talks.open("lead", session_id=session, owner=owner)
    async with asyncio.timeout(30):
        return [record async for record in talks.send(session, message, run_id=run_id)]


class Noted(Policy):
    """Allows everything, and remembers on whose behalf it was."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Principal]] = []

    async def judge(self, call: Call) -> Verdict:
        self.seen.append((call.name, call.context.principal))
        return ALLOW


async def test_fault_56_two_tenants_use_the_same_session_id_concurrently(
    tmp_path: Path,
) -> None:
    both = asyncio.Barrier(2)

    async def body(what: str) -> str:
        await both.wait()
        assert len(home.talks.running) == 2
        return what

    # Whoever comes first gets the first reply; each is asked twice.
    lead = Scripted(work("dig"), work("dig"), says("done"), says("done"))
    async with open_session_harness(tmp_path, lead=lead) as home:
        home.body = body
        views = {name: home.talks.of(name) for name in ("acme", "umbrella")}
        talking = [said(view, f"secret of {name}", run_id="r") for name, view in views.items()]
        found: Sequence[list[Record]] = await asyncio.gather(*talking)
        runs = {records[0].run_id for records in found}
        assert len(runs) == 2 and "r" not in runs, "no device takes one for the other"
        for name, view in views.items():
            text = repr(await view.store.messages("main"))
            assert f"secret of {name}" in text
            assert not [other for other in views if other != name and other in text]
        assert not home.talks.running and await home.talks.store.summary("main") is None


async def test_fault_56_a_session_of_another_tenant_is_not_found(tmp_path: Path) -> None:
    async with open_session_harness(tmp_path, lead=Scripted(says("hi"))) as home:
        await said(home.talks.of("acme"), "hello")
        for session in ("main", "never"):
            with pytest.raises(SessionNotFound, match=f"there is no session '{session}'"):
                await anext(home.talks.send(session, "hello"))
            with pytest.raises(SessionNotFound, match=f"there is no session '{session}'"):
                await anext(home.talks.resume(session))
            assert not await home.talks.has_unfinished_run(session)


async def test_fault_56_the_tools_of_a_run_see_only_sessions_of_its_tenant(tmp_path: Path) -> None:
    looks = calls(
        ("sessions_list", {}),
        ("sessions_history", {"session_id": "main"}),
        ("session_status", {"session_id": "main"}),
        ("sessions_send", {"session_id": "main", "message": "tell me"}),
    )
    async with open_session_harness(
        tmp_path, lead=Scripted(says("The code is 4711."), looks, says("ok"))
    ) as home:
        await said(home.talks.of("acme"), "keep this: 4711")
        listed, *others = results(await said(home.talks.of("umbrella"), "look", "mine"))
        assert "main" not in listed.text and "mine" in listed.text
        assert {one.error for one in others} == {ErrorKind.NOT_FOUND}
        assert not [one for one in (listed, *others) if "4711" in one.text]


async def test_runs_and_sub_runs_act_for_the_sessions_tenant_and_owner(
    tmp_path: Path,
) -> None:
    hands_on = calls(("task", {"prompt": "do it", "agent": "help"}))
    async with open_session_harness(
        tmp_path, lead=Scripted(hands_on, says("ok")), help=Scripted(work("it"), says("done"))
    ) as home:
        home.policy = noted = Noted()
        acme = home.talks.of("acme")
        (result,) = results(await said(acme, "go"))
        who = Principal("acme", "bob")
        assert noted.seen == [("task", who), ("work", who)]
        below = await acme.store.summary(result.details["session_id"])
        assert below is not None and below.last is not None
        assert (below.session.tenant, below.session.owner) == ("acme", "bob")
        assert below.last.id == tenant_run_id("acme", below.last.id), "its calls are nobody else's"
        names = {one.name for one in await home.talks.ledger.accounts()}
        assert "tenant:acme/user:bob" in names and "tenant:local" not in names


async def test_fault_56_a_run_of_another_tenant_cannot_be_driven(tmp_path: Path) -> None:
    async with open_session_harness(tmp_path, lead=Scripted()) as home:
        acme = home.talks.of("acme")
        theirs = await acme.open("lead", session_id="main")
        run = await acme.store.create_run("r", "main", "hi")
        with pytest.raises(SessionNotFound):
            await home.talks.prepare(theirs, run, Deadline(1), None, None)
        above = await acme.prepare(theirs, run, Deadline(1), None, None)
        mine = await home.talks.open("lead", session_id="mine")
        with pytest.raises(SessionNotFound):
            await home.talks.prepare(mine, run, Deadline(1), above, None)


async def test_fault_56_only_its_own_tenant_can_answer_a_question(tmp_path: Path) -> None:
    async with open_session_harness(tmp_path, lead=Scripted(ASKS, says("Red it is."))) as home:
        acme = home.talks.of("acme")
        assert end_of(await said(acme, "paint")).stop == "waiting"
        ((session, asked),) = await acme.questions.waiting()
        assert session == "main" and await home.questions.waiting() == []
        stranger = await home.questions.answer(asked.id, UserAnswer(chosen=("blue",)))
        assert stranger == await home.questions.answer("never", UserAnswer(chosen=("blue",)))
        assert await acme.questions.answer(asked.id, UserAnswer(chosen=("red",))) == ""
        assert end_of([record async for record in acme.resume("main")]).text == "Red it is."


async def test_the_terminal_prompts_only_for_questions_of_its_own_tenant(
    tmp_path: Path,
) -> None:
    class Terminal:
        def __init__(self) -> None:
            self.asked: list[str] = []

        async def ask(self, question: Question) -> UserAnswer | None:
            self.asked.append(question.text)
            return UserAnswer(chosen=("red",))

    async with open_session_harness(tmp_path) as home:
        face = Terminal()
        questions = Questions(home.store.questions, local_person=face)
        which = Question("r.1", "Which?", options=("red", "blue"))
        assert await questions.of("acme").ask("main", which) is None
        assert face.asked == []
        assert await questions.of("acme").of("local").ask("main", which) == UserAnswer(
            chosen=("red",)
        )


async def test_answering_a_question_does_not_wake_another_tenants_with_the_same_id(
    tmp_path: Path,
) -> None:
    async with open_session_harness(tmp_path) as home:
        which = Question("r.1", "Which?", options=("red", "blue"))
        views = [home.questions.of(name) for name in ("acme", "umbrella")]
        for view in views:
            await view.stored_answer("main", which)
        asking = [asyncio.create_task(view.ask("main", which)) for view in views]
        async with asyncio.timeout(30):
            assert not (await asyncio.wait(asking, timeout=0.05))[0], "both wait"
            assert await views[0].answer("r.1", UserAnswer(chosen=("red",))) == ""
            assert await asking[0] == UserAnswer(chosen=("red",)) and not asking[1].done()
            assert await views[1].answer("r.1", UserAnswer(chosen=("blue",))) == ""
            assert await asking[1] == UserAnswer(chosen=("blue",))


async def test_a_run_with_a_client_chosen_id_is_resumed_by_the_same_tenant(tmp_path: Path) -> None:
    async with open_session_harness(tmp_path, lead=Scripted(ASKS, says("ok"))) as home:
        acme = home.talks.of("acme")
        first = await said(acme, "paint", run_id="mine")
        ((_, asked),) = await acme.questions.waiting()
        await acme.questions.answer(asked.id, UserAnswer(chosen=("red",)))
        for run_id in ("mine", first[0].run_id):
            stored = await acme.store.run(tenant_run_id("acme", run_id))
            assert stored is not None and stored.id == first[0].run_id
        assert end_of(await said(acme, "paint", run_id=first[0].run_id)).text == "ok"


async def test_tenants_share_agents_but_not_sessions(tmp_path: Path) -> None:
    async with open_session_harness(
        tmp_path, agents=(agent("lead"),), lead=Scripted(says("hi"))
    ) as home:
        made = await home.talks.of("acme").open("lead", session_id="s")
        assert isinstance(made, Session) and made.tenant == "acme"
        again = await home.talks.of("acme").open("lead", session_id="s")
        other = await home.talks.of("umbrella").open("lead", session_id="s")
        assert again == made and other.tenant == "umbrella"


names = st.sampled_from(("local", "acme", "umbrella", "")) | st.text(max_size=4)
ids = st.text(max_size=6) | st.builds(tenant_run_id, names, st.text(max_size=3))


@given(one=names, other=names, first=ids, second=ids)
def test_fault_56_run_ids_of_two_tenants_never_collide(
    one: str, other: str, first: str, second: str
) -> None:
    made = tenant_run_id(one, first)
    assert tenant_run_id(one, made) == made
    if one != other:
        assert made != tenant_run_id(other, second) and made != tenant_run_id(other, made)
