"""A run is watched and spoken to through an orchestrator that does not drive it, at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from secrets import token_hex

import pytest
from msgspec.structs import replace

from evoclaw.core.events import (
    Record,
    Replied,
    RunFinished,
    RunResumed,
    StopReason,
    TextDelta,
    TurnStarted,
)
from evoclaw.core.messages import Reply, ToolResult
from evoclaw.core.ports import Request
from evoclaw.orchestrator.runs.runs import RunStatus
from evoclaw.orchestrator.sessions.run_records import RecordBuffer
from evoclaw.providers.scripted import calls, says
from evoclaw.store.databases.database import StoreError
from evoclaw.store.databases.notices import Notice
from evoclaw.tools.question import UserAnswer
from tests.store.test_notices import end_listeners
from tests.support.databases import Place
from tests.support.runs import QUICK, Gate, RunServiceHarness, open_run_service

CALM = replace(QUICK, look_s=30.0, lease_s=600.0)
"""Nothing is found by looking: what happens within a test's patience was told."""
PATIENCE = 20.0
LONG = 1_000.0
STORM = 1_000


@pytest.fixture(name="shared")
def _shared(postgres_url: str) -> Place:
    return Place(postgres_url, f"test_{token_hex(6)}")


@pytest.fixture(autouse=True)
def _nothing_is_found_by_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evoclaw.orchestrator.runs.hub.NOTIFIED_POLL_INTERVAL_S", LONG)
    monkeypatch.setattr("evoclaw.orchestrator.runs.hub.MAX_WAITING_POLL_INTERVAL_S", LONG)


@asynccontextmanager
async def door(place: Place) -> AsyncGenerator[RunServiceHarness]:
    """An orchestrator that hears of everything, and drives nothing."""
    async with open_run_service(place, settings=CALM, serve=False) as house:
        database = house.store.database
        with database.notices.subscribe(house.runs.hub.on_notice):
            async with database.listening():
                yield house


async def reached(*houses: RunServiceHarness) -> None:
    """Wait until what others write is heard."""
    for house in houses:
        notices, there = house.store.database.notices, asyncio.Event()

        def told(_: Notice | None, there: asyncio.Event = there) -> None:
            there.set()

        with notices.subscribe(told):
            async with asyncio.timeout(PATIENCE):
                while not notices.is_live:
                    there.clear()
                    await there.wait()


@asynccontextmanager
async def under_way(
    place: Place,
) -> AsyncGenerator[tuple[RunServiceHarness, RunServiceHarness, Gate, str]]:
    """Who drives a run that waits for its model, another door, that model, and the run's id."""
    async with open_run_service(place, settings=CALM) as house, door(place) as elsewhere:
        await reached(house, elsewhere)
        gate = house.gate = Gate()
        view = await house.start("hello")
        await gate.next()
        yield house, elsewhere, gate, view.run_id


