"""Calls that run elsewhere, while nothing goes wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

from evoclaw.core.messages import ErrorKind
from tests.support.fleet import new_id, open_fleet
from tests.support.waiting import until


async def test_a_call_runs_on_the_edge_and_its_result_comes_back(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        result = await here.run_tool("mark", text="a")
        assert result.text == "marked a"
        assert result.details["agent"] == "pi"
        assert here.marks.made == ["a"]


async def test_many_calls_at_once_each_get_their_own_answer(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        results = await asyncio.gather(*(here.run_tool("mark", text=str(n)) for n in range(300)))
        assert [result.text for result in results] == [f"marked {n}" for n in range(300)]
        assert sorted(here.marks.made, key=int) == [str(n) for n in range(300)]


async def test_a_failure_on_the_edge_fails_the_call(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        result = await here.run_tool("mark", wrong=1)
        assert result.error is ErrorKind.INVALID_PARAMS


async def test_concurrent_identical_requests_share_one_result(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        first = here.start_tool("hold", text="a", request_id=request_id)
        await here.marks.waiting.wait()
        second = here.start_tool("hold", text="a", request_id=request_id)
        other = await here.run_tool("hold", text="b", request_id=request_id)
        assert other.error is ErrorKind.CONFLICT
        here.marks.gate.set()
        assert [(await task).text for task in (first, second)] == ["held a", "held a"]
        assert here.marks.made == ["a"]


async def test_cancelling_one_of_two_identical_requests_still_answers_the_other(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        first = here.start_tool("hold", text="a", request_id=request_id)
        await here.marks.waiting.wait()
        second = here.start_tool("hold", text="a", request_id=request_id)
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        here.marks.gate.set()
        assert (await second).text == "held a"


async def test_cancelling_an_identical_request_before_it_is_stored_keeps_the_other(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        first = here.start_tool("mark", text="a", request_id=request_id)
        second = here.start_tool("mark", text="a", request_id=request_id)
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).text == "marked a"
        assert here.marks.made == ["a"]


async def test_calls_start_in_the_order_they_were_requested(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        device = here.pi
        await device.stop()
        tasks = [here.start_tool("mark", text=str(n)) for n in range(200)]
        await until(lambda: len(here.marks.made) == 0)
        await device.start()
        await asyncio.gather(*tasks)
        # Four run at a time: what is asked for is begun in order, give or take those.
        order = [int(text) for text in here.marks.made]
        assert all(abs(place - number) < 8 for place, number in enumerate(order)), order


async def test_acknowledged_results_leave_nothing_pending_on_either_side(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        await asyncio.gather(*(here.run_tool("mark", text=str(n)) for n in range(20)))
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: not edge.reports.unacknowledged, say="every result was acknowledged")
        assert await here.pi.journal.unacknowledged_ids(10) == []
        assert await here.store.wanted("pi", 0.0) == []
