"""Those who watch a run are given every record once, in order, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from evoclaw.core.events import (
    Event,
    Record,
    RunFinished,
    RunResumed,
    StopReason,
    TextDelta,
    TurnStarted,
)
from evoclaw.orchestrator.runs.hub import Hub, SingleFlight, WatcherTooSlow
from evoclaw.orchestrator.runs.views import StoredRecords
from evoclaw.orchestrator.sessions.run_records import MAX_BUFFERED_RECORDS, TRANSIENT_EVENTS
from evoclaw.store.databases.notices import Notice, NoticeKind, Notices
from tests.support.databases import Place
from tests.support.properties import examples
from tests.support.runs import QUICK, Gate, open_run_service

KEY = ("local", "run")
DELTA, TURN = TextDelta("x"), TurnStarted(1)


class Shelf(StoredRecords):
    """The records of a run that are kept; reading them takes as long as a test wants."""

    def __init__(self) -> None:
        self.kept: list[Record] = []
        self.held: list[Record] = []
        self.stopped: StopReason | None = None
        self.slow = 0
        """How often the loop goes round while something is read."""

    async def stop_reason(self) -> StopReason | None:
        await self._wait()
        return self.stopped

    async def records(self, after: int, limit: int) -> Sequence[Record]:
        await self._wait()
        found = [record for record in self.kept if record.seq > after][:limit]
        await self._wait()
        return found

    async def _wait(self) -> None:
        for _ in range(self.slow):
            await asyncio.sleep(0)


class Run:
    """A run that says what it is told to, as a driver does: kept first, unless it is in passing."""

    def __init__(self, hub: Hub, shelf: Shelf) -> None:
        self._hub, self._shelf, self._seq = hub, shelf, 0
        self.said: list[Record] = []

    async def drive(self, events: Sequence[Event], pauses: Sequence[int]) -> None:
        with self._hub.topic(KEY) as topic:
            topic.is_local = True
            topic.notify()
            self._shelf.stopped = None
            for event, pause in zip(events, pauses, strict=True):
                for _ in range(pause):
                    await asyncio.sleep(0)
                self._seq += 1
                record = Record(KEY[1], self._seq, 0.0, event)
                self._shelf.held.append(record)
                if (
                    not isinstance(event, TRANSIENT_EVENTS)
                    or len(self._shelf.held) >= MAX_BUFFERED_RECORDS
                ):
                    self._shelf.kept.extend(self._shelf.held)
                    self._shelf.held.clear()
                    if isinstance(event, RunFinished):
                        self._shelf.stopped = event.stop
                    await asyncio.sleep(0)
                self.said.append(record)
                topic.publish(record)
            topic.is_local = False
            topic.unstored.clear()
            topic.notify()


async def watch(
    hub: Hub, shelf: Shelf, after: int, wait: int, reads: Sequence[int]
) -> list[Record]:
    """Come later, read at some speed, and reconnect when dropped."""
    for _ in range(wait):
        await asyncio.sleep(0)
    found: list[Record] = []
    while True:
        try:
            async for record in hub.watch(KEY, shelf, after, follow=True):
                found.append(record)
                for _ in range(reads[len(found) % len(reads)]):
                    await asyncio.sleep(0)
            return found
        except WatcherTooSlow as slow:
            assert slow.after == (found[-1].seq if found else after)
            after = slow.after


WAITS = RunFinished(StopReason.WAITING, "")
ENDS = RunFinished(StopReason.COMPLETED, "")
some_events = st.lists(st.sampled_from([DELTA, DELTA, DELTA, TURN]), max_size=12)


@settings(max_examples=examples(150), deadline=None)
@given(
    some_events,
    some_events,
    st.lists(st.integers(0, 4), min_size=28, max_size=28),
    st.integers(0, 3),
    st.lists(
        st.tuples(
            st.integers(0, 40),
            st.integers(0, 5),
            st.lists(st.integers(0, 6), min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(2, 12),
)
def test_every_watcher_receives_each_record_exactly_once(
    before: list[Event],
    after: list[Event],
    pauses: list[int],
    slow: int,
    watchers: list[tuple[int, int, list[int]]],
    room: int,
) -> None:
    async def story() -> None:
        hub, shelf = Hub(room), Shelf()
        shelf.slow = slow
        run = Run(hub, shelf)
        first: list[Event] = [TURN, *before, WAITS]
        second: list[Event] = [TURN, *after, ENDS]
        tasks = [
            asyncio.create_task(watch(hub, shelf, start, wait, reads))
            for wait, start, reads in watchers
        ]
        async with asyncio.timeout(20):
            await run.drive(first, pauses[: len(first)])
            await run.drive(second, pauses[len(first) : len(first) + len(second)])
            for (_, start, _), task in zip(watchers, tasks, strict=True):
                assert await task == run.said[start:]

    asyncio.run(story())


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(some_events, st.sampled_from([0, 0, 1, 2]), st.integers(0, 3)), max_size=6),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), min_size=1, max_size=4),
)
def test_a_remote_watcher_misses_no_record_when_notices_are_lost_or_repeated(
    commits: list[tuple[list[Event], int, int]], slow: int, watchers: list[tuple[int, int]]
) -> None:
    """Each commit is told once, twice or not at all; now and then some may have been missed."""

    async def story() -> None:
        notices, shelf = Notices(), Shelf()
        hub, shelf.slow = Hub(poll_interval_s=0.002, notices=notices), slow
        notices.is_live = True
        told = Notice(NoticeKind.RECORDS_STORED, *KEY)
        tasks = [
            asyncio.create_task(watch(hub, shelf, start, wait, [0])) for wait, start in watchers
        ]
        with notices.subscribe(hub.on_notice):
            for events, tellings, pause in [*commits, ([ENDS], 1, 0)]:
                seq = len(shelf.kept)
                shelf.kept += [
                    Record(KEY[1], seq + number, 0.0, event)
                    for number, event in enumerate(events, 1)
                ]
                shelf.stopped = StopReason.COMPLETED if ENDS in events else None
                for _ in range(tellings):
                    notices.deliver((told,), own=False)
                for _ in range(pause):
                    await asyncio.sleep(0)
            notices.report_missed(is_live=False)
            async with asyncio.timeout(20):
                for (_, start), task in zip(watchers, tasks, strict=True):
                    assert await task == shelf.kept[start:]

    asyncio.run(story())


async def test_a_watched_run_is_announced_once_and_again_to_a_new_orchestrator() -> None:
    notices, shelf, asked = Notices(), Shelf(), list[Notice]()
    notices.is_live = True

    async def announce(told: Sequence[Notice]) -> None:
        asked.extend(told)

    hub = Hub(notices=notices, announce=announce)
    watching = asyncio.create_task(watch(hub, shelf, 0, 0, [0]))
    with notices.subscribe(hub.on_notice):
        async with asyncio.timeout(20):
            await _idle()
            assert asked == [Notice(NoticeKind.WATCHED, *KEY)]
            notices.deliver((Notice(NoticeKind.RECORDS_STORED, *KEY),), own=False)
            await _idle()
            assert len(asked) == 1, "whoever drives it knows"
            notices.deliver((Notice(NoticeKind.LISTENER_JOINED, "", ""),), own=False)
            await _idle()
            assert len(asked) == 2, "he may drive it soon"
            notices.report_missed(is_live=True)
            await _idle()
            assert len(asked) == 3
            shelf.stopped = StopReason.WAITING
            notices.deliver((Notice(NoticeKind.STATE_CHANGED, *KEY),), own=False)
            await _idle()
            assert len(asked) == 3, "nobody drives a run that waits"
            notices.report_missed(is_live=True)
            shelf.stopped = None
            notices.deliver((Notice(NoticeKind.STATE_CHANGED, *KEY),), own=False)
            await _idle()
            assert len(asked) == 4
            shelf.stopped = StopReason.COMPLETED
            notices.deliver((Notice(NoticeKind.STATE_CHANGED, *KEY),), own=False)
            assert await watching == []
        assert await watch(hub, shelf, 0, 0, [0]) == []
        assert len(asked) == 4, "nobody asks about what is over"


async def test_an_end_that_was_stored_before_its_watcher_was_known_is_found_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evoclaw.orchestrator.runs.hub.NOTIFIED_POLL_INTERVAL_S", 60.0)
    monkeypatch.setattr("evoclaw.orchestrator.runs.hub.ANNOUNCED_POLL_INTERVAL_S", 0.01)
    notices, shelf, asked = Notices(), Shelf(), list[Notice]()
    notices.is_live = True

    async def announce(told: Sequence[Notice]) -> None:
        asked.extend(told)
        shelf.stopped = StopReason.COMPLETED  # before the driver hears of the watcher

    async def has_stopped() -> bool:
        return shelf.stopped is not None

    hub = Hub(notices=notices, announce=announce)
    async with asyncio.timeout(20):
        assert await watch(hub, shelf, 0, 0, [0]) == []
        shelf.stopped = None
        await hub.wait_until(KEY, has_stopped, notified=True)
    assert asked == [Notice(NoticeKind.WATCHED, *KEY)] * 2


async def test_repeated_watch_announcements_of_many_runs_are_batched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evoclaw.orchestrator.runs.hub.WATCH_NOTICE_INTERVAL_S", 0.05)
    monkeypatch.setattr("evoclaw.orchestrator.runs.hub.NOTIFIED_POLL_INTERVAL_S", 0.01)
    notices, shelf, letters, enough = Notices(), Shelf(), list[int](), asyncio.Event()
    notices.is_live = True

    async def announce(told: Sequence[Notice]) -> None:
        letters.append(len(told))
        if sum(letters) >= 500:
            enough.set()

    hub = Hub(notices=notices, announce=announce)

    async def watch_one(run_id: str) -> None:
        async for _ in hub.watch(("local", run_id), shelf, follow=True):
            pass

    tasks = [asyncio.create_task(watch_one(str(number))) for number in range(100)]
    async with asyncio.timeout(60):
        await enough.wait()
    shelf.stopped = StopReason.COMPLETED
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert letters[:100] == [1] * 100, "at first each at once"
    assert len(letters) < 300, "then many in one"


async def _idle() -> None:
    """Let everybody go on who can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_slow_watcher_is_dropped_and_does_not_delay_others() -> None:
    hub, shelf = Hub(max_lag=10), Shelf()
    run = Run(hub, shelf)
    slow, quick = hub.watch(KEY, shelf), asyncio.create_task(watch(hub, shelf, 0, 0, [0]))
    reading = asyncio.create_task(anext(slow))
    events: list[Event] = [*[DELTA] * 500, ENDS]
    async with asyncio.timeout(30):
        await run.drive(events, [1] * len(events))
        first = await reading
        assert await quick == run.said
        got = [first]
        with pytest.raises(WatcherTooSlow) as dropped:
            while True:
                got.append(await anext(slow))
        assert got == run.said[: len(got)]
        assert len(got) < 20
        assert dropped.value.after == got[-1].seq
        assert got + await watch(hub, shelf, dropped.value.after, 0, [0]) == run.said


