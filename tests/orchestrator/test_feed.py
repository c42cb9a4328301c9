"""What changes, told to all who watch: looked for once, merged for the slow, never lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import count

import msgspec
import pytest
from msgspec import Raw

from evoclaw.core.labels import Principal
from evoclaw.governance.approvals import ApprovalRequest, ApprovalScope
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.orchestrator.log_throttle import LogThrottle, repeat_suffix
from evoclaw.orchestrator.overview import feed as feeds
from evoclaw.orchestrator.overview import sources
from evoclaw.orchestrator.overview.feed import Feed, FeedItem, FeedUpdate
from evoclaw.orchestrator.overview.sources import ApprovalSource, EdgeSource, RunSource
from evoclaw.orchestrator.people.approvals import ApprovalCase, CallApprovals
from evoclaw.orchestrator.runs.runs import RunRequest
from evoclaw.store.databases.change_detection import CommitMark, commit_mark
from evoclaw.store.databases.database import StoreFull
from evoclaw.store.governance.approvals import ApprovalClaim, ApprovalStore, StoredApproval
from evoclaw.store.sessions import tables as session_tables
from evoclaw.transport.wire import Heartbeat
from tests.support.databases import Place
from tests.support.runs import open_run_service

LIMIT = 10.0


class Things:
    """A source of a test: what is put in is what changed."""

    def __init__(self, always_whole: bool = False) -> None:
        self.always_whole = always_whole
        self.all: dict[str, FeedItem] = {}
        self.fresh: list[FeedItem] = []
        self.polls = 0
        self.problems: list[Exception] = []

    def put(self, id_: str, value: int, owner: str | None = None) -> None:
        self.all[id_] = item = FeedItem(id_, owner, Raw(msgspec.json.encode(value)))
        self.fresh.append(item)

    def is_due(self, written: bool) -> bool:
        return True

    async def poll(self) -> Sequence[FeedItem]:
        self.polls += 1
        if self.problems:
            raise self.problems.pop()
        fresh, self.fresh = self.fresh, []
        return fresh

    async def all_items(self, owner: str | None) -> Sequence[FeedItem]:
        return list(self.all.values())


class Bell:
    """Something that happens here."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    async def change(self) -> None:
        await self._rung.wait()
        self._rung.clear()

    def ring(self) -> None:
        self._rung.set()


def a_feed(things: Things, bell: Bell, *, pace: float = 0.01, look: float = 3600.0) -> Feed:
    """One that looks when the bell rings."""
    numbers = count()

    async def written() -> CommitMark:
        return next(numbers), ""

    return Feed(
        {"things": lambda _: things},
        written,
        [bell.change],
        min_interval_s=pace,
        max_interval_s=look,
    )


@asynccontextmanager
async def watching(
    feed: Feed, owner: str | None = None
) -> AsyncGenerator[Callable[[], asyncio.Future[FeedUpdate]]]:
    async with asyncio.timeout(LIMIT), aclosing(feed.watch("t", ["things"], owner)) as told:

        async def following() -> FeedUpdate:
            return (await anext(told))[1]

        yield lambda: asyncio.ensure_future(following())


def values(told: FeedUpdate) -> list[int]:
    return [msgspec.json.decode(one) for one in told.items]


async def test_a_new_watcher_receives_everything_and_then_only_changes() -> None:
    things, bell = Things(), Bell()
    things.put("a", 1)
    async with watching(a_feed(things, bell)) as following:
        assert await following() == FeedUpdate((Raw(b"1"),), whole=True)
        things.put("b", 2)
        bell.ring()
        assert await following() == FeedUpdate((Raw(b"2"),), whole=False)


async def test_watchers_of_a_feed_share_one_poll() -> None:
    things, bell = Things(), Bell()
    feed = a_feed(things, bell)
    async with watching(feed) as one, watching(feed) as two, watching(feed) as three:
        everybody = (one, two, three)
        await asyncio.gather(*(following() for following in everybody))
        things.put("a", 1)
        before = things.polls
        bell.ring()
        told = await asyncio.gather(*(following() for following in everybody))
        assert [values(one) for one in told] == [[1]] * 3
        assert things.polls - before <= 2