class Watcher:
    """Somebody who watches a run, and what he has seen so far."""

    def __init__(self, house: RunServiceHarness, run_id: str, *, follow: bool = False) -> None:
        self.seen: list[Record] = []
        self._more = asyncio.Event()
        self.task = asyncio.create_task(self._watch(house, run_id, follow))

    async def _watch(self, house: RunServiceHarness, run_id: str, follow: bool) -> None:
        async with aclosing(house.runs.watch("local", run_id, follow=follow)) as records:
            async for record in records:
                self.seen.append(record)
                self._more.set()

    async def until(self, there: Callable[[Sequence[Record]], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not there(self.seen):
                assert not self.task.done(), self.seen
                self._more.clear()
                await self._more.wait()

    async def all(self) -> list[Record]:
        async with asyncio.timeout(PATIENCE):
            await self.task
        return self.seen


def said(records: Sequence[Record]) -> str:
    return "".join(one.event.text for one in records if isinstance(one.event, TextDelta))


async def test_another_orchestrator_sees_a_reply_while_it_streams(shared: Place) -> None:
    async with under_way(shared) as (house, elsewhere, gate, run_id):
        kept = await house.store.records(run_id)
        assert said(kept) == "", "nobody watches: pieces wait for what matters"
        watcher = Watcher(elsewhere, run_id)
        await watcher.until(lambda seen: said(seen) == "lead: hello")
        assert not any(isinstance(record.event, Replied) for record in watcher.seen)
        gate.open("lead: hello")
        seen = await watcher.all()
        assert seen == await house.store.records(run_id)
        assert isinstance(seen[-1].event, RunFinished)


async def test_a_remote_watcher_that_joins_before_the_run_starts_gets_all_records(
    shared: Place,
) -> None:
    async with door(shared) as elsewhere:
        await reached(elsewhere)
        view = await elsewhere.start("hello")
        watcher = Watcher(elsewhere, view.run_id)
        async with open_run_service(shared) as house:
            gate = house.gate = Gate()
            await gate.next()
            await watcher.until(lambda seen: said(seen) == "lead: hello")
            gate.open("lead: hello")
            assert await watcher.all() == await house.store.records(view.run_id)


async def test_another_orchestrator_receives_the_result(shared: Place) -> None:
    async with under_way(shared) as (_, elsewhere, gate, run_id):
        result = asyncio.create_task(elsewhere.runs.result("local", run_id))
        gate.open("lead: hello")
        async with asyncio.timeout(PATIENCE):
            assert (await result).text == "lead: hello"


async def test_cancelling_through_another_orchestrator_ends_the_run_at_once(shared: Place) -> None:
    async with under_way(shared) as (_, elsewhere, _, run_id):
        watcher = Watcher(elsewhere, run_id)
        assert await elsewhere.runs.cancel("local", run_id)
        end = (await watcher.all())[-1].event
        assert isinstance(end, RunFinished)
        assert end.stop is StopReason.CANCELLED


async def test_steering_through_another_orchestrator_reaches_the_run_at_once(shared: Place) -> None:
    async with under_way(shared) as (house, elsewhere, gate, run_id):
        heard = steered(house, run_id)
        await elsewhere.runs.steer("local", run_id, "and more")
        await heard
        gate.open("lead: hello")
        assert await gate.next() == "lead: and more"
        gate.open("lead: and more")
        assert (await elsewhere.wait_ended(run_id)).text == "lead: and more"


def steered(house: RunServiceHarness, run_id: str) -> asyncio.Task[None]:
    """Ends when a run has been told what was said to it."""
    driven = house.runs._driver.active["local", run_id]  # pyright: ignore[reportPrivateUsage]
    steering = driven.steering
    assert steering is not None
    there = asyncio.Event()

    class Known:
        """Sees that something was taken in."""

        def __init__(self, hear: Callable[..., None]) -> None:
            self._hear = hear

        def __call__(self, *arguments: object) -> None:
            self._hear(*arguments)
            there.set()

    steering.add = Known(steering.add)  # pyright: ignore[reportAttributeAccessIssue]

    async def wait() -> None:
        async with asyncio.timeout(PATIENCE):
            await there.wait()

    return asyncio.create_task(wait())


async def test_an_answer_given_in_another_process_resumes_the_run_at_once(shared: Place) -> None:
    def reply(agent: str, request: Request) -> Reply:
        done = isinstance(request.history.to_tuple()[-1], ToolResult)
        return says("thank you") if done else calls(("question", {"question": "Which?"}))

    async with open_run_service(shared, settings=CALM) as house, door(shared) as desk:
        await reached(house)
        house.answer = reply
        view = await house.start("go")
        watcher = Watcher(house, view.run_id, follow=True)
        await house.wait_for_state(view.run_id, RunStatus.WAITING)
        ((_, question),) = await desk.questions.waiting()
        # As at another machine's command line: it drives nothing, and wakes nobody.
        assert await desk.questions.answer(question.id, UserAnswer(text="blue")) == ""
        end = (await watcher.all())[-1].event
        assert isinstance(end, RunFinished)
        assert (end.stop, end.text) == (StopReason.COMPLETED, "thank you")


async def test_a_remote_watcher_catches_up_after_its_listener_was_disconnected(
    shared: Place,
) -> None:
    async with under_way(shared) as (house, elsewhere, gate, run_id):
        watcher = Watcher(elsewhere, run_id)
        await watcher.until(lambda seen: said(seen) == "lead: hello")
        end_listeners(str(shared.at))
        gate.open("lead: hello")
        assert await watcher.all() == await house.store.records(run_id)


async def test_a_remote_watcher_follows_a_run_through_a_takeover(shared: Place) -> None:
    async with AsyncExitStack() as stack:
        third = await stack.enter_async_context(door(shared))
        async with open_run_service(shared, settings=CALM) as first:
            await reached(first, third)
            gate = first.gate = Gate()
            view = await first.start("hello")
            await gate.next()
            watcher = Watcher(third, view.run_id)
            await watcher.until(lambda seen: said(seen) == "lead: hello")
        second = await stack.enter_async_context(open_run_service(shared))
        seen = await watcher.all()
        assert (await second.wait_ended(view.run_id)).text == "lead: hello"
        assert seen == await second.store.records(view.run_id)
        numbers = [record.seq for record in seen]
        assert numbers == sorted(set(numbers))
        assert sum(isinstance(record.event, RunResumed) for record in seen) == 1


async def test_a_watcher_sees_a_sub_run_of_the_same_process_at_once(place: Place) -> None:
    async with open_run_service(place, settings=CALM) as house:
        gate = house.gate = Gate()

        def reply(agent: str, request: Request) -> Reply:
            if agent == "help":
                return says("helped")
            done = isinstance(request.history.to_tuple()[-1], ToolResult)
            return says("done") if done else calls(("task", {"prompt": "help", "agent": "help"}))

        house.answer = reply
        view = await house.start("go")
        assert await gate.next() == "calls"
        gate.open("calls")
        assert await gate.next() == "helped"
        (child,) = [run for run in await house.store.runs() if run.parent_run]
        watcher = Watcher(house, child.id)
        await watcher.until(lambda seen: len(seen) > 0)
        gate.wide = True
        gate.open("helped")
        seen = await watcher.all()
        assert isinstance(seen[-1].event, RunFinished)
        await house.wait_ended(view.run_id)


@pytest.mark.slow
async def test_a_thousand_concurrent_runs_are_watched_from_another_orchestrator(
    shared: Place,
) -> None:
    """A thousand runs at once, each watched through the other one: everything, once, in order.

    Now and then nobody hears anything for a moment.
    """
    async with door(shared) as house, door(shared) as elsewhere:
        await reached(house, elsewhere)
        made = await asyncio.gather(*(house.talks.open("lead") for _ in range(STORM)))
        begun = (house.store.create_run(token_hex(8), session.id, "hello") for session in made)
        runs = await asyncio.gather(*begun)
        watchers = [Watcher(elsewhere, run.id) for run in runs]

        done = 0

        async def drive(session_id: str, run_id: str) -> list[Record]:
            nonlocal done
            said = house.talks.send(session_id, "hello", run_id=run_id)
            records = [record async for record in said]
            done += 1
            if done % (STORM // 4) == 0:
                await asyncio.to_thread(end_listeners, str(shared.at), least=0)
            return records

        async with asyncio.timeout(120):
            driven = await asyncio.gather(*(drive(run.session_id, run.id) for run in runs))
            for records, watcher in zip(driven, watchers, strict=True):
                await watcher.task
                assert watcher.seen == records
        assert not elsewhere.runs.hub._topics  # pyright: ignore[reportPrivateUsage]


class Shelf:
    """Where pieces are kept, as slowly as a test wants."""

    def __init__(self) -> None:
        self.kept: list[list[Record]] = []
        self.came = asyncio.Event()
        self.go = asyncio.Event()
        self.problem: Exception | None = None

    async def __call__(self, records: Sequence[Record]) -> None:
        self.came.set()
        await self.go.wait()
        if self.problem is not None:
            raise self.problem
        self.kept.append(list(records))


def record(seq: int) -> Record:
    return Record("r", seq, 0.0, TurnStarted(seq))


async def test_the_record_buffer_stores_records_in_order() -> None:
    shelf = Shelf()
    pieces = RecordBuffer(shelf, lambda: True)
    async with asyncio.timeout(PATIENCE):
        pieces.add(record(1))
        await shelf.came.wait()
        pieces.add(record(2))
        settling = asyncio.create_task(pieces.wait_flushed())
        await asyncio.sleep(0)
        assert not settling.done(), "what was asked for first is kept first"
        shelf.go.set()
        await settling
        assert shelf.kept == [[record(1)]]
        assert pieces.drain() == [record(2)]
        assert len(pieces) == 0
        await pieces.close()


async def test_the_record_buffer_holds_records_that_no_watcher_needs() -> None:
    shelf = Shelf()
    shelf.go.set()
    pieces = RecordBuffer(shelf, lambda: False)
    pieces.add(record(1))
    async with asyncio.timeout(PATIENCE):
        await pieces.wait_flushed()
        assert shelf.kept == []
        pieces.schedule_flush()
        await shelf.came.wait()
        await pieces.wait_flushed()
        assert shelf.kept == [[record(1)]]
        await pieces.close()


async def test_the_record_buffer_raises_a_store_error_on_the_next_write() -> None:
    shelf = Shelf()
    shelf.problem = StoreError("no")
    shelf.go.set()
    pieces = RecordBuffer(shelf, lambda: True)
    async with asyncio.timeout(PATIENCE):
        pieces.add(record(1))
        await shelf.came.wait()
        with pytest.raises(StoreError, match="no"):
            await pieces.wait_flushed()
        pieces.add(record(2))
        await pieces.close()
    assert shelf.kept == []