@pytest.mark.slow
async def test_a_thousand_watchers_of_one_run_receive_all_records() -> None:
    hub, shelf = Hub(), Shelf()
    run = Run(hub, shelf)
    tasks = [asyncio.create_task(watch(hub, shelf, 0, 0, [0])) for _ in range(1_000)]
    events: list[Event] = [*[DELTA] * 50, ENDS]
    async with asyncio.timeout(20):
        await run.drive(events, [2] * len(events))
        for task in tasks:
            assert await task == run.said
    assert not hub._topics  # pyright: ignore[reportPrivateUsage]


async def test_watchers_of_a_remote_run_share_store_reads() -> None:
    notices, reads = Notices(), 0

    class Counting(Shelf):
        async def records(self, after: int, limit: int) -> Sequence[Record]:
            nonlocal reads
            reads += 1
            return await super().records(after, limit)

    hub, shelf = Hub(poll_interval_s=60, notices=notices), Counting()
    tasks = [asyncio.create_task(watch(hub, shelf, 0, 0, [0])) for _ in range(500)]
    gone = asyncio.create_task(watch(hub, shelf, 0, 0, [0]))
    with notices.subscribe(hub.on_notice):
        async with asyncio.timeout(60):
            for number in range(1, 21):
                await _idle()
                ends = number == 20
                shelf.kept.append(Record(KEY[1], number, 0.0, ENDS if ends else TURN))
                shelf.stopped = StopReason.COMPLETED if ends else None
                notices.deliver((Notice(NoticeKind.RECORDS_STORED, *KEY),), own=False)
            gone.cancel()
            for task in tasks:
                assert await task == shelf.kept
            await asyncio.wait([gone])
    assert reads < 200, "not ten thousand"
    assert not hub._topics  # pyright: ignore[reportPrivateUsage]


