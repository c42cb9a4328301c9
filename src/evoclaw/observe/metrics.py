"""What is counted of runs, calls and requests: for operators, and for the tools' own figures.

A run is listened to by a sink of its own, which knows the run's agent and forgets everything when
the run is over. What is counted is numbers only: no text of a person, a model or a tool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from evoclaw.core.events import (
    CallFinished,
    CallStarted,
    ContextTrimmed,
    Record,
    Replied,
    ReplyFailed,
    ReplyRetried,
    RunFinished,
    RunStarted,
    StopReason,
    TurnStarted,
)
from evoclaw.core.messages import ErrorKind
from evoclaw.observe.durations import Durations
from evoclaw.observe.tallies import SUCCESS, AgentTally, Gauges, Tallies, ToolTally

OTHER = "other"
"""What stands for a name beyond those that are told apart."""
MOST_NAMES = 200
"""Tools, agents and routes that are told apart, each; names cost whoever keeps the figures."""


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Of HTTP; any other that somebody thinks of is `other`."""


class ToolMetrics(Struct, frozen=True):
    """How the calls of one tool went."""

    tool: str
    total_calls: int
    success_count: int
    error_count: int
    """Calls that failed or were not let run, timeouts among them."""
    timeout_count: int
    avg_latency_ms: float
    p50_latency_ms: float
    p95_latency_ms: float
    """Percentiles are right within 5 %."""
    max_latency_ms: float
    result_bytes: int
    """Of all that they gave back to the model."""
    outcomes: dict[str, int]
    """`success`, or the kind of error, and how often."""
    last_error: str = ""
    """Its kind; what exactly was said is in the audit."""
    last_error_at: float | None = None
    """Unix seconds."""


