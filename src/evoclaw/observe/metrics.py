"""The metrics of a running service, filled by a sink of each run.

The sink knows the run's agent and forgets everything when the run is over. Only numbers are kept:
no text of a person, a model or a tool.
"""

from __future__ import annotations

from collections.abc import Callable

from evoclaw.core.events import CallStarted, Record, RunFinished, RunStarted, StopReason
from evoclaw.core.metrics import COUNTED_EVENTS, CallCounters, FinishedCall, RunMeter
from evoclaw.observe.counters import (
    OTHER,
    AgentSeries,
    BucketCounts,
    Counters,
    Gauges,
    ToolSeries,
)

MAX_NAMES = 200
"""Tools, agents and routes with series of their own, each: every name costs Prometheus memory."""
SINK_EVENTS = COUNTED_EVENTS | {RunStarted}
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Of HTTP; any other method is `other`."""


class Metrics:
    """The metrics of one process, of all its runs."""

    def __init__(self, gauges: Gauges | None = None, *, max_names: int = MAX_NAMES) -> None:
        """Start to count.

        Args:
            gauges: What is read whenever the metrics are rendered.
            max_names: How many tools, agents and routes have series of their own; the rest is
                `other`.
        """
        self._gauges = gauges or Gauges()
        self._counters = Counters()
        self._tools, self._agents = _Names(max_names), _Names(max_names)
        self._routes = _Names(max_names)
        self._render: Callable[[], bytes] | None = None

    def sink(self, agent: str) -> RunMetricsSink:
        """A sink for one run of an agent."""
        name = self._agents.admit(agent)
        return RunMetricsSink(self, name, self._counters.agents.setdefault(name, AgentSeries()))

    def tool(self, tool: str, agent: str, *, ran: bool) -> ToolSeries:
        """The counters of a tool and an agent; only a tool that ran gets a name of its own."""
        name = self._tools.admit(tool) if ran else self._tools.known(tool)
        key = (name, agent)
        found = self._counters.tools.get(key)
        if found is None:
            found = self._counters.tools[key] = ToolSeries()
        return found

    def http(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request.

        Args:
            method: Of HTTP.
            route: The route's pattern, never the requested path.
            status: Of the response.
            seconds: Until the response started.
        """
        method, route = method if method in METHODS else OTHER, self._routes.admit(route)
        self._counters.requests[method, route, status] += 1
        times = self._counters.request_seconds.get((method, route))
        if times is None:
            times = self._counters.request_seconds[method, route] = BucketCounts()
        times.add(seconds)

    def tools(self, agent: str = "") -> dict[str, CallCounters]:
        """The calls of each tool, by name: of one agent, or of all agents together."""
        found: dict[str, CallCounters] = {}
        for (tool, caller), series in sorted(self._counters.tools.items()):
            if agent in ("", caller):
                found.setdefault(tool, CallCounters()).include(series.calls)
        return found

    def render(self) -> bytes:
        """Everything, in the text format of Prometheus."""
        if self._render is None:
            # Imported on the first use: most processes are never scraped.
            from evoclaw.observe.exposition import renderer

            self._render = renderer(self._counters, self._gauges)
        return self._render()


class RunMetricsSink:
    """Counts what happens in one run; a sink."""

    __slots__ = ("_agent", "_meter", "_metrics", "_series", "_started_at")

    def __init__(self, metrics: Metrics, agent: str, series: AgentSeries) -> None:
        self._metrics, self._agent, self._series = metrics, agent, series
        self._meter = RunMeter(replies=series.replies, on_call=self._add_call)
        self._started_at: float | None = None

    def receive(self, record: Record) -> None:
        """Count a record."""
        event = record.event
        if type(event) not in SINK_EVENTS:
            return
        self._meter.receive(record)
        if isinstance(event, CallStarted):
            # A series that starts with 0 lets Prometheus see the first call.
            self._metrics.tool(event.name, self._agent, ran=True)
        elif isinstance(event, RunStarted):
            self._started_at = record.at
        elif isinstance(event, RunFinished):
            self._series.stops[str(event.stop)] += 1
            if self._started_at is not None and event.stop is not StopReason.WAITING:
                self._series.seconds.add(record.at - self._started_at)

    def _add_call(self, call: FinishedCall) -> None:
        # A call that never ran was denied, or the model may have invented its name.
        self._metrics.tool(call.result.name, self._agent, ran=call.ran).add(call)


class _Names:
    """The first so many names; all others are one."""

    def __init__(self, max_names: int) -> None:
        self._max_names = max_names
        self._known: set[str] = set()

    def admit(self, name: str) -> str:
        """The name itself if there is room for it, otherwise `other`."""
        if name not in self._known:
            if len(self._known) >= self._max_names:
                return OTHER
            self._known.add(name)
        return name

    def known(self, name: str) -> str:
        """The name itself if it was admitted already, otherwise `other`."""
        return name if name in self._known else OTHER
