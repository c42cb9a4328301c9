"""How well an edge's tools and its model do, from the outcomes of calls and runs.

Fitness is a share from 0 to 1, or None without any evidence:

- of a tool: calls that succeeded / calls that count. Those are the ones that succeeded, timed out,
  failed while running, or met an internal error. A call that was denied, cancelled, expired,
  invalid or never answered does not count.
- of all tools: the same over all their calls, so that each tool is weighted by its use.
- of the model: (runs it completed + half of those that a limit ended) / (both + those it failed).
  A run that a person cancelled, that waits, or that failed because of its tools does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from msgspec import Struct

from evoclaw.core.errors import RecordingError
from evoclaw.core.events import StopReason
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.metrics import CallCounters, Count

FAULT_KINDS = frozenset({ErrorKind.TIMEOUT, ErrorKind.EXECUTION_FAILED, ErrorKind.INTERNAL})
"""Failures that are the tool's own."""
LIMITS = frozenset(
    {StopReason.MAX_ITERATIONS, StopReason.BUDGET_EXCEEDED, StopReason.DURATION_EXCEEDED}
)
MODEL_ERRORS = frozenset({StopReason.ERROR, StopReason.LOOP_DETECTED})
MAX_TOOLS = 256
OTHER_TOOLS = "(others)"
"""Counts calls of further tools, and of names that never ran: those may be invented."""
MAX_ERROR_CHARS = 500


class _StoredOutcomes(Struct, forbid_unknown_fields=True):
    """What is stored. Read strictly: damaged data must not pass for empty."""

    tools: dict[str, CallCounters]
    runs: dict[str, Count]
    """By stop reason."""
    brought_down: Count
    """Runs that ended because their tools kept failing."""


class Outcomes:
    """The outcomes of calls and runs so far."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._stored = _StoredOutcomes({}, {}, 0)
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
        tools, name = self._stored.tools, tool
        never_ran = error is not None and elapsed_ms is None
        if name not in tools and (never_ran or len(tools) >= MAX_TOOLS):
            name = OTHER_TOOLS
        counters = tools.setdefault(name, CallCounters())
        message = message[:MAX_ERROR_CHARS]
        counters.add(error, at=self._now(), elapsed_ms=elapsed_ms, message=message)

    def record_run(self, stop: StopReason, *, by_tools: bool = False) -> None:
        """Count a prompt's run; `by_tools` means that it failed because of its tools."""
        if by_tools and stop is StopReason.ERROR:
            self._stored.brought_down += 1
        else:
            self._stored.runs[str(stop)] = self._stored.runs.get(stop, 0) + 1

    def metrics(self) -> dict[str, JSON]:
        """The metrics of each tool, and of runs."""
        tools = sorted(self._stored.tools.items())
        return {
            "tools": {name: _tool_metrics(tool) for name, tool in tools},
            "runs": {
                "completed": self._runs(frozenset({StopReason.COMPLETED})),
                "model_errors": self._runs(MODEL_ERRORS),
                "limits": self._runs(LIMITS),
                "tool_errors": self._stored.brought_down,
                "by_stop": dict(sorted(self._stored.runs.items())),
            },
        }

    def fitness(self) -> dict[str, JSON]:
        """The shares that the module docstring explains, and how many calls and runs count."""
        tools = sorted(self._stored.tools.items())
        succeeded = sum(tool.succeeded for _, tool in tools)
        judged = succeeded + sum(_faults(tool) for _, tool in tools)
        completed = self._runs(frozenset({StopReason.COMPLETED}))
        limited = self._runs(LIMITS)
        runs = completed + limited + self._runs(MODEL_ERRORS)
        return {
            "tools": _share(succeeded, judged),
            "by_tool": {n: _share(t.succeeded, t.succeeded + _faults(t)) for n, t in tools},
            "calls_judged": judged,
            "calls_succeeded": succeeded,
            "model": _share(completed + limited / 2, runs),
            "runs_judged": runs,
            "run_points": completed + limited / 2,
        }

    def dump(self) -> bytes:
        """Everything, to be stored."""
        return msgspec.json.encode(self._stored)

    def load(self, data: bytes) -> None:
        """Continue from stored outcomes; unreadable data raises and changes nothing."""
        try:
            self._stored = msgspec.json.decode(data, type=_StoredOutcomes)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise RecordingError(f"the stored outcomes cannot be read: {problem}") from None

    def _runs(self, stops: frozenset[StopReason]) -> int:
        return sum(self._stored.runs.get(stop, 0) for stop in stops)


def _faults(tool: CallCounters) -> int:
    """Failures that are the tool's own."""
    return sum(tool.errors.get(kind, 0) for kind in FAULT_KINDS)


def _tool_metrics(tool: CallCounters) -> dict[str, JSON]:
    latencies = tool.latencies
    return {
        "total_calls": tool.calls,
        "success_count": tool.succeeded,
        "error_count": sum(tool.errors.values()),
        "timeout_count": tool.timeouts,
        "avg_latency_ms": round(latencies.mean_ms, 3),
        "p50_latency_ms": round(latencies.percentile_ms(0.5), 3),
        "p95_latency_ms": round(latencies.percentile_ms(0.95), 3),
        "errors": dict(sorted(tool.errors.items())),
        "last_error": tool.last_error,
        "last_error_time": tool.last_error_time or None,
    }


def _share(part: float, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
