"""Queries for the metrics of tools, requests and delegations, over stored records."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import StopReason
from evoclaw.orchestrator.overview import aggregation
from evoclaw.orchestrator.overview.aggregation import (
    MetricsPoint,
    RequestSummary,
    ToolPoint,
    ToolSummary,
)
from evoclaw.store.metrics.store import RUNNING, MetricsStore, MetricsWindow
from evoclaw.store.metrics.tables import CallRow, RunRow

DEFAULT_WINDOW_S = 86_400.0
"""The length of a window without a start."""
DEFAULT_POINTS, MAX_POINTS = 60, 1_000
"""Points of a series: at most this many without a step, and with any step."""
_STEPS_S = (1, 5, 10, 30, 60, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 604_800)
QUERY_CONCURRENCY = 2
"""Queries at the same time: each holds all calls of its window in memory."""
_GOOD_STOPS = (RUNNING, StopReason.COMPLETED, StopReason.WAITING)


class InvalidWindow(EvoClawError):
    """A query for an empty window, or for too many points."""


class MetricsView(Struct, frozen=True):
    """The metrics of a window: of each tool, of requests, and their series."""

    since: float
    """Unix seconds; inclusive."""
    until: float
    """Unix seconds; exclusive."""
    step: float
    """Seconds between two points."""
    tools: tuple[ToolSummary, ...]
    """The tools, the most called first."""
    requests: RequestSummary
    """The totals of all requests."""
    series: tuple[MetricsPoint, ...]
    """The same over time, oldest first."""
    tool_series: dict[str, tuple[ToolPoint, ...]]
    """The twelve most called tools over time."""


class Delegation(Struct, frozen=True):
    """Which agent delegated to which edge or agent, and how that went."""

    source: str
    """The delegating agent."""
    target: str
    """The edge or the agent that it delegated to."""
    kind: str
    """What the target is: `edge` or `agent`."""
    calls: int
    """Of an edge: calls, or parts of one call to many. Of an agent: runs."""
    errors: int
    """How many of them failed."""
    last: float
    """When the last one ended, in Unix seconds."""


class MetricsReader:
    """The metrics of all tenants."""

    def __init__(self, store: MetricsStore, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._slots = asyncio.Semaphore(QUERY_CONCURRENCY)

    async def read(
        self,
        tenant: str,
        *,
        owner: str | None = None,
        agent: str = "",
        since: float = 0.0,
        until: float = 0.0,
        step: float = 0.0,
    ) -> MetricsView:
        """The metrics of a tenant.

        Args:
            tenant: Whose.
            owner: Only sessions of this user; None is all.
            agent: Only runs of this agent; empty is all.
            since: Unix seconds; 0 is a day before the end.
            until: Unix seconds; 0 is now.
            step: Seconds between two points of a series; 0 chooses one.
        """
        window = self._window(tenant, owner, since, until, agent)
        step = step or default_step(window.until - window.since)
        if (window.until - window.since) / step > MAX_POINTS:
            raise InvalidWindow(f"more than {MAX_POINTS} points; request a longer step")
        async with self._slots:
            found = await self._store.find(window)
            # In a thread: there may be many calls.
            return await asyncio.to_thread(_view, window, step, found.runs, found.calls)

    async def delegations(
        self, tenant: str, *, owner: str | None = None, since: float = 0.0, until: float = 0.0
    ) -> tuple[Delegation, ...]:
        """Which agents delegated to which edges and agents, by name."""
        window = self._window(tenant, owner, since, until)
        async with self._slots:
            runs, hops = await self._store.edge_calls(window)
        found: dict[tuple[str, str, str], tuple[int, int, float]] = {}
        facts = [(hop.agent, hop.edge, "edge", bool(hop.error), hop.at) for hop in hops]
        facts += [
            (run.parent_agent, run.agent, "agent", run.stop not in _GOOD_STOPS, run.at)
            for run in runs
        ]
        for source, target, kind, failed, at in facts:
            calls, errors, last = found.get((source, target, kind), (0, 0, 0.0))
            found[source, target, kind] = calls + 1, errors + failed, max(last, at)
        return tuple(Delegation(*key, *found[key]) for key in sorted(found))

    def _window(
        self, tenant: str, owner: str | None, since: float, until: float, agent: str = ""
    ) -> MetricsWindow:
        end = until or self._clock()
        start = since or max(0.0, end - DEFAULT_WINDOW_S)
        if start >= end:
            raise InvalidWindow("the window is empty: `since` must be before `until`")
        return MetricsWindow(tenant, start, end, owner, agent)


def default_step(seconds: float) -> float:
    """A round step that makes at most `DEFAULT_POINTS` points."""
    fits = (step for step in _STEPS_S if seconds / step < DEFAULT_POINTS - 1)
    return float(next(fits, math.ceil(seconds / (DEFAULT_POINTS - 1))))


def _view(
    window: MetricsWindow,
    step: float,
    runs: list[RunRow],
    calls: list[CallRow],
) -> MetricsView:
    # A request to one agent may come from another one.
    requests = [run for run in runs if window.agent or not run.parent_run]
    tools = aggregation.summarize_tools(calls)
    intervals = aggregation.Intervals(window.since, window.until, step)
    return MetricsView(
        window.since,
        window.until,
        step,
        tools,
        aggregation.summarize_requests(requests, runs, calls),
        aggregation.series(intervals, requests, runs, calls),
        aggregation.tool_series(intervals, [tool.tool for tool in tools], calls),
    )