async def test_a_slow_watcher_receives_only_the_latest_value_of_each_item() -> None:
    things, bell = Things(), Bell()
    feed = a_feed(things, bell)
    async with watching(feed) as slow, watching(feed) as quick:
        await asyncio.gather(slow(), quick())
        for value in range(20):
            things.put("a", value)
            things.put("b", -value)
            bell.ring()
            await quick()
        assert values(await slow()) == [19, -19]


async def test_a_watcher_with_too_many_pending_items_receives_a_full_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeds, "MAX_PENDING_ITEMS", 3)
    things, bell = Things(), Bell()
    async with watching(a_feed(things, bell)) as following:
        await following()
        for value in range(4):
            things.put(str(value), value)
        bell.ring()
        assert await following() == FeedUpdate(
            tuple(Raw(b"%d" % one) for one in range(4)), whole=True
        )


async def test_a_watcher_receives_only_its_own_and_shared_items() -> None:
    things, bell = Things(), Bell()
    things.put("hers", 1, "ann")
    things.put("his", 2, "bob")
    things.put("ours", 3)
    feed = a_feed(things, bell)
    async with watching(feed, "ann") as ann, watching(feed) as boss:
        assert values(await ann()) == [1, 3]
        assert values(await boss()) == [1, 2, 3]
        hers = ann()
        things.put("his", 20, "bob")
        bell.ring()
        assert values(await boss()) == [20]
        things.put("hers", 10, "ann")
        bell.ring()
        assert values(await boss()) == [10]
        assert values(await hers) == [10]


async def test_a_full_update_is_sent_again_only_when_its_content_changed() -> None:
    things, bell = Things(always_whole=True), Bell()
    things.put("hers", 1, "ann")
    feed = a_feed(things, bell)
    async with watching(feed, "ann") as ann, watching(feed) as boss:
        await asyncio.gather(ann(), boss())
        hers = ann()
        things.put("his", 2, "bob")
        bell.ring()
        assert values(await boss()) == [1, 2]
        things.put("hers", 3, "ann")
        bell.ring()
        assert await hers == FeedUpdate((Raw(b"3"),), whole=True)


async def test_a_feed_retries_a_failing_store_and_logs_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    things, bell = Things(), Bell()
    async with watching(a_feed(things, bell, look=0.01)) as following:
        await following()
        things.problems = [StoreFull("here") for _ in range(5)]
        things.put("a", 1)
        with caplog.at_level(logging.WARNING):
            assert values(await following()) == [1]
    assert len(caplog.records) == 1, "a disk that is full is not filled by telling so"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_exception_reaches_the_watcher_and_the_next_watcher_restarts_the_feed() -> None:
    things, bell = Things(), Bell()
    feed = a_feed(things, bell)
    async with watching(feed) as following:
        await following()
        waiting = following()
        things.problems = [RuntimeError("broken")]
        bell.ring()
        with pytest.raises(ExceptionGroup):
            await waiting
    async with watching(feed) as following:
        assert (await following()).whole


async def test_a_feed_leaves_no_task_when_all_watchers_left() -> None:
    before = asyncio.all_tasks()
    feed = a_feed(Things(), Bell())
    async with watching(feed) as one, watching(feed) as two:
        await asyncio.gather(one(), two())
    assert asyncio.all_tasks() == before


async def test_the_database_change_mark_changes_only_on_writes(place: Place) -> None:
    ours, theirs = await place.open(session_tables.SCHEMA), await place.open(session_tables.SCHEMA)
    try:
        first = await commit_mark(ours)
        await theirs.read(lambda c: c.execute("SELECT count(*) FROM runs").fetchone())
        assert await commit_mark(ours) == first
        for database in (theirs, ours):
            before = await commit_mark(ours)
            await database.write(lambda c: c.execute("DELETE FROM todos"))
            put = "INSERT INTO todos VALUES ('t', 's', ?)"
            await database.write(lambda c: c.execute(put, (b"x",)))  # noqa: B023
            assert await commit_mark(ours) != before
    finally:
        await ours.close()
        await theirs.close()


async def test_a_changed_run_is_published_even_when_it_is_not_listed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "NEWEST_RUNS", 1)
    monkeypatch.setattr(sources, "MAX_OPEN_RUNS", 1)
    async with open_run_service(place, serve=False) as here:
        first, second = await here.start("first"), await here.start("second")
        runs = RunSource(here.store)
        await runs.poll()
        assert list(await runs.poll()) == []
        for view in (second, first):
            await here.start(f"after {view.asked}")
            assert len(await runs.poll()) == 1
        assert await here.runs.cancel("local", second.run_id)
        async with here.runs.serving():
            await here.wait_ended(second.run_id)
        changed = {item.id for item in await runs.poll()}
        assert second.run_id in changed