async def test_cancelling_the_only_caller_of_a_single_flight_leaves_no_task() -> None:
    together, begun = SingleFlight[int](), asyncio.Event()

    async def slow() -> int:
        begun.set()
        await asyncio.Event().wait()
        return 1

    async def quick() -> int:
        return 2

    before = asyncio.all_tasks()
    async with asyncio.timeout(20):
        for wait in (False, True):
            alone = asyncio.create_task(together.run("k", slow))
            await asyncio.sleep(0)
            if wait:
                await begun.wait()
            alone.cancel()
            await asyncio.wait([alone])
            assert alone.cancelled()
            assert asyncio.all_tasks() == before
        both = await asyncio.gather(*(together.run("k", quick) for _ in range(2)))
        assert both == [2, 2]


async def test_a_watcher_receives_a_reply_while_it_streams(place: Place) -> None:
    async with open_run_service(place) as house:
        gate = house.gate = Gate()
        view = await house.start("hello")
        await gate.next()
        seen: list[Record] = []
        async with asyncio.timeout(30):
            async for record in house.runs.watch("local", view.run_id):
                seen.append(record)
                if isinstance(record.event, TextDelta):
                    assert record.seq not in [r.seq for r in await house.store.records(view.run_id)]
                    gate.open("lead: hello")
        assert seen == await house.store.records(view.run_id)
        assert await house.records(view.run_id, after=3) == seen[3:]


