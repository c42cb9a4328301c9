"""Runs as a service: kept, driven in turn, bounded, shown."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from evoclaw.core.agent import LoopSettings
from evoclaw.core.errors import AgentNotFound
from evoclaw.core.events import RunFinished, RunStarted, StopReason, ToolsChanged
from evoclaw.core.labels import Label, Principal
from evoclaw.core.messages import SystemMessage, UserMessage, user
from evoclaw.core.ports import Request
from evoclaw.orchestrator.runs.runs import (
    Draining,
    EmptyMessage,
    KeyReused,
    RunNotFound,
    RunQueueFull,
    RunRequest,
    RunStatus,
    SessionHasHistory,
)
from evoclaw.orchestrator.sessions.conversations import SessionNotFound
from evoclaw.providers.scripted import Reply, calls, says
from tests.support.databases import Place
from tests.support.runs import QUICK, WHO, Gate, open_run_service

OTHERS = Principal("other", "bob")


async def test_a_run_is_stored_before_it_starts_and_survives_a_restart(place: Place) -> None:
    async with open_run_service(place, serve=False) as idle:
        queued = await idle.start("hello\nthere, this is a long story")
        assert (queued.state, queued.asked) == (
            RunStatus.QUEUED,
            "hello\nthere, this is a long story",
        )
        session = await idle.store.session(queued.session_id)
        assert session is not None
        assert (session.title, session.owner) == ("hello there, this is a long story", "ann")
    async with open_run_service(place) as house:
        view = await house.wait_ended(queued.run_id)
        assert (view.state, view.stop) == (RunStatus.ENDED, StopReason.COMPLETED)
        assert view.text.startswith("lead: hello")
        assert (view.turns, view.tokens_in, view.owner, view.agent) == (1, 10, "ann", "lead")


async def test_invalid_run_requests_are_refused_and_store_nothing(place: Place) -> None:
    async with open_run_service(place) as house:
        with pytest.raises(EmptyMessage):
            await house.start("  \n")
        with pytest.raises(AgentNotFound):
            await house.runs.start(WHO, RunRequest("hi", agent="nobody"))
        with pytest.raises(SessionNotFound):
            await house.start("hi", session="gone")
        assert await house.runs.list("local") == []


async def test_runs_of_one_session_are_driven_one_after_the_other(place: Place) -> None:
    async with open_run_service(place) as house:
        gate = house.gate = Gate()
        first = await house.start("one")
        assert await gate.next() == "lead: one"
        second = await house.start("two", session=first.session_id)
        third = await house.start("three", session=first.session_id)
        elsewhere = await house.start("beside")
        assert await gate.next() == "lead: beside"
        gate.open("lead: beside")
        await house.wait_ended(elsewhere.run_id)
        assert second.state is third.state is RunStatus.QUEUED
        gate.wide = True
        gate.open("lead: one")
        for one in (first, second, third):
            await house.wait_ended(one.run_id)
        said = [message for _, message in await house.store.messages(first.session_id)]
        texts = [one.text for one in said if isinstance(one, UserMessage | Reply)]
        assert texts == ["one", "lead: one", "two", "lead: two", "three", "lead: three"]


async def test_concurrent_runs_are_limited_and_tenants_are_scheduled_fairly(place: Place) -> None:
    settings = replace(QUICK, at_once=2, per_tenant=2)
    async with open_run_service(place, settings=settings) as house:
        gate = house.gate = Gate()
        for number in range(4):
            await house.start(f"ours {number}")
        order = [await gate.next(), await gate.next()]
        assert house.runs.active_count == 2
        for number in range(2):
            await house.start(f"theirs {number}", who=OTHERS)
        for _ in range(4):
            gate.open(order[-2])
            order.append(await gate.next())
            assert house.runs.active_count <= 2
        # Ours had every place; as soon as there is room, those come who have nobody at work.
        assert [text.split()[1] for text in order[:4]] == ["ours", "ours", "theirs", "ours"]
        gate.wide = True
        for text in order:
            gate.open(text)
        for tenant, count in (("local", 4), ("other", 2)):
            found = await house.runs.list(tenant)
            for view in found:
                assert (await house.wait_ended(view.run_id, tenant)).stop is StopReason.COMPLETED
            assert len(found) == count


async def test_one_tenant_never_takes_all_run_slots(place: Place) -> None:
    async with open_run_service(place, settings=replace(QUICK, at_once=3, per_tenant=2)) as house:
        gate = house.gate = Gate()
        for number in range(3):
            await house.start(f"ours {number}")
        await house.start("theirs", who=OTHERS)
        came = {await gate.next() for _ in range(3)}
        assert came == {"lead: ours 0", "lead: ours 1", "lead: theirs"}


async def test_runs_beyond_the_queue_limits_are_refused(place: Place) -> None:
    settings = replace(QUICK, queued=4, queued_per_tenant=3, queued_per_session=2)
    async with open_run_service(place, settings=settings, serve=False) as house:
        first = await house.start("1")
        await house.start("2", session=first.session_id)
        with pytest.raises(RunQueueFull, match="2 runs of this session"):
            await house.start("3", session=first.session_id)
        await house.start("4")
        with pytest.raises(RunQueueFull, match="3 runs of your tenant"):
            await house.start("5")
        await house.start("6", who=OTHERS)
        with pytest.raises(RunQueueFull, match="4 runs of all tenants"):
            await house.start("7", who=OTHERS)


async def test_a_client_chosen_run_id_starts_one_run(place: Place) -> None:
    async with open_run_service(place) as house:
        one, fresh = await house.runs.start(WHO, RunRequest("hi"), run_id="mine")
        again, second = await house.runs.start(WHO, RunRequest("hi"), run_id="mine")
        assert (one.run_id, again.run_id, fresh, second) == ("mine", "mine", True, False)
        theirs, fresh = await house.runs.start(OTHERS, RunRequest("hi"), run_id="mine")
        assert fresh
        assert theirs.run_id != "mine"


async def test_an_idempotency_key_used_twice_starts_one_run(place: Place) -> None:
    async with open_run_service(place) as house:
        errand = RunRequest("hi")
        asked = [house.runs.start(WHO, errand, key="k") for _ in range(50)]
        found = await asyncio.gather(*asked)
        assert len({view.run_id for view, _ in found}) == 1
        assert sum(fresh for _, fresh in found) == 1
        with pytest.raises(KeyReused):
            await house.runs.start(WHO, RunRequest("ho"), key="k")
        other, fresh = await house.runs.start(Principal(user="eve"), errand, key="k")
        assert fresh, "a key is its user's"
        assert other.run_id != found[0][0].run_id
    async with open_run_service(place) as house:
        again, fresh = await house.runs.start(WHO, errand, key="k")
        assert (again.run_id, fresh) == (found[0][0].run_id, False)
        assert len(await house.runs.list("local")) == 2


async def test_another_tenants_run_is_reported_as_not_found(place: Place) -> None:
    async with open_run_service(place) as house:
        view = await house.start("secret")
        await house.wait_ended(view.run_id)
        assert await house.runs.get("other", view.run_id) is None
        assert await house.runs.list("other") == []
        assert not await house.runs.cancel("other", view.run_id)
        for work in (
            anext(house.runs.watch("other", view.run_id)),
            house.runs.result("other", view.run_id),
            house.runs.steer("other", view.run_id, "x"),
            house.runs.resume("other", view.run_id),
        ):
            with pytest.raises(RunNotFound):
                await work


async def test_runs_are_listed_newest_first_by_page_and_state(place: Place) -> None:
    async with open_run_service(place, settings=replace(QUICK, at_once=1)) as house:
        gate = house.gate = Gate()
        for number in range(5):
            await house.start(str(number))
        gate.open(await gate.next())
        await gate.next()
        views = await house.runs.list("local")
        assert [view.asked for view in views] == ["4", "3", "2", "1", "0"]
        page = await house.runs.list("local", before=views[1].run_id, limit=2)
        assert [view.asked for view in page] == ["2", "1"]
        states = {
            state: [view.asked for view in await house.runs.list("local", state=state, limit=2)]
            for state in RunStatus
        }
        assert states == {
            RunStatus.QUEUED: ["4", "3"],
            RunStatus.RUNNING: ["1"],
            RunStatus.WAITING: [],
            RunStatus.ENDED: ["0"],
        }
        assert await house.runs.list("local", owner="bob") == []
        assert len(await house.runs.list("local", owner="ann")) == 5


async def test_a_run_request_sets_its_own_history_model_and_limits(place: Place) -> None:
    async with open_run_service(place) as house:
        history = (SystemMessage("Be brief."), user("first"), says("one"), user("second"))
        settings = LoopSettings(max_turns=2)
        errand = RunRequest(messages=history, agent="help", model="scripted/big", settings=settings)
        view, _ = await house.runs.start(WHO, errand)
        await house.wait_ended(view.run_id)
        opening = (await house.records(view.run_id))[0].event
        assert isinstance(opening, RunStarted)
        assert opening.messages == (SystemMessage("You help."), *history)
        assert (opening.model, opening.settings) == ("scripted/big", settings)
        assert view.asked == "second"
        with pytest.raises(SessionHasHistory):
            await house.runs.start(WHO, replace(errand, session_id=view.session_id))


async def test_a_single_shot_run_is_offered_no_tools(place: Place) -> None:
    async with open_run_service(place) as house:
        confirming = LoopSettings(confirm=True)
        view, _ = await house.runs.start(WHO, RunRequest("hi", single=True, settings=confirming))
        await house.wait_ended(view.run_id)
        events = [record.event for record in await house.records(view.run_id)]
        assert not [event for event in events if isinstance(event, ToolsChanged) and event.tools]
        assert (await house.wait_ended(view.run_id)).turns == 1


async def test_a_message_keeps_the_label_of_its_run_request(place: Place) -> None:
    async with open_run_service(place) as house:
        label = Label(untrusted=True, sources=("mail",))
        view, _ = await house.runs.start(WHO, RunRequest("hi", label=label))
        await house.wait_ended(view.run_id)
        opening = (await house.records(view.run_id))[0].event
        assert isinstance(opening, RunStarted)
        (block,) = [one for one in opening.messages if isinstance(one, UserMessage)][-1].blocks
        assert block.label == label


async def test_an_internal_error_ends_only_the_run_it_occurred_in(place: Place) -> None:
    async with open_run_service(place) as house:

        def answer(agent: str, request: Request) -> Reply:
            if "work" not in house.ran:
                return calls(("work", {"what": "work"}))
            raise ZeroDivisionError("a fault of ours")

        house.answer = answer
        view = await house.wait_ended((await house.start("hi")).run_id)
        assert (view.state, view.stop) == (RunStatus.ENDED, StopReason.ERROR)
        assert "ZeroDivisionError: a fault of ours" in view.reason
        house.answer = lambda agent, request: says("fine")
        next_ = await house.start("again", session=view.session_id)
        assert (await house.wait_ended(next_.run_id)).text == "fine"
        end = (await house.records(view.run_id))[-1].event
        assert isinstance(end, RunFinished)
        assert end.calls == 1


async def test_drained_runs_continue_in_the_next_process(place: Place) -> None:
    async with open_run_service(place) as house:
        gate = house.gate = Gate()
        quick, slow = await house.start("quick"), await house.start("slow")
        await gate.next()
        await gate.next()
        queued = await house.start("later", session=slow.session_id)
        draining = asyncio.create_task(house.runs.drain(5))
        await asyncio.sleep(0)
        assert house.runs.draining
        with pytest.raises(Draining):
            await house.start("too late")
        gate.open("lead: quick")
        await house.wait_ended(quick.run_id)
        draining.cancel()
        assert await house.runs.drain(0) == 1
        assert house.runs.active_count == 0
        stored = await house.store.run(slow.run_id)
        assert stored is not None
        assert stored.holder == "", "the next process need not wait for a lease"
    async with open_run_service(place) as house:
        for run_id, text in ((slow.run_id, "lead: slow"), (queued.run_id, "lead: later")):
            view = await house.wait_ended(run_id)
            assert (view.stop, view.text) == (StopReason.COMPLETED, text)