async def test_a_run_of_another_tenant_is_not_published(place: Place) -> None:
    async with open_run_service(place) as here:
        runs = RunSource(here.store)
        await runs.poll()
        view, _ = await here.runs.start(Principal("else", "eve"), RunRequest("psst"))
        await here.wait_ended(view.run_id, "else")
        assert list(await runs.poll()) == []
        assert [one.owner for one in await RunSource(here.store.of("else")).all_items(None)] == [
            "eve"
        ]


async def test_an_expired_approval_is_removed_from_the_feed(place: Place) -> None:
    now = 1_000.0
    async with open_run_service(place, serve=False) as here:
        store = ApprovalStore(here.store.database, lambda: now)
        asking = ApprovalRequest(
            id="a",
            run_id="r",
            request_id="r.1.0.0",
            scope=ApprovalScope("local", "ann", "lead", "", "work", "", "c"),
            sha256="s",
            arguments={},
            reason="why",
            asked_at=now,
            expires_at=now + 10,
        )
        blob = msgspec.json.encode(asking)
        row = StoredApproval("a", "local", "r.1.0.0", "s", "k", blob, now + 10)
        await store.claim(ApprovalClaim(row, 1, "me"))
        cases = ApprovalSource(CallApprovals(store), "local", _tool, lambda: now)
        assert [item.owner for item in await cases.poll()] == ["ann"]
        assert not cases.is_due(False)
        now += 10
        assert cases.is_due(False)
        assert await cases.poll(), "that something is gone is a change"
        assert await cases.all_items(None) == []
        assert not cases.is_due(False)


class Shown(msgspec.Struct):
    name: str
    load: int = 0


def _tool(case: ApprovalCase) -> Shown:
    return Shown(case.request.scope.tool)


def _edge(name: str, member: Member | None, device: str | None) -> Shown:
    return Shown(f"{name} {device}", 0 if member is None else sum(member.loads))


async def test_only_edges_with_a_new_heartbeat_are_published() -> None:
    fleet, joined = Fleet(), {"edge-7": "approved"}
    edges = EdgeSource(fleet, lambda: dict(joined), _edge)
    for number in range(1_000):
        fleet.on_heartbeat(f"edge-{number}", Heartbeat("b", 1, number))
    assert len(await edges.poll()) == 1_000
    assert list(await edges.poll()) == []
    fleet.on_heartbeat("edge-7", Heartbeat("b", 1, 1, 1))
    (item,) = await edges.poll()
    assert msgspec.json.decode(item.shown, type=Shown) == Shown("edge-7 approved", 9)
    joined["edge-8"] = "revoked"
    assert [item.id for item in await edges.poll()] == ["edge-8"]
    assert len(await edges.all_items(None)) == 1_000


def test_edge_load_history_is_bounded_and_invalid_heartbeat_values_are_clamped() -> None:
    fleet = Fleet(wall_clock=lambda: 1_700_000_000.1234)
    for number in range(100):
        fleet.on_heartbeat("lamp", Heartbeat("b", 1, number, 1))
    member = fleet.member("lamp")
    assert list(member.loads) == list(range(71, 101))
    assert member.last_seen == 1_700_000_000.123
    fleet.on_heartbeat("lamp", Heartbeat("b", 1, -5, 10**30, -1, float("inf"), float("nan"), -1.0))
    beat = member.heartbeat
    assert beat is not None
    assert (beat.in_flight, beat.queued, beat.room) == (0, 10**15, 0)
    assert (beat.cpu_percent, beat.memory_mb, beat.uptime_s) == (0.0, 0.0, 0.0)


def test_the_log_throttle_logs_an_event_at_once_and_then_once_a_minute() -> None:
    now = 0.0
    seldom = LogThrottle(clock=lambda: now)
    assert seldom.count("full") == 1
    assert [seldom.count("full") for _ in range(10)] == [0] * 10
    assert seldom.count("other") == 1
    now = 60.0
    assert seldom.count("full") == 11
    assert repeat_suffix(11) == " (11 times since this was last logged)"
    assert repeat_suffix(1) == ""
