"""The numbers themselves: what is kept of calls, runs and requests, and asked for beside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from evoclaw.core.messages import ImageBlock, ToolResult, Usage
from evoclaw.observe.durations import Durations

SUCCESS = "success"
"""The outcome of a call that did not fail; of others it is the kind of error."""

Number = Callable[[], float]
Numbers = Callable[[], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class EdgeFigures:
    """How one edge is, by its last heartbeat."""

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
    """What is asked for whenever the figures are wanted; what is None is not shown."""

    live_runs: Number | None = None
    queued_runs: Number | None = None
    watchers: Number | None = None
    """Of runs, over server-sent events."""
    edges_online: Number | None = None
    edges: Callable[[], Iterable[EdgeFigures]] | None = None
    """All that are known."""
    outbox_depth: Number | None = None
    """Commands that wait for an edge."""
    approvals_waiting: Number | None = None
    approval_wait: Number | None = None
    """Seconds since the oldest of them was asked for."""
    deliveries_waiting: Number | None = None
    """Answers that a channel has not delivered yet."""
    link_reconnects: Number | None = None
    store_busy: Number | None = None
    """Seconds in which the store was written to or read, one thing after the other."""
    store_commits: Number | None = None
    disk_free: Number | None = None
    """Bytes where the store is."""
    ready: Callable[[], Mapping[str, bool]] | None = None
    """The parts without which nothing can be done, and whether each works."""
    counts: Mapping[str, Numbers] = field(default_factory=lambda: dict[str, Numbers]())
    """What parts count by themselves, by the part's name: reason, and how often."""


class ToolTally:
    """What is known of one tool as one agent used it."""

    __slots__ = ("bytes", "durations", "last_error", "last_error_at", "outcomes")

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.durations = Durations()
        self.bytes = 0
        self.last_error = ""
        self.last_error_at = 0.0

    def finished(self, result: ToolResult, began: float | None, at: float) -> None:
        """Count one call; without a beginning it never ran, or began in another process."""
        outcome = SUCCESS if result.error is None else str(result.error)
        self.outcomes[outcome] += 1
        self.bytes += _size(result)
        if began is not None:
            self.durations.add(at - began)
        if result.error is not None:
            self.last_error, self.last_error_at = outcome, at


class AgentTally:
    """What is known of the runs of one agent."""

    __slots__ = (
        "cost", "durations", "failed_replies", "retries", "stops", "tokens_in", "tokens_out",
        "turns", "unpriced",
    )  # fmt: skip

    def __init__(self) -> None:
        self.stops: Counter[str] = Counter()
        self.durations = Durations()
        self.turns = self.tokens_in = self.tokens_out = self.retries = self.failed_replies = 0
        self.cost = 0.0
        self.unpriced = 0

    def spent(self, usage: Usage, cost: float | None) -> None:
        """Count what a reply took; one without a known price is counted as such."""
        self.tokens_in += usage.input
        self.tokens_out += usage.output
        if cost is not None:
            self.cost += cost
        elif usage.input or usage.output:
            self.unpriced += 1


class Tallies:
    """All of them."""

    def __init__(self) -> None:
        self.tools: dict[tuple[str, str], ToolTally] = {}
        """By tool and agent."""
        self.agents: dict[str, AgentTally] = {}
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """By method, route and status."""
        self.request_times: dict[tuple[str, str], Durations] = {}
        """By method and route."""


def _size(result: ToolResult) -> int:
    size = 0
    for block in result.blocks:
        text = block.data if isinstance(block, ImageBlock) else block.text
        size += len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    return size
