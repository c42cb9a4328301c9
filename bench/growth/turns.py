"""The cost of the n-th turn of a run, from the 10th to the 1,000th: it must not grow."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from statistics import median

from bench.growth.curves import FLAT, Curve
from bench.growth.databases import Model, RunService, open_databases, open_run_service, work
from bench.growth.measure import Clock, Points, clock_of
from bench.policies import governed

from evoclaw.core.agent import LoopSettings
from evoclaw.core.chain import Chain
from evoclaw.core.labels import Principal
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import user
from evoclaw.core.ports import AllowAll, Policy, Ports
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import new_run
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.autonomy import Level
from evoclaw.orchestrator.runs.requests import RunRequest

SIZES = {True: (10, 30, 100, 300), False: (10, 30, 100, 300, 1_000)}
WINDOW_TURNS = 10
"""Turns whose median counts."""
RUNS = 3
Run = Callable[[RunService, int, Clock], Awaitable[Model]]


async def curves(quick: bool) -> AsyncGenerator[Curve]:
    """The loop only, with all policies, stored, and streamed to a watcher."""
    points, sizes = Points(), SIZES[quick]
    for _ in range(RUNS):
        _add_turns(points, "one turn, loop only", sizes, await _loop_only(sizes[-1], AllowAll()))
    async with governed() as governance:
        for _ in range(RUNS):
            rules = governance.rules(Level.FULL, frozenset({"*"}), None, lambda: (work.tool,))
            _add_turns(
                points, "one turn, governed", sizes, await _loop_only(sizes[-1], Chain(rules))
            )
    async with open_databases(postgres=not quick) as found:
        for location in found:
            async with open_run_service(location) as service:
                await _add_runs(points, service, "one turn, stored", sizes, _stored)
            async with open_run_service(location, serve=True) as service:
                await _add_runs(points, service, "one turn, streamed to a watcher", sizes, _watched)
    for curve in points.curves():
        yield curve


async def _add_runs(
    points: Points, service: RunService, name: str, sizes: tuple[int, ...], run: Run
) -> None:
    database = service.store.database
    clock = await clock_of(database)
    for _ in range(RUNS):
        _add_turns(
            points, f"{name} ({database.dialect})", sizes, await run(service, sizes[-1], clock)
        )


def _add_turns(points: Points, name: str, sizes: tuple[int, ...], model: Model) -> None:
    stamps = model.stamps
    if len(stamps) != sizes[-1] + 1:
        raise SystemExit(f"{name}: it ended after {len(stamps)} replies")
    costs = [after - before for before, after in zip(stamps, stamps[1:], strict=False)]
    for size in sizes:
        window = costs[max(0, size - WINDOW_TURNS) : size]
        points.add(name, "µs", FLAT, size, median(window) * 1e6)


async def _loop_only(turns: int, policy: Policy) -> Model:
    model = Model(turns)
    ports = Ports(model, LocalExecutor((work,)), policy)
    state = new_run([user("go on")])
    events = run_loop(state, ports, LoopSettings(max_turns=turns + 1))
    async for _ in recorded(events, Bus(state.run_id, ())):
        pass
    return model


async def _stored(service: RunService, turns: int, clock: Clock) -> Model:
    service.model = Model(turns, clock=clock)
    session = await service.conversations.open("lead")
    async for _ in service.conversations.send(session.id, "go on"):
        pass
    return service.model


async def _watched(service: RunService, turns: int, clock: Clock) -> Model:
    service.model = Model(turns, pieces=20, clock=clock)
    view, _ = await service.runs.start(Principal(user="ann"), RunRequest("go on"))
    async for _ in service.runs.records("local", view.run_id):
        pass
    return service.model
