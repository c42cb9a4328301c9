"""Several processes on one database: each run is driven by one of them, and by nobody twice."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace

from evoclaw.core.events import RunFinished, StopReason
from evoclaw.core.ledgers import Limit
from evoclaw.core.messages import Reply, ToolResult
from evoclaw.core.ports import Request
from evoclaw.core.replay import Replay
from evoclaw.governance.budget.options import run_account
from evoclaw.orchestrator.runs.driver import ActiveRun
from evoclaw.orchestrator.runs.runs import RunRequest, RunStatus
from evoclaw.orchestrator.runs.scheduler import current_process_identity, is_process_dead
from evoclaw.providers.scripted import calls, says
from evoclaw.store.runs.queue import RunQueue, adopt_subrun
from evoclaw.store.sessions.sessions import Fenced
from evoclaw.tools.question import UserAnswer
from tests.support.databases import Place
from tests.support.runs import LEAD, QUICK, WHO, Gate, RunServiceHarness, open_run_service


def queue(house: RunServiceHarness) -> RunQueue:
    return house.runs._queue  # pyright: ignore[reportPrivateUsage]


async def test_two_services_share_queued_runs_and_run_none_twice(place: Place) -> None:
    settings = replace(QUICK, at_once=4)
    async with (
        open_run_service(place, settings=settings) as one,
        open_run_service(place, settings=settings) as two,
    ):
        views = [await house.start(f"m{n}") for n in range(20) for house in (one, two)]
        for view in views:
            assert (await one.wait_ended(view.run_id)).stop is StopReason.COMPLETED
        asked = Counter(str(message) for message in one.requests + two.requests)
        assert len(asked) == 20
        assert set(asked.values()) == {2}, "each of them said everything once"


async def test_a_run_queued_by_one_process_is_driven_by_another(place: Place) -> None:
    async with open_run_service(place, serve=False) as idle:
        view = await idle.start("hello")
        async with open_run_service(place) as busy:
            assert (await busy.wait_ended(view.run_id)).text == "lead: hello"
        found = await idle.runs.get("local", view.run_id)
        assert found is not None
        assert found.state is RunStatus.ENDED


async def test_late_writes_to_a_run_that_was_taken_over_are_rejected(place: Place) -> None:
    slow = replace(QUICK, lease_s=600)
    async with open_run_service(place, settings=slow) as old:
        gate = old.gate = Gate()
        view = await old.start("hello")
        await gate.next()
        async with open_run_service(place) as new:
            await queue(new).expire_holders([queue(old).holder])
            assert (await new.wait_ended(view.run_id)).text == "lead: hello"
        gate.open("lead: hello")
        assert (await old.wait_ended(view.run_id)).text == "lead: hello"
        records = await old.store.records(view.run_id)
        assert sum(isinstance(record.event, RunFinished) for record in records) == 1
        assert [record async for record in Replay(records).records()] == records
        assert old.runs.active_count == 0


async def test_the_next_run_of_a_session_does_not_wait_for_one_that_was_taken_over(
    place: Place,
) -> None:
    # This process has not noticed yet that another one ended the first run.
    async with open_run_service(place, settings=replace(QUICK, lease_s=600)) as old:
        gate = old.gate = Gate()
        first = await old.start("hello")
        await gate.next()
        async with open_run_service(place) as new:
            await queue(new).expire_holders([queue(old).holder])
            ended = await new.wait_ended(first.run_id)
        old.gate = None
        second = await old.start("again", session=ended.session_id)
        answered = await old.wait_ended(second.run_id)
        assert (answered.stop, answered.text) == (StopReason.COMPLETED, "lead: again")
        assert [active.claim.run_id for active in _live(old)] == []


async def _sign_of_life(house: RunServiceHarness, run_id: str) -> object:
    """What a holder renews: its lease, or with an engine what that knows of it."""
    stored = await house.store.run(run_id)
    assert stored is not None
    if house.store.database.dialect == "sqlite":
        return stored.lease_until
    assert stored.lease_until is None
    find = "SELECT last_heartbeat::text FROM procrastinate_workers"
    return await house.store.database.read(lambda c: c.execute(find).fetchone()[0])


async def test_the_owner_of_a_run_renews_its_lease_while_the_run_is_active(place: Place) -> None:
    async with open_run_service(place, settings=replace(QUICK, lease_s=1.0)) as house:
        gate = house.gate = Gate()
        view = await house.start("hello")
        await gate.next()
        signs: set[object] = set()

        async def renewed() -> bool:
            signs.add(await _sign_of_life(house, view.run_id))
            return len(signs) > 2

        async with asyncio.timeout(20):
            await house.runs.hub.wait_until(("local", view.run_id), renewed)
        gate.open("lead: hello")
        assert (await house.wait_ended(view.run_id)).stop is StopReason.COMPLETED
        stored = await house.store.run(view.run_id)
        assert stored is not None
        assert (stored.epoch, stored.holder, stored.lease_until) == (1, "", None)


async def test_a_sub_run_is_fenced_together_with_its_parent(place: Place) -> None:
    # It must not renew its lease while somebody takes it.
    async with open_run_service(place, settings=replace(QUICK, lease_s=600)) as house:
        gate = house.gate = Gate()

        def reply(agent: str, request: Request) -> Reply:
            last = request.history.to_tuple()[-1]
            if agent == "help":
                return says("helped")
            done = isinstance(last, ToolResult)
            return says("done") if done else calls(("task", {"prompt": "help", "agent": "help"}))

        house.answer = reply
        view = await house.start("go")
        assert await gate.next() == "calls"
        gate.open("calls")
        assert await gate.next() == "helped"
        (child,) = [run for run in await house.store.runs() if run.parent_run]
        assert child.epoch == 1
        await queue(house).expire_holders([queue(house).holder])
        assert await queue(house).claim("local", view.run_id) is not None
        with pytest.raises(Fenced):
            await adopt_subrun(house.store, child.id, view.run_id, 1)
        assert await adopt_subrun(house.store, child.id, view.run_id, 2) == 2
        gate.wide = True
        gate.open("helped")
        await asyncio.wait([one.task for one in _live(house)])
        stored = await house.store.run(child.id)
        assert stored is not None
        assert stored.stop is None, "what it said after it was out is not kept"


def _live(house: RunServiceHarness) -> list[ActiveRun]:
    return list(house.runs._driver.active.values())  # pyright: ignore[reportPrivateUsage]


async def test_cancelling_a_run_cancels_its_waiting_sub_runs(place: Place) -> None:
    async with open_run_service(place) as house:

        def reply(agent: str, request: Request) -> Reply:
            if agent == "help":
                return calls(("question", {"question": "Which?"}))
            last = request.history.to_tuple()[-1]
            if isinstance(last, ToolResult):
                return calls(("question", {"question": "And now?"}))
            return calls(("task", {"prompt": "help", "agent": "help"}))

        house.answer = reply
        view = await house.start("go")
        await house.wait_for_state(view.run_id, RunStatus.WAITING)
        assert len(await house.questions.waiting()) == 2
        assert await house.runs.cancel("local", view.run_id)
        await house.wait_for_state(view.run_id, RunStatus.ENDED)
        assert await house.questions.waiting() == []
        found = {run.id: run.stop for run in await house.store.runs()}
        assert set(found.values()) == {StopReason.CANCELLED}


async def test_a_running_process_is_not_reported_dead() -> None:
    name = current_process_identity()
    assert not is_process_dead(name)
    machine, pid, _, rest = name.split("/")
    assert is_process_dead(f"{machine}/{pid}/1/{rest}"), "another one had that number"
    assert not is_process_dead(f"elsewhere/{pid}/1/{rest}")
    assert not is_process_dead("named by somebody")


async def test_a_run_of_a_removed_agent_ends_with_an_error(place: Place) -> None:
    async with open_run_service(place, serve=False) as idle:
        view, _ = await idle.runs.start(WHO, RunRequest("hi", agent="help"))
    async with open_run_service(place, agents=(LEAD,)) as house:
        ended = await house.wait_for_state(view.run_id, RunStatus.ENDED)
        assert (ended.stop, "help" in ended.reason) == (StopReason.ERROR, True)


async def test_an_owner_whose_lease_expired_does_not_fence_itself(place: Place) -> None:
    async with open_run_service(place) as house:
        gate = house.gate = Gate()
        view = await house.start("hello")
        await gate.next()
        await queue(house).expire_holders([queue(house).holder])
        assert await queue(house).claim_next({}, 10, 10) == ()
        await queue(house).renew()
        gate.open("lead: hello")
        assert (await house.wait_ended(view.run_id)).stop is StopReason.COMPLETED
        stored = await house.store.run(view.run_id)
        assert stored is not None
        assert stored.epoch == 1


async def test_a_run_interrupted_before_its_waiting_state_was_stored_is_recovered(
    place: Place,
) -> None:
    async with open_run_service(place) as house:
        house.answer = lambda agent, request: calls(("question", {"question": "Which?"}))
        view = await house.start("go")
        await house.wait_for_state(view.run_id, RunStatus.WAITING)
    async with open_run_service(place, serve=False) as idle:
        claim = await queue(idle).claim("local", view.run_id)
        assert claim is not None
        await queue(idle).release([claim])  # as if it had been cut off just then
    async with open_run_service(place) as other:
        other.answer = lambda agent, request: says("fine")
        ((_, question),) = await other.questions.waiting()
        await other.questions.answer(question.id, UserAnswer(text="x"))
        assert (await other.wait_for_state(view.run_id, RunStatus.ENDED)).text == "fine"


async def test_a_run_that_another_process_ends_holds_nothing_of_the_budget(place: Place) -> None:
    async with open_run_service(place, serve=False) as house:
        view = await house.start("first")
        path, turns = (run_account(view.run_id),), Limit(9)
        ledger = house.talks.ledger
        # What the process that drove it had reserved when it died.
        await ledger.open("tenant:local", {"turns": turns}, {})
        await ledger.open(path[0], {"turns": turns}, {})
        await ledger.reserve(("tenant:local", *path), {"turns": 2}, f"{view.run_id}.turn.1")
        assert await house.runs.cancel("local", view.run_id)
        async with house.runs.serving():
            ended = await house.wait_ended(view.run_id)
        assert ended.stop is StopReason.CANCELLED
        (tenant,) = [one for one in await ledger.accounts() if one.name == "tenant:local"]
        assert (tenant.held.get("turns", 0), tenant.spent["turns"]) == (0, 2)
