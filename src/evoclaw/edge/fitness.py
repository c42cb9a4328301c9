"""How well an agent does, from what its calls and runs came to; tools and model apart.

Fitness is a share from 0 to 1, or None while nothing says anything:

- a tool's: calls that succeeded / calls that say something about it. Those are the ones that
  succeeded, timed out, failed while running, or met a fault of ours. A call that was refused,
  cancelled, too late, badly asked or never answered says nothing about the tool.
- all tools': the same over all their calls, so that a tool counts by its use.
- the model's: (runs it completed + half of those that a limit ended) / (both + those it failed).
  A run that a person cancelled, that waits, or that its tools brought down says nothing about it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from evoclaw.core.errors import RecordingError
from evoclaw.core.events import StopReason
from evoclaw.core.messages import JSON, ErrorKind

FAULT_KINDS = frozenset({ErrorKind.TIMEOUT, ErrorKind.EXECUTION_FAILED, ErrorKind.INTERNAL})
"""Failures that are the tool's own."""
LIMIT_STOPS = frozenset(
    {StopReason.MAX_ITERATIONS, StopReason.BUDGET_EXCEEDED, StopReason.DURATION_EXCEEDED}
)
MODEL_ERRORS = frozenset({StopReason.ERROR, StopReason.LOOP_DETECTED})
MAX_TOOLS = 256
OTHER_TOOLS = "(others)"
"""Where calls of further tools are counted, and of names that never ran: they come from afar and
may be made up."""
MAX_ERROR_CHARS = 500

_BUCKETS_PER_DOUBLING = 8
"""Buckets for each doubling: a percentile is at most 1 in 22 off."""
_MAX_LATENCY_MS = 1e12
"""Milliseconds: some thirty years, and no latency any more."""
Count = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0)]


class Latencies(Struct, forbid_unknown_fields=True):
    """How long calls took, in buckets that grow with the time: a few numbers however many calls."""

    count: Count = 0
    total_ms: Amount = 0.0
    low_ms: Amount = 0.0
    high_ms: Amount = 0.0
    buckets: dict[int, Count] = field(default_factory=dict[int, int])

    def add(self, elapsed_ms: float) -> None:
        """Count one."""
        taken = min(elapsed_ms, _MAX_LATENCY_MS) if elapsed_ms > 0 else 0.0
        self.low_ms = min(self.low_ms, taken) if self.count else taken
        self.high_ms = max(self.high_ms, taken)
        self.count += 1
        self.total_ms += taken
        bucket = math.floor(
            math.log2(max(taken * 1000, 1.0)) * _BUCKETS_PER_DOUBLING
        )  # from a microsecond
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def mean(self) -> float:
        """The mean, in milliseconds."""
        return round(self.total_ms / self.count, 3) if self.count else 0.0

    def percentile(self, share: float) -> float:
        """The time that this share of the calls took at most, about."""
        left = math.ceil(share * self.count)
        if left >= self.count:
            return round(self.high_ms, 3)
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                middle = 2 ** ((bucket + 0.5) / _BUCKETS_PER_DOUBLING) / 1000
                return round(min(max(middle, self.low_ms), self.high_ms), 3)
        return 0.0


class ToolOutcomes(Struct, forbid_unknown_fields=True):
    """What the calls of one tool came to."""

    calls: Count = 0
    succeeded: Count = 0
    errors: dict[str, Count] = field(default_factory=dict[str, int])
    """By error type."""
    latencies: Latencies = field(default_factory=Latencies)
    """Of the calls that ran."""
    last_error: str = ""
    last_error_time: Amount = 0.0
    """Unix seconds; 0 is never."""

    @property
    def faults(self) -> int:
        """Failures that are the tool's own."""
        return sum(self.errors.get(kind, 0) for kind in FAULT_KINDS)

    def metrics(self) -> dict[str, JSON]:
        """The figures, under the names that they are known by."""
        return {
            "total_calls": self.calls,
            "success_count": self.succeeded,
            "error_count": sum(self.errors.values()),
            "timeout_count": self.errors.get(ErrorKind.TIMEOUT, 0),
            "avg_latency_ms": self.latencies.mean(),
            "p50_latency_ms": self.latencies.percentile(0.5),
            "p95_latency_ms": self.latencies.percentile(0.95),
            "errors": dict(sorted(self.errors.items())),
            "last_error": self.last_error,
            "last_error_time": self.last_error_time or None,
        }


