"""Runs and calls, counted: per tool, per request, per stretch of time. Pure functions.

Percentiles are exact: the value that this share of all, by nearest rank, does not exceed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from evoclaw.core.messages import ErrorKind
from evoclaw.store.metrics.store import RUNNING
from evoclaw.store.metrics.tables import CallFigures, RunFigures

MOST_TOOLS = 12
"""Tools that have a series of their own."""
_GOES_ON = (RUNNING, "waiting")


class ToolFigures(Struct, frozen=True):
    """How the calls of one tool went."""

    tool: str
    calls: int
    succeeded: int
    failed: int
    """Those that did not succeed, whatever the reason."""
    denied: int
    """Of them, those that a policy or a person did not let run."""
    timeouts: int
    """Of them, those that took too long."""
    success_rate: float
    """From 0 to 1."""
    avg_ms: float | None
    """Of the calls that ran; null if none did."""
    p50_ms: float | None
    p95_ms: float | None
    max_ms: float | None
    errors: dict[str, int]
    """By kind."""
    result_bytes: int
    """Of all that they gave back to the model."""
    last_error: str = ""
    """The beginning of what was said about the last failure."""
    last_error_at: float | None = None
    """Unix seconds."""


class Spread(Struct, frozen=True):
    """Many numbers in four; null if there are none."""

    avg: float | None
    p50: float | None
    p95: float | None
    max: float | None


class RequestFigures(Struct, frozen=True):
    """How requests went, and what they took."""

    count: int
    stops: dict[str, int]
    """Why they ended; `waiting` for a person, or `running`."""
    iterations: Spread
    """Turns of the requests that ended."""
    seconds: Spread
    """From asking to the final response, without the time that people were waited for."""
    tokens_in: int
    tokens_out: int
    cost: float
    """In US dollars, as far as prices are known."""
    unpriced: int
    """Replies that have no known price: with any, the cost is higher."""
    failed_calls: int
    recovered_calls: int
    """Of them, those after which a call of a later turn succeeded, in a run without a bad end."""
    recovery_rate: float | None
    """From 0 to 1; null if nothing failed."""
    saved_seconds: float
    """In turns with several calls: their own times added up, less the time that passed."""
    error_types: dict[str, int]
    """Of calls, by kind."""


class FigurePoint(Struct, frozen=True):
    """Everything of one stretch of time."""

    at: float
    """When it begins, in Unix seconds."""
    runs: int
    """Requests."""
    calls: int
    errors: int
    cost: float
    tokens: int
    p50_ms: float | None
    p95_ms: float | None
    iterations: float | None
    """Average of the requests that ended."""
    saved_seconds: float


class ToolPoint(Struct, frozen=True):
    """One tool in one stretch of time."""

    at: float
    calls: int
    errors: int
    p50_ms: float | None
    p95_ms: float | None


class Line(Struct, frozen=True):
    """A time, cut into even stretches that begin at whole multiples of their length."""

    since: float
    until: float
    step: float

    @property
    def first(self) -> int:
        """The number of the first one."""
        return math.floor(self.since / self.step)

    @property
    def points(self) -> range:
        """The numbers of all."""
        return range(self.first, max(self.first + 1, math.ceil(self.until / self.step)))

    def place(self, at: float) -> int:
        """The number of the one that a moment is in."""
        return math.floor(at / self.step)


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest of the numbers, in order, that at least this share does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def spread(numbers: Iterable[float]) -> Spread:
    """Many numbers in four."""
    ordered = sorted(numbers)
    if not ordered:
        return Spread(None, None, None, None)
    return Spread(
        sum(ordered) / len(ordered),
        percentile(ordered, 0.5),
        percentile(ordered, 0.95),
        ordered[-1],
    )


def of_tools(calls: Iterable[CallFigures]) -> tuple[ToolFigures, ...]:
    """The figures of each tool, those first that were called most."""
    found: defaultdict[str, list[CallFigures]] = defaultdict(list)
    for call in calls:
        found[call.tool].append(call)
    figures = (_tool(tool, some) for tool, some in found.items())
    return tuple(sorted(figures, key=lambda one: (-one.calls, one.tool)))


def _tool(tool: str, calls: Sequence[CallFigures]) -> ToolFigures:
    errors = Counter(call.error for call in calls if call.error)
    failed = errors.total()
    times = spread(call.ms for call in calls if call.ms is not None)
    last = max((call for call in calls if call.error), key=lambda one: one.at, default=None)
    return ToolFigures(
        tool,
        len(calls),
        len(calls) - failed,
        failed,
        sum(call.denied for call in calls),
        errors[ErrorKind.TIMEOUT],
        (len(calls) - failed) / len(calls),
        times.avg,
        times.p50,
        times.p95,
        times.max,
        dict(errors.most_common()),
        sum(call.bytes for call in calls),
        "" if last is None else last.said or last.error,
        None if last is None else last.at,
    )


def of_requests(
    requests: Sequence[RunFigures], runs: Iterable[RunFigures], calls: Iterable[CallFigures]
) -> RequestFigures:
    """The figures of requests.

    Args:
        requests: What was asked for.
        runs: These, and those that were begun for them: all that was spent.
        calls: Of all of them.
    """
    ended = [run for run in requests if run.stop not in _GOES_ON]
    spent, errors, recovered = _Spent(), Counter[str](), 0
    for run in runs:
        spent.add(run)
    for call in calls:
        if call.error:
            errors[call.error] += 1
            recovered += call.recovered
    failed = errors.total()
    return RequestFigures(
        len(requests),
        dict(Counter(run.stop for run in requests).most_common()),
        spread(run.turns for run in ended),
        spread(run.seconds for run in ended),
        spent.tokens_in,
        spent.tokens_out,
        spent.cost,
        spent.unpriced,
        failed,
        recovered,
        recovered / failed if failed else None,
        spent.saved,
        dict(errors.most_common()),
    )


class _Spent:
    """What runs took together."""

    __slots__ = ("cost", "saved", "tokens_in", "tokens_out", "unpriced")

    def __init__(self) -> None:
        self.tokens_in = self.tokens_out = self.unpriced = 0
        self.cost = self.saved = 0.0

    def add(self, run: RunFigures) -> None:
        """Count one."""
        self.tokens_in += run.tokens_in
        self.tokens_out += run.tokens_out
        self.unpriced += run.unpriced
        self.cost += run.cost
        self.saved += run.saved


class _Stretch:
    """What happened in one stretch of time."""

    __slots__ = ("calls", "errors", "requests", "spent", "times", "turns")

    def __init__(self) -> None:
        self.calls = self.errors = self.requests = 0
        self.times: list[float] = []
        self.turns: list[int] = []
        self.spent = _Spent()

    def called(self, call: CallFigures) -> None:
        """Count a call."""
        self.calls += 1
        self.errors += bool(call.error)
        if call.ms is not None:
            self.times.append(call.ms)

    def percentiles(self) -> tuple[float | None, float | None]:
        """Of how long calls ran."""
        ordered = sorted(self.times)
        return percentile(ordered, 0.5), percentile(ordered, 0.95)


def of_time(
    line: Line,
    requests: Iterable[RunFigures],
    runs: Iterable[RunFigures],
    calls: Iterable[CallFigures],
) -> tuple[FigurePoint, ...]:
    """How everything changed; a run counts when it ended, a call when it had its answer."""
    found: defaultdict[int, _Stretch] = defaultdict(_Stretch)
    for run in requests:
        stretch = found[line.place(run.at)]
        stretch.requests += 1
        if run.stop not in _GOES_ON:
            stretch.turns.append(run.turns)
    for run in runs:
        found[line.place(run.at)].spent.add(run)
    for call in calls:
        found[line.place(call.at)].called(call)
    return tuple(_point(number * line.step, found[number]) for number in line.points)


def _point(at: float, here: _Stretch) -> FigurePoint:
    spent = here.spent
    return FigurePoint(
        at,
        here.requests,
        here.calls,
        here.errors,
        spent.cost,
        spent.tokens_in + spent.tokens_out,
        *here.percentiles(),
        sum(here.turns) / len(here.turns) if here.turns else None,
        spent.saved,
    )


def of_tools_in_time(
    line: Line, tools: Sequence[str], calls: Iterable[CallFigures]
) -> dict[str, tuple[ToolPoint, ...]]:
    """How the first of some tools changed."""
    wanted: Collection[str] = frozenset(tools[:MOST_TOOLS])
    found: defaultdict[tuple[str, int], _Stretch] = defaultdict(_Stretch)
    for call in calls:
        if call.tool in wanted:
            found[call.tool, line.place(call.at)].called(call)
    return {
        tool: tuple(_tool_point(number * line.step, found[tool, number]) for number in line.points)
        for tool in tools[:MOST_TOOLS]
    }


def _tool_point(at: float, here: _Stretch) -> ToolPoint:
    return ToolPoint(at, here.calls, here.errors, *here.percentiles())
