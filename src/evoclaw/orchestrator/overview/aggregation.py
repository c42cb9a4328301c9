"""Aggregates of stored runs and calls: by tool, by request, by interval. Pure functions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct

from evoclaw.core.metrics import CallCounters, Distribution, Spending, distribution, percentile
from evoclaw.store.metrics.store import RUNNING
from evoclaw.store.metrics.tables import CallRow, RunRow

MAX_TOOL_SERIES = 12
"""Tools with a series of their own."""
_NOT_ENDED = (RUNNING, "waiting")


class ToolSummary(Struct, frozen=True):
    """How the calls of one tool went."""

    tool: str
    """The name of the tool."""
    calls: int
    """How many calls there were."""
    succeeded: int
    """How many of them succeeded."""
    failed: int
    """Those that did not succeed, whatever the reason."""
    denied: int
    """Failed calls that a policy or a person denied."""
    timeouts: int
    """Failed calls that timed out."""
    success_rate: float
    """From 0 to 1."""
    avg_ms: float | None
    """The average duration of the calls that ran; null if none did."""
    p50_ms: float | None
    """The median duration."""
    p95_ms: float | None
    """The 95th percentile of the duration."""
    max_ms: float | None
    """The longest duration."""
    errors: dict[str, int]
    """Failed calls by kind of error."""
    result_bytes: int
    """The bytes of all results that the model got."""
    last_error: str = ""
    """The first characters of the last error text."""
    last_error_at: float | None = None
    """Unix seconds."""


class RequestSummary(Struct, frozen=True):
    """How requests went, and what they cost."""

    count: int
    """How many requests there were."""
    stops: dict[str, int]
    """Why they ended; `waiting` for a person, or `running`."""
    iterations: Distribution
    """Turns of the requests that ended."""
    seconds: Distribution
    """From the request to the final response, without the time spent waiting for people."""
    tokens_in: int
    """Tokens of all prompts."""
    tokens_out: int
    """Tokens of all replies."""
    cost: float
    """In US dollars, as far as prices are known."""
    unpriced: int
    """Replies without a known price: with any, the real cost is higher."""
    failed_calls: int
    """Calls that did not succeed."""
    recovered_calls: int
    """Failed calls that a call of a later turn made good, in a run that ended well."""
    recovery_rate: float | None
    """From 0 to 1; null if nothing failed."""
    saved_seconds: float
    """In turns with several calls: their own times added up, less the time that passed."""
    error_types: dict[str, int]
    """Failed calls by kind of error."""


class MetricsPoint(Struct, frozen=True):
    """Everything of one interval."""

    at: float
    """When the interval starts, in Unix seconds."""
    runs: int
    """Requests in the interval."""
    calls: int
    """Tool calls."""
    errors: int
    """Tool calls that did not succeed."""
    cost: float
    """In US dollars, as far as prices are known."""
    tokens: int
    """Input and output tokens together."""
    p50_ms: float | None
    """The median duration of the calls."""
    p95_ms: float | None
    """The 95th percentile of the duration of the calls."""
    iterations: float | None
    """The average number of turns of the requests that ended."""
    saved_seconds: float
    """The time that parallel calls saved."""


class ToolPoint(Struct, frozen=True):
    """One tool in one interval."""

    at: float
    """When the interval starts, in Unix seconds."""
    calls: int
    """Calls of the tool."""
    errors: int
    """Calls that did not succeed."""
    p50_ms: float | None
    """The median duration."""
    p95_ms: float | None
    """The 95th percentile of the duration."""


class Intervals(Struct, frozen=True):
    """A time, divided into intervals of equal length that start at multiples of that length."""

    since: float
    until: float
    step: float

    @property
    def first(self) -> int:
        """The number of the first interval."""
        return math.floor(self.since / self.step)

    @property
    def numbers(self) -> range:
        """The numbers of all intervals."""
        return range(self.first, max(self.first + 1, math.ceil(self.until / self.step)))

    def number_of(self, at: float) -> int:
        """The number of the interval that a moment is in."""
        return math.floor(at / self.step)


def summarize_tools(calls: Iterable[CallRow]) -> tuple[ToolSummary, ...]:
    """A summary of each tool, the most called first."""
    found: defaultdict[str, list[CallRow]] = defaultdict(list)
    for call in calls:
        found[call.tool].append(call)
    summaries = (_summarize_tool(tool, some) for tool, some in found.items())
    return tuple(sorted(summaries, key=lambda summary: (-summary.calls, summary.tool)))


def _summarize_tool(tool: str, calls: Sequence[CallRow]) -> ToolSummary:
    counters = CallCounters()
    for call in sorted(calls, key=lambda call: call.at):
        counters.add(call.error, at=call.at, message=call.said)
    times = distribution(call.ms for call in calls if call.ms is not None)
    return ToolSummary(
        tool,
        counters.calls,
        counters.succeeded,
        counters.failed,
        sum(call.denied for call in calls),
        counters.timeouts,
        counters.succeeded / counters.calls,
        times.avg,
        times.p50,
        times.p95,
        times.max,
        dict(Counter(counters.errors).most_common()),
        sum(call.bytes for call in calls),
        counters.last_error,
        counters.last_error_time if counters.failed else None,
    )


def summarize_requests(
    requests: Sequence[RunRow], runs: Iterable[RunRow], calls: Iterable[CallRow]
) -> RequestSummary:
    """A summary of requests.

    Args:
        requests: The runs that were requested.
        runs: These, and all runs that were started for them: all that was spent.
        calls: Of all runs.
    """
    ended = [run for run in requests if run.stop not in _NOT_ENDED]
    spending, saved, counters, recovered = Spending(), 0.0, CallCounters(), 0
    for run in runs:
        spending.include(run.spending)
        saved += run.saved
    for call in calls:
        counters.add(call.error)
        recovered += bool(call.error) and call.recovered
    return RequestSummary(
        len(requests),
        dict(Counter(run.stop for run in requests).most_common()),
        distribution(run.turns for run in ended),
        distribution(run.seconds for run in ended),
        spending.tokens_in,
        spending.tokens_out,
        spending.cost,
        spending.unpriced,
        counters.failed,
        recovered,
        recovered / counters.failed if counters.failed else None,
        saved,
        dict(Counter(counters.errors).most_common()),
    )


class _Interval:
    """What happened in one interval."""

    __slots__ = ("calls", "errors", "requests", "saved", "spending", "times", "turns")

    def __init__(self) -> None:
        self.calls = self.errors = self.requests = 0
        self.times: list[float] = []
        self.turns: list[int] = []
        self.spending, self.saved = Spending(), 0.0

    def add_call(self, call: CallRow) -> None:
        """Count a call."""
        self.calls += 1
        self.errors += bool(call.error)
        if call.ms is not None:
            self.times.append(call.ms)

    def percentiles(self) -> tuple[float | None, float | None]:
        """The 50th and 95th percentile of how long calls ran."""
        ordered = sorted(self.times)
        return percentile(ordered, 0.5), percentile(ordered, 0.95)


def series(
    intervals: Intervals,
    requests: Iterable[RunRow],
    runs: Iterable[RunRow],
    calls: Iterable[CallRow],
) -> tuple[MetricsPoint, ...]:
    """Everything by interval; a run and a call count in the interval in which they ended."""
    found: defaultdict[int, _Interval] = defaultdict(_Interval)
    for run in requests:
        interval = found[intervals.number_of(run.at)]
        interval.requests += 1
        if run.stop not in _NOT_ENDED:
            interval.turns.append(run.turns)
    for run in runs:
        interval = found[intervals.number_of(run.at)]
        interval.spending.include(run.spending)
        interval.saved += run.saved
    for call in calls:
        found[intervals.number_of(call.at)].add_call(call)
    return tuple(_point(number * intervals.step, found[number]) for number in intervals.numbers)


def _point(at: float, interval: _Interval) -> MetricsPoint:
    spending, turns = interval.spending, interval.turns
    return MetricsPoint(
        at,
        interval.requests,
        interval.calls,
        interval.errors,
        spending.cost,
        spending.tokens_in + spending.tokens_out,
        *interval.percentiles(),
        sum(turns) / len(turns) if turns else None,
        interval.saved,
    )


def tool_series(
    intervals: Intervals, tools: Sequence[str], calls: Iterable[CallRow]
) -> dict[str, tuple[ToolPoint, ...]]:
    """The first of some tools, by interval."""
    shown_tools: Collection[str] = frozenset(tools[:MAX_TOOL_SERIES])
    found: defaultdict[tuple[str, int], _Interval] = defaultdict(_Interval)
    for call in calls:
        if call.tool in shown_tools:
            found[call.tool, intervals.number_of(call.at)].add_call(call)

    def points(tool: str) -> Iterator[ToolPoint]:
        for number in intervals.numbers:
            interval = found[tool, number]
            at, percentiles = number * intervals.step, interval.percentiles()
            yield ToolPoint(at, interval.calls, interval.errors, *percentiles)

    return {tool: tuple(points(tool)) for tool in tools[:MAX_TOOL_SERIES]}
