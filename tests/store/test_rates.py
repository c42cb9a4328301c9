"""Calls that are counted in a database: together by all who share it, and never too many."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evoclaw.core.errors import RunSuspended
from evoclaw.core.ports import Deny
from evoclaw.governance.rate_limits import RateLimit, RateLimits, RateSettings
from evoclaw.store.databases.database import Connection, Database
from evoclaw.store.databases.write_requests import write_scope
from evoclaw.store.governance.rates import PRUNE_INTERVAL_CALLS, SCHEMA, RateStore
from tests.governance.test_rate_limits import ANN, Clock, allowed, call
from tests.support.databases import Place, hold_deferred_commits
from tests.support.postgres import Postgres
from tests.support.properties import examples
from tests.support.stores import ROOT

RACER = """
import asyncio, sys, time
from evoclaw.store.governance.rates import SCHEMA, RateStore
from tests.support.databases import Place

async def main(at, schema, marks, per_minute, burst, refusals):
    database = await Place.of(at, schema).open(SCHEMA)
    try:
        await race(database, marks, per_minute, burst, refusals)
    finally:
        await database.close()  # its thread would keep a failed process alive

async def race(database, marks, per_minute, burst, refusals):
    counts = RateStore(database, wait=False)
    print("ready", flush=True)
    sys.stdin.readline()
    left = int(refusals)
    with open(marks, "a") as file:
        while left:
            before = time.monotonic()
            refused = await counts.take([("ann", int(per_minute), int(burst))])
            if refused is None:
                after = time.monotonic()
                await database.write(lambda connection: None)
                print(before, after, file=file, flush=True)
            else:
                left -= 1
                await asyncio.sleep(min(refused[0], 0.005))

