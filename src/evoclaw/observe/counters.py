"""The counters and gauges of a running service: what `metrics` fills and `exposition` renders."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from evoclaw.core.metrics import CallCounters, FinishedCall, ReplyCounters, result_bytes

BOUNDS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
"""Upper bounds of the buckets that Prometheus gets, in seconds."""
OTHER = "other"
"""Stands for all names beyond the first ones."""

Gauge = Callable[[], float]
Counts = Callable[[], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class EdgeGauges:
    """The state of one edge, by its last heartbeat."""

    name: str
    online: bool = False
    in_flight: int = 0
    queued: int = 0
    cpu_percent: float = 0.0
    memory_bytes: float = 0.0
    uptime_s: float = 0.0
    last_seen: float = 0.0
    """Unix seconds; 0 is never."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is read whenever the metrics are rendered; what is None is not shown."""

    live_runs: Gauge | None = None
    queued_runs: Gauge | None = None
    edges_online: Gauge | None = None
    edges: Callable[[], Iterable[EdgeGauges]] | None = None
    """All known edges."""
    approvals_waiting: Gauge | None = None
    approval_wait: Gauge | None = None
    """Seconds since the oldest of them was requested."""
    link_reconnects: Gauge | None = None
    store_busy: Gauge | None = None
    """Seconds in which the store wrote or read."""
    store_commits: Gauge | None = None
    disk_free: Gauge | None = None
    """Bytes where the store is."""
    ready: Callable[[], Mapping[str, bool]] | None = None
    """The parts that the service depends on, and whether each works."""
    counts: Mapping[str, Counts] = field(default_factory=lambda: dict[str, Counts]())
    """What parts count by themselves, by the part's name: reason, and how often."""


class BucketCounts:
    """Durations between the bounds that Prometheus gets."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """Durations up to each bound and above the one before; the last is above all bounds."""
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration; a negative one, of a clock that was set back, counts as 0."""
        seconds = max(seconds, 0.0)
        self.total_s += seconds
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1


class ToolSeries:
    """The counters of one tool as one agent used it."""

    __slots__ = ("bytes", "calls", "seconds")

    def __init__(self) -> None:
        self.calls = CallCounters()
        self.seconds = BucketCounts()
        self.bytes = 0

    def add(self, call: FinishedCall) -> None:
        """Count a call."""
        elapsed = call.elapsed_ms
        self.calls.add(call.result.error, at=call.at, elapsed_ms=elapsed)
        self.bytes += result_bytes(call.result)
        if elapsed is not None:
            self.seconds.add(elapsed / 1000)


class AgentSeries:
    """The counters of the runs of one agent."""

    __slots__ = ("replies", "seconds", "stops")

    def __init__(self) -> None:
        self.stops: Counter[str] = Counter()
        self.replies = ReplyCounters()
        self.seconds = BucketCounts()


class Counters:
    """All counters of a process."""

    def __init__(self) -> None:
        self.tools: dict[tuple[str, str], ToolSeries] = {}
        """By tool and agent."""
        self.agents: dict[str, AgentSeries] = {}
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """By method, route and status."""
        self.request_seconds: dict[tuple[str, str], BucketCounts] = {}
        """By method and route."""