class Metrics:
    """The figures of one process, of all its runs."""

    def __init__(self, gauges: Gauges | None = None, *, most_names: int = MOST_NAMES) -> None:
        """Begin to count.

        Args:
            gauges: What is asked for when the figures are wanted.
            most_names: How many tools, agents and routes are told apart; the rest is `other`.
        """
        self._gauges = gauges or Gauges()
        self._tallies = Tallies()
        self._tools, self._agents = _Names(most_names), _Names(most_names)
        self._routes = _Names(most_names)
        self._render: Callable[[], bytes] | None = None

    def listener(self, agent: str) -> RunListener:
        """A sink for one run of an agent."""
        name = self._agents.admit(agent)
        return RunListener(self, name, self._tallies.agents.setdefault(name, AgentTally()))

    def tally(self, tool: str, agent: str, *, real: bool) -> ToolTally:
        """What is known of a tool and an agent; only a real tool's name is told apart."""
        name = self._tools.admit(tool) if real else self._tools.known(tool)
        key = (name, agent)
        found = self._tallies.tools.get(key)
        if found is None:
            found = self._tallies.tools[key] = ToolTally()
        return found

    def http(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request.

        Args:
            method: Of HTTP.
            route: The route's pattern, never the path that was asked for.
            status: What was answered.
            seconds: Until the answer began.
        """
        method, route = method if method in METHODS else OTHER, self._routes.admit(route)
        self._tallies.requests[method, route, status] += 1
        times = self._tallies.request_times.get((method, route))
        if times is None:
            times = self._tallies.request_times[method, route] = Durations()
        times.add(seconds)

    def tools(self, agent: str = "") -> Sequence[ToolMetrics]:
        """The figures of each tool, by name: as one agent used it, or all of them."""
        found: dict[str, list[ToolTally]] = {}
        for (tool, by), tally in self._tallies.tools.items():
            if agent in ("", by):
                found.setdefault(tool, []).append(tally)
        return [_figures(tool, found[tool]) for tool in sorted(found)]

    def render(self) -> bytes:
        """Everything, in the text form of Prometheus."""
        if self._render is None:
            # Loaded when somebody wants it: most processes are never asked.
            from evoclaw.observe.exposition import rendering

            self._render = rendering(self._tallies, self._gauges)
        return self._render()


class RunListener:
    """Counts what happens in one run; a sink."""

    __slots__ = ("_agent", "_began", "_calls", "_metrics", "_takes", "_tally")

    def __init__(self, metrics: Metrics, agent: str, tally: AgentTally) -> None:
        self._metrics, self._agent, self._tally = metrics, agent, tally
        self._calls: dict[str, tuple[ToolTally, float]] = {}
        self._began: float | None = None
        self._takes: dict[type, Callable[[Any, float], None]] = {
            RunStarted: self._run_started,
            TurnStarted: self._turn_started,
            Replied: self._replied,
            ReplyRetried: self._reply_retried,
            ReplyFailed: self._reply_failed,
            CallStarted: self._call_started,
            CallFinished: self._call_finished,
            ContextTrimmed: self._trimmed,
            RunFinished: self._run_finished,
        }

    def receive(self, record: Record) -> None:
        """Take one record in."""
        # Nearly all records are pieces of text: they must cost next to nothing.
        take = self._takes.get(type(record.event))
        if take is not None:
            take(record.event, record.at)

    def _run_started(self, _event: RunStarted, at: float) -> None:
        self._began = at

    def _turn_started(self, _event: TurnStarted, _at: float) -> None:
        self._tally.turns += 1

    def _replied(self, event: Replied, _at: float) -> None:
        self._tally.spent(event.reply.usage, event.reply.cost)

    def _reply_retried(self, _event: ReplyRetried, _at: float) -> None:
        self._tally.retries += 1

    def _reply_failed(self, event: ReplyFailed, _at: float) -> None:
        self._tally.failed_replies += 1
        self._tally.spent(event.usage, None)

    def _trimmed(self, event: ContextTrimmed, _at: float) -> None:
        self._tally.spent(event.usage, event.cost)

    def _call_started(self, event: CallStarted, at: float) -> None:
        tally = self._metrics.tally(event.name, self._agent, real=True)
        self._calls[event.call_id] = tally, at

    def _call_finished(self, event: CallFinished, at: float) -> None:
        result = event.result
        tally, began = self._calls.pop(result.call_id, (None, None))
        if tally is None:
            # It was denied, or there is no such tool: a model may have made its name up.
            tally = self._metrics.tally(result.name, self._agent, real=False)
        tally.finished(result, began, at)

    def _run_finished(self, event: RunFinished, at: float) -> None:
        self._tally.stops[str(event.stop)] += 1
        if self._began is not None and event.stop is not StopReason.WAITING:
            self._tally.durations.add(at - self._began)


class _Names:
    """The first so many names; all others are one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def admit(self, name: str) -> str:
        """A name to be told apart, if there is room."""
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name

    def known(self, name: str) -> str:
        """A name that is told apart already, or the one for all others."""
        return name if name in self._known else OTHER


def _figures(tool: str, tallies: Sequence[ToolTally]) -> ToolMetrics:
    outcomes: Counter[str] = Counter()
    times = Durations()
    for tally in tallies:
        outcomes.update(tally.outcomes)
        times.include(tally.durations)
    last = max(tallies, key=lambda tally: tally.last_error_at)
    total = outcomes.total()
    return ToolMetrics(
        tool=tool,
        total_calls=total,
        success_count=outcomes[SUCCESS],
        error_count=total - outcomes[SUCCESS],
        timeout_count=outcomes[ErrorKind.TIMEOUT],
        avg_latency_ms=times.mean * 1000,
        p50_latency_ms=times.percentile(0.5) * 1000,
        p95_latency_ms=times.percentile(0.95) * 1000,
        max_latency_ms=times.longest * 1000,
        result_bytes=sum(tally.bytes for tally in tallies),
        outcomes=dict(outcomes),
        last_error=last.last_error,
        last_error_at=last.last_error_at or None,
    )