asyncio.run(main(*sys.argv[1:]))
"""


@asynccontextmanager
async def counting(
    place: Place, clock: Callable[[], float] | None = None, *, wait: bool = True
) -> AsyncGenerator[tuple[Database, RateStore]]:
    database = await place.open(SCHEMA)
    try:
        yield database, RateStore(database, clock=clock, wait=wait)
    finally:
        await database.close()


def on_postgres(url: str) -> Place:
    return Place(url, f"test_{token_hex(6)}")


async def count(database: Database) -> int:
    def work(connection: Connection) -> int:
        return connection.execute("SELECT count(*) FROM rate_calls").fetchone()[0]

    return await database.read(work)


async def test_rate_limits_are_shared_between_two_processes(place: Place) -> None:
    clock = Clock()
    limits = RateSettings(per_minute=4, burst=3, tools={"bash": RateLimit(per_minute=2)})
    async with counting(place, clock) as (_, here), counting(place, clock) as (_, there):
        one, two = (RateLimits(limits, counts=counts) for counts in (here, there))
        assert [await allowed(one, 1), await allowed(two, 2)] == [1, 1]
        verdict = await one.judge(call())
        assert isinstance(verdict, Deny) and "bash was called too often" in verdict.reason
        assert await allowed(two, 3, tool="read") == 1  # what was refused did not count
        verdict = await one.judge(call(tool="read"))
        assert isinstance(verdict, Deny) and "Try again in 1.0 s" in verdict.reason
        clock.now += 1
        assert await allowed(one, 3, tool="read") == 1
        clock.now += 59
        assert await allowed(two, 9, tool="read") == 3


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    gaps=st.lists(st.floats(0, 30), max_size=60),
    per_minute=st.integers(0, 9),
    burst=st.integers(0, 4),
)
async def test_no_window_ever_holds_more_calls_than_its_limit(
    place: Place, gaps: list[float], per_minute: int, burst: int
) -> None:
    clock, who, passed = Clock(), token_hex(8), list[float]()
    async with counting(place, clock) as (database, counts):
        both = (counts, RateStore(database, clock=clock))
        for number, gap in enumerate(gaps):
            clock.now += gap
            refused = await both[number % 2].take([(who, per_minute, burst)])
            if refused is None:
                passed.append(clock.now)
                continue
            assert 0 < refused[0] <= 60 + 1e-6  # a difference of two times
            minute = sum(one > clock.now - 60 for one in passed)
            second = sum(one > clock.now - 1 for one in passed)
            assert (per_minute and minute >= per_minute) or (burst and second >= burst)
    for end in passed:
        assert not per_minute or sum(end - 60 < one <= end for one in passed) <= per_minute
        assert not burst or sum(end - 1 < one <= end for one in passed) <= burst


async def test_setting_the_clock_back_neither_raises_nor_blocks_the_limit(place: Place) -> None:
    clock = Clock()
    async with counting(place, clock) as (_, counts):
        assert [await counts.take([("ann", 2, 0)]) for _ in range(3)] == [None, None, (60.0, 0)]
        clock.now -= 500
        assert await counts.take([("ann", 2, 0)]) == (60.0, 0)
        clock.now += 60
        assert await counts.take([("ann", 2, 0)]) is None


async def test_calls_outside_the_window_are_deleted(place: Place) -> None:
    clock = Clock()
    async with counting(place, clock) as (database, counts):
        for number in range(4 * PRUNE_INTERVAL_CALLS):
            clock.now += 1
            assert await counts.take([(f"user {number}", 1, 0), ("bash", 0, 5)]) is None
        assert await count(database) <= 2 * (60 + PRUNE_INTERVAL_CALLS)


async def test_counting_a_call_needs_no_extra_commit(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_deferred_commits(monkeypatch)
    async with counting(on_postgres(postgres_url), wait=False) as (database, counts):
        with write_scope():
            assert await counts.take([("ann", 99, 99)]) is None  # it has not seen the key yet
            before = database.commits
            for _ in range(10):
                assert await counts.take([("ann", 99, 99)]) is None
                assert await counts.take([("ann", 99, 99)]) is None
                await database.flush()  # as the caller does
            assert database.commits - before == 10
        assert await count(database) == 21


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RACER, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def race(
    place: Place, marks: Path, per_minute: int, burst: int, refusals: int, *, killed: int = -1
) -> list[tuple[float, float]]:
    """Between which moments each call was counted of three processes that go on when refused."""
    marks.touch()
    where = (str(place.at), place.schema, str(marks))
    racers = [start(*where, str(per_minute), str(burst), str(refusals)) for _ in range(3)]
    try:
        for racer in racers:
            assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        end = time.monotonic() + 30
        while killed >= 0 and len(marks.read_text().splitlines()) < 10:
            assert time.monotonic() < end
        if killed >= 0:
            racers[killed].kill()
        for racer in racers:
            racer.wait(50)
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    lines = [line.split() for line in marks.read_text().splitlines()]
    return [(float(line[0]), float(line[1])) for line in lines if len(line) == 2]


@pytest.mark.process
async def test_three_processes_together_stay_within_one_burst_limit(
    postgres_url: str, tmp_path: Path
) -> None:
    place, marks = on_postgres(postgres_url), tmp_path / "marks"
    passed = await asyncio.to_thread(race, place, marks, 0, 7, 250)
    assert len(passed) >= 14, "a second gone, there is room again"
    begins, ends = (sorted(moments) for moments in zip(*passed, strict=True))
    # The eighth was counted before `ends[7]`, and the first after `begins[0]`.
    for first, eighth in zip(begins, ends[7:], strict=False):
        assert eighth - first > 0.999


@pytest.mark.process
@pytest.mark.parametrize("killed", [-1, 1])
async def test_the_minute_limit_holds_for_all_processes_even_if_one_is_killed(
    postgres_url: str, tmp_path: Path, killed: int
) -> None:
    place, marks = on_postgres(postgres_url), tmp_path / "marks"
    passed = await asyncio.to_thread(race, place, marks, 100, 0, 20, killed=killed)
    # Who was killed may have counted one that it did not make.
    assert len(passed) in ((100,) if killed < 0 else (99, 100))
    async with counting(place) as (database, counts):
        assert await count(database) == 100
        assert await counts.take([("ann", 100, 0)]) is not None


@pytest.mark.process
async def test_a_call_that_cannot_be_counted_is_not_allowed() -> None:
    server = Postgres()
    try:
        server.start()
        database = await on_postgres(server.url).open(SCHEMA, patience=0.1)
        rates = RateLimits(RateSettings(), counts=RateStore(database))
        assert await allowed(rates, 1) == 1
        server.stop()
        with pytest.raises(RunSuspended):  # the run goes on when it is back
            await rates.judge(call())
        server.start()
        assert await allowed(rates, 1, ANN) == 1
        await database.close()
        verdict = await rates.judge(call())
        assert isinstance(verdict, Deny) and verdict.code == "rate"
        assert "calls cannot be counted at the moment" in verdict.reason
        assert database.name not in verdict.reason and database.name in verdict.for_people
    finally:
        server.close()


async def test_a_call_that_others_leave_no_room_for_is_not_made_and_the_run_is_suspended(
    place: Place,
) -> None:
    limit = [("ann", 4, 0)]
    async with (
        counting(place, Clock(), wait=False) as (database, counts),
        counting(place, Clock()) as (_, other),
    ):
        with write_scope():
            assert await counts.take(limit) is None
            await database.flush()
            for _ in range(3):
                assert await other.take(limit) is None
            # It has seen three of four left.
            assert await counts.take(limit) is None
            with pytest.raises(RunSuspended):
                await database.flush()
        with write_scope():
            assert await counts.take(limit) == (60.0, 0), "resumed, it is told"
        assert await count(database) == 4