async def test_record_numbers_seen_by_a_watcher_are_not_reused_after_a_restart(
    place: Place,
) -> None:
    async with open_run_service(place) as house:
        gate = house.gate = Gate()
        view = await house.start("hello")
        await gate.next()
        seen: list[Record] = []
        async with asyncio.timeout(30):
            async for record in house.runs.watch("local", view.run_id):
                seen.append(record)
                if isinstance(record.event, TextDelta):
                    break
    async with open_run_service(place) as house:
        await house.wait_ended(view.run_id)
        rest = await house.records(view.run_id, after=seen[-1].seq)
        assert isinstance(rest[0].event, RunResumed)
        assert isinstance(rest[-1].event, RunFinished)
        kept = await house.store.records(view.run_id)
        assert [record for record in kept if record.seq > seen[-1].seq] == rest


async def test_a_run_that_another_process_drives_can_be_watched(place: Place) -> None:
    async with open_run_service(place) as house, open_run_service(place, serve=False) as elsewhere:
        gate = house.gate = Gate()
        view = await house.start("hello")
        await gate.next()
        watching = asyncio.create_task(elsewhere.records(view.run_id))
        result = asyncio.create_task(elsewhere.runs.result("local", view.run_id))
        gate.open("lead: hello")
        assert await watching == await house.store.records(view.run_id)
        assert (await result).text == "lead: hello"


async def test_a_long_run_history_is_read_in_pages(place: Place) -> None:
    many = replace(QUICK, slow_watcher=10)
    async with open_run_service(place, settings=many) as house:
        text = "\n".join(str(number) for number in range(1_500))
        view = await house.start(text)
        await house.wait_ended(view.run_id)
        records = await house.records(view.run_id)
        assert len(records) > 1_500
        assert records == await house.store.records(view.run_id)


async def test_a_waiting_run_is_polled_at_growing_intervals() -> None:
    looks: list[float] = []
    enough = asyncio.Event()

    class Waiting(StoredRecords):
        def __init__(self) -> None: ...

        async def stop_reason(self) -> StopReason | None:
            looks.append(asyncio.get_running_loop().time())
            if len(looks) == 6:  # after 5, 10, 20, 40 and 80 ms at the least
                enough.set()
            return StopReason.WAITING

        async def records(self, after: int, limit: int) -> Sequence[Record]:
            return ()

    watched = Hub(poll_interval_s=0.005).watch(("local", "r"), Waiting(), follow=True)
    async with asyncio.timeout(20), aclosing(watched):
        watching = asyncio.create_task(anext(watched))
        await enough.wait()
        watching.cancel()
        await asyncio.wait([watching])
    assert looks[5] - looks[4] > 10 * 0.005