class _StoredOutcomes(Struct, forbid_unknown_fields=True):
    """What outlives the process. Read strictly: what is damaged must not pass for empty."""

    tools: dict[str, ToolOutcomes]
    runs: dict[str, Count]
    """By stop reason."""
    brought_down: Count
    """Runs that ended because their tools kept failing."""


class Outcomes:
    """What happened so far."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._kept = _StoredOutcomes({}, {}, 0)
        self._now = now

    def record_call(
        self,
        tool: str,
        *,
        error: ErrorKind | None = None,
        message: str = "",
        elapsed_ms: float | None = None,
    ) -> None:
        """Count a call; None for the time means that it never ran."""
        tools, name = self._kept.tools, tool
        never_ran = error is not None and elapsed_ms is None
        if name not in tools and (never_ran or len(tools) >= MAX_TOOLS):
            name = OTHER_TOOLS
        found = tools.setdefault(name, ToolOutcomes())
        found.calls += 1
        if elapsed_ms is not None:
            found.latencies.add(elapsed_ms)
        if error is None:
            found.succeeded += 1
            return
        found.errors[str(error)] = found.errors.get(error, 0) + 1
        found.last_error = (message or str(error))[:MAX_ERROR_CHARS]
        found.last_error_time = self._now()

    def record_run(self, stop: StopReason, *, by_tools: bool = False) -> None:
        """Count a prompt's run; `by_tools` says that it failed because its tools did."""
        if by_tools and stop is StopReason.ERROR:
            self._kept.brought_down += 1
        else:
            self._kept.runs[str(stop)] = self._kept.runs.get(stop, 0) + 1

    def metrics(self) -> dict[str, JSON]:
        """Figures for each tool, and for runs."""
        tools = sorted(self._kept.tools.items())
        return {
            "tools": {name: tool.metrics() for name, tool in tools},
            "runs": {
                "completed": self._runs(frozenset({StopReason.COMPLETED})),
                "model_errors": self._runs(MODEL_ERRORS),
                "limits": self._runs(LIMIT_STOPS),
                "tool_errors": self._kept.brought_down,
                "by_stop": dict(sorted(self._kept.runs.items())),
            },
        }

    def fitness(self) -> dict[str, JSON]:
        """The shares that the head of this file explains, and on how many each is founded."""
        tools = sorted(self._kept.tools.items())
        succeeded = sum(tool.succeeded for _, tool in tools)
        judged = succeeded + sum(tool.faults for _, tool in tools)
        completed = self._runs(frozenset({StopReason.COMPLETED}))
        limited = self._runs(LIMIT_STOPS)
        runs = completed + limited + self._runs(MODEL_ERRORS)
        return {
            "tools": _share(succeeded, judged),
            "by_tool": {n: _share(t.succeeded, t.succeeded + t.faults) for n, t in tools},
            "calls_judged": judged,
            "model": _share(completed + limited / 2, runs),
            "runs_judged": runs,
        }

    def dump(self) -> bytes:
        """Everything, to be kept."""
        return msgspec.json.encode(self._kept)

    def load(self, data: bytes) -> None:
        """Go on from what was kept; what cannot be read is an error and changes nothing."""
        try:
            self._kept = msgspec.json.decode(data, type=_StoredOutcomes)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise RecordingError(f"the kept outcomes cannot be read: {problem}") from None

    def _runs(self, stops: frozenset[StopReason]) -> int:
        return sum(self._kept.runs.get(stop, 0) for stop in stops)


def _share(part: float, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
