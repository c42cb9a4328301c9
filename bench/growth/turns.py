"""The n-th turn of a run, from the 10th to the 1,000th: it must cost what the 10th does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from statistics import median

from bench.growth.curves import FLAT, Curve
from bench.growth.databases import House, Model, house, places, work
from bench.growth.measure import Clock, Points, clock_of
from bench.policies import governed

from evoclaw.core.agent import LoopSettings
from evoclaw.core.bus import Bus, recorded
from evoclaw.core.chain import Chain
from evoclaw.core.labels import Principal
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import user
from evoclaw.core.ports import AllowAll, Policy, Ports
from evoclaw.core.state import new_run
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.autonomy import Level
from evoclaw.orchestrator.runs.requests import RunRequest

SIZES = {True: (10, 30, 100, 300), False: (10, 30, 100, 300, 1_000)}
AROUND = 10
"""Turns of which the middle one counts."""
RUNS = 3
Run = Callable[[House, int, Clock], Awaitable[Model]]


async def curves(quick: bool) -> AsyncGenerator[Curve]:
    """The loop alone, with every policy, stored, and watched while it is streamed."""
    points, sizes = Points(), SIZES[quick]
    for _ in range(RUNS):
        _note(points, "one turn, loop only", sizes, await _alone(sizes[-1], AllowAll()))
    async with governed() as governance:
        for _ in range(RUNS):
            rules = governance.rules(Level.FULL, frozenset({"*"}), None, lambda: (work.tool,))
            _note(points, "one turn, governed", sizes, await _alone(sizes[-1], Chain(rules)))
    async with places(postgres=not quick) as found:
        for place in found:
            async with house(place) as made:
                await _note_all(points, made, "one turn, stored", sizes, _stored)
            async with house(place, serve=True) as made:
                await _note_all(points, made, "one turn, streamed to a watcher", sizes, _watched)
    for one in points.curves():
        yield one


async def _note_all(
    points: Points, house: House, name: str, sizes: tuple[int, ...], run: Run
) -> None:
    database = house.store.database
    clock = await clock_of(database)
    for _ in range(RUNS):
        _note(points, f"{name} ({database.dialect})", sizes, await run(house, sizes[-1], clock))


def _note(points: Points, name: str, sizes: tuple[int, ...], model: Model) -> None:
    stamps = model.stamps
    if len(stamps) != sizes[-1] + 1:
        raise SystemExit(f"{name}: it ended after {len(stamps)} replies")
    costs = [after - before for before, after in zip(stamps, stamps[1:], strict=False)]
    for size in sizes:
        some = costs[max(0, size - AROUND) : size]
        points.add(name, "µs", FLAT, size, median(some) * 1e6)


async def _alone(turns: int, policy: Policy) -> Model:
    model = Model(turns)
    ports = Ports(model, LocalExecutor((work,)), policy)
    state = new_run([user("go on")])
    events = run_loop(state, ports, LoopSettings(max_turns=turns + 1))
    async for _ in recorded(events, Bus(state.run_id, ())):
        pass
    return model


async def _stored(house: House, turns: int, clock: Clock) -> Model:
    house.model = Model(turns, clock=clock)
    session = await house.talks.open("lead")
    async for _ in house.talks.send(session.id, "go on"):
        pass
    return house.model


async def _watched(house: House, turns: int, clock: Clock) -> Model:
    house.model = Model(turns, pieces=20, clock=clock)
    view, _ = await house.runs.start(Principal(user="ann"), RunRequest("go on"))
    async for _ in house.runs.records("local", view.run_id):
        pass
    return house.model
