"""How tools, requests and delegations went: figures from stored records, and what each means."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import StopReason
from evoclaw.orchestrator.overview import aggregation as tallying
from evoclaw.orchestrator.overview.aggregation import (
    FigurePoint,
    RequestFigures,
    ToolFigures,
    ToolPoint,
)
from evoclaw.store.metrics.store import RUNNING, FigureStore, Window
from evoclaw.store.metrics.tables import CallFigures, RunFigures

DAY = 86_400.0
"""Seconds that are looked back when nobody says how far."""
MOST_CHOSEN, MOST_POINTS = 60, 1_000
"""Points of a series: those that are chosen here, those that may be asked for."""
_STEPS = (1, 5, 10, 30, 60, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 604_800)
AT_ONCE = 2
"""Who is told figures at the same time: each holds all of a time's calls in memory."""
_WELL = (RUNNING, StopReason.COMPLETED, StopReason.WAITING)


class BadWindow(EvoClawError):
    """Figures of no time, or in too many points, are asked for."""


class FiguresView(Struct, frozen=True):
    """Figures of a time: of each tool, of requests, and how they changed."""

    since: float
    until: float
    """Unix seconds; not in it itself."""
    step: float
    """Seconds between two points."""
    tools: tuple[ToolFigures, ...]
    """Those first that were called most."""
    requests: RequestFigures
    series: tuple[FigurePoint, ...]
    tool_series: dict[str, tuple[ToolPoint, ...]]
    """Of the twelve tools that were called most."""


class Delegation(Struct, frozen=True):
    """Who had others do something, and how that went."""

    source: str
    """The agent that asked."""
    target: str
    """The edge or the agent that was asked."""
    kind: str
    """What the target is: `edge` or `agent`."""
    calls: int
    """Of an edge: calls, or parts of one call to many. Of an agent: runs."""
    errors: int
    """Of them, those that failed."""
    last: float
    """When the last one ended, in Unix seconds."""


class Figures:
    """The figures of all tenants."""

    def __init__(self, store: FigureStore, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def look(
        self,
        tenant: str,
        *,
        owner: str | None = None,
        agent: str = "",
        since: float = 0.0,
        until: float = 0.0,
        step: float = 0.0,
    ) -> FiguresView:
        """The figures of a tenant.

        Args:
            tenant: Whose.
            owner: Only of this user's sessions; None is everybody's.
            agent: Only of this agent's runs; empty is all.
            since: Unix seconds; 0 is a day before the end.
            until: Unix seconds; 0 is now.
            step: Seconds between two points of a series; 0 is as it fits.
        """
        window = self._window(tenant, owner, since, until, agent)
        step = step or chosen_step(window.until - window.since)
        if (window.until - window.since) / step > MOST_POINTS:
            raise BadWindow(f"that is more than {MOST_POINTS} points; ask for a longer step")
        async with self._turn:
            found = await self._store.find(window)
            # Beside everything else that goes on: there may be many.
            return await asyncio.to_thread(_view, window, step, found.runs, found.calls)

    async def delegations(
        self, tenant: str, *, owner: str | None = None, since: float = 0.0, until: float = 0.0
    ) -> tuple[Delegation, ...]:
        """Who had whom do something, by name."""
        window = self._window(tenant, owner, since, until)
        async with self._turn:
            runs, hops = await self._store.hops(window)
        found: dict[tuple[str, str, str], tuple[int, int, float]] = {}
        facts = [(hop.agent, hop.edge, "edge", bool(hop.error), hop.at) for hop in hops]
        facts += [
            (run.parent_agent, run.agent, "agent", run.stop not in _WELL, run.at) for run in runs
        ]
        for source, target, kind, failed, at in facts:
            calls, errors, last = found.get((source, target, kind), (0, 0, 0.0))
            found[source, target, kind] = calls + 1, errors + failed, max(last, at)
        return tuple(Delegation(*who, *found[who]) for who in sorted(found))

    def _window(
        self, tenant: str, owner: str | None, since: float, until: float, agent: str = ""
    ) -> Window:
        end = until or self._clock()
        begin = since or max(0.0, end - DAY)
        if begin >= end:
            raise BadWindow("the time ends before it begins; `since` must be before `until`")
        return Window(tenant, begin, end, owner, agent)


def chosen_step(seconds: float) -> float:
    """A step that people find even, and that makes few points."""
    fits = (step for step in _STEPS if seconds / step < MOST_CHOSEN - 1)
    return float(next(fits, math.ceil(seconds / (MOST_CHOSEN - 1))))


def _view(
    window: Window,
    step: float,
    runs: list[RunFigures],
    calls: list[CallFigures],
) -> FiguresView:
    # A request to one agent may come from another one.
    requests = [run for run in runs if window.agent or not run.parent_run]
    tools = tallying.of_tools(calls)
    line = tallying.Line(window.since, window.until, step)
    return FiguresView(
        window.since,
        window.until,
        step,
        tools,
        tallying.of_requests(requests, runs, calls),
        tallying.of_time(line, requests, runs, calls),
        tallying.of_tools_in_time(line, [one.tool for one in tools], calls),
    )
