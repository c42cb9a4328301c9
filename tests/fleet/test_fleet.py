from __future__ import annotations

import asyncio
from pathlib import Path

from evoclaw.core.messages import ErrorKind
from tests.fleet.support import house


async def test_a_call_runs_on_the_edge_and_its_result_comes_back(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        result = await here.ask("mark", text="a")
        assert result.text == "marked a"
        assert result.details["agent"] == "pi"
        assert here.marks.made == ["a"]


async def test_many_calls_at_once_each_get_their_own_answer(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        results = await asyncio.gather(*(here.ask("mark", text=str(n)) for n in range(50)))
        assert [result.text for result in results] == [f"marked {n}" for n in range(50)]
        assert sorted(here.marks.made, key=int) == [str(n) for n in range(50)]


async def test_a_failure_on_the_edge_is_the_calls_failure(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        result = await here.ask("mark", wrong=1)
        assert result.error is ErrorKind.INVALID_PARAMS
