"""What a look at the store costs does not depend on how much is there, by SQLite's own steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from bench.growth.measure import steps_of

from evoclaw.core.events import StopReason
from evoclaw.core.labels import Principal
from evoclaw.orchestrator.runs.requests import RunRequest
from evoclaw.store.runs.queue import RunQueue
from tests.support.databases import Place
from tests.support.runs import RunServiceHarness, open_run_service

ANN = Principal(user="ann")


async def queued(house: RunServiceHarness) -> None:
    """Keep a run, and hold it when its turn comes."""
    view, _ = await house.runs.start(ANN, RunRequest("hello"))
    claims = await RunQueue(house.store, "somebody").claim_next({}, 1, 1)
    assert [claim.run_id for claim in claims] == [view.run_id]


Look = Callable[[RunServiceHarness], Awaitable[object]]
LOOKS: dict[str, Look] = {
    "runs": lambda house: house.store.runs(limit=3),
    "somebody's runs": lambda house: house.store.runs(owner="old", limit=3),
    "a session's runs": lambda house: house.store.runs(session_id="s0", limit=3),
    "runs that go on": lambda house: house.store.runs(state="open", limit=3),
    "runs that wait": lambda house: house.store.runs(state="waiting", limit=3),
    "runs far back": lambda house: house.store.runs(before="r5", limit=3),
    "somebody's sessions": lambda house: house.store.sessions("old", limit=3),
    "sessions below one": lambda house: house.store.sessions("old", within="s0", limit=3),
    "a start that is begun later": lambda house: queued(house),
    "a start": lambda house: house.runs.start(ANN, RunRequest("hello")),
}


async def fill(house: RunServiceHarness, first: int, last: int) -> None:
    """Sessions with a run that has ended, the first five of somebody who never came again."""
    for number in range(first, last):
        owner = "old" if number < 5 else "new"
        await house.talks.open("lead", session_id=f"s{number}", owner=owner)
        run = await house.store.create_run(f"r{number}", f"s{number}", "go on")
        await house.store.append(run, (), (), run.usage, StopReason.COMPLETED)


@pytest.mark.parametrize("name", LOOKS)
async def test_query_cost_does_not_grow_with_history(name: str, tmp_path: Path) -> None:
    async with open_run_service(Place(tmp_path / "evoclaw.db"), serve=False) as house:
        found: list[int] = []
        for first, last in ((0, 20), (20, 200)):
            await fill(house, first, last)
            async with steps_of(house.store.database) as steps:
                await LOOKS[name](house)
                found.append(steps())
        assert found[1] <= found[0] + 50, found
