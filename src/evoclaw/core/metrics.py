"""Percentiles, histograms and counters: the one module with which everything is counted.

The service counts live records with it, `store/metrics` stored ones, a run its own result, and an
edge what its tools did. A percentile is by nearest rank everywhere: the smallest value that at
least this share of all values does not exceed. It is exact over a list of values, and within 5 %
over a histogram.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct, field

from evoclaw.core.events import (
    CallFinished,
    CallStarted,
    ContextTrimmed,
    Event,
    Record,
    Replied,
    ReplyFailed,
    ReplyRetried,
    RunFinished,
    TurnStarted,
)
from evoclaw.core.messages import JSON, ErrorKind, ImageBlock, ToolResult, Usage

BUCKETS_PER_DOUBLING = 8
"""Of a histogram: the middle of a bucket is at most 4.5 % off."""
MAX_DURATION_MS = 1e12
"""Some thirty years; a longer duration counts as this."""
_NO_START: tuple[None, Mapping[str, JSON]] = (None, {})
COUNTED_EVENTS = frozenset({
    CallFinished, CallStarted, ContextTrimmed, Replied, ReplyFailed, ReplyRetried, RunFinished,
    TurnStarted,
})  # fmt: skip
"""All others are passed over at once: nearly all events are pieces of text."""
Count = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0)]


def nearest_rank(share: float, count: int) -> int:
    """The rank of a percentile among `count` ordered values, from 1."""
    return min(max(math.ceil(share * count), 1), count)


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The exact percentile of values in ascending order; None if there are none."""
    return ordered[nearest_rank(share, len(ordered)) - 1] if ordered else None


class Distribution(Struct, frozen=True):
    """The average, median, 95th percentile and maximum of many numbers; null if there are none."""

    avg: float | None = None
    """The average."""
    p50: float | None = None
    """The median."""
    p95: float | None = None
    """The 95th percentile."""
    max: float | None = None
    """The largest value."""


def distribution(numbers: Iterable[float]) -> Distribution:
    """The exact average, median, 95th percentile and maximum of many numbers."""
    ordered = sorted(numbers)
    if not ordered:
        return Distribution()
    middle, high = percentile(ordered, 0.5), percentile(ordered, 0.95)
    return Distribution(sum(ordered) / len(ordered), middle, high, ordered[-1])


class Histogram(Struct, forbid_unknown_fields=True):
    """Durations in buckets that grow with the duration: a few numbers for any number of values.

    Edges store it: the names of the fields and the numbering of the buckets are a stored format.
    """

    count: Count = 0
    total_ms: Amount = 0.0
    low_ms: Amount = 0.0
    high_ms: Amount = 0.0
    buckets: dict[int, Count] = field(default_factory=dict[int, int])

    def add(self, ms: float) -> None:
        """Count a duration; a negative one, of a clock that was set back, counts as 0."""
        taken = min(ms, MAX_DURATION_MS) if ms > 0 else 0.0
        if taken < self.low_ms or not self.count:
            self.low_ms = taken
        if taken > self.high_ms:
            self.high_ms = taken
        self.count += 1
        self.total_ms += taken
        # The first bucket ends at a microsecond.
        micros = taken * 1000
        bucket = math.floor(math.log2(micros) * BUCKETS_PER_DOUBLING) if micros > 1 else 0
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def include(self, other: Histogram) -> None:
        """Add all values of another histogram."""
        if not other.count:
            return
        self.low_ms = min(self.low_ms, other.low_ms) if self.count else other.low_ms
        self.high_ms = max(self.high_ms, other.high_ms)
        self.count += other.count
        self.total_ms += other.total_ms
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    @property
    def mean_ms(self) -> float:
        """The exact mean; 0 if there are no values."""
        return self.total_ms / self.count if self.count else 0.0

    def percentile_ms(self, share: float) -> float:
        """The percentile, within 5 %; 0 if there are no values."""
        remaining = nearest_rank(share, self.count)
        if remaining >= self.count:
            return self.high_ms
        for bucket in sorted(self.buckets):
            remaining -= self.buckets[bucket]
            if remaining <= 0:
                middle = 2 ** ((bucket + 0.5) / BUCKETS_PER_DOUBLING) / 1000
                return min(max(middle, self.low_ms), self.high_ms)
        return self.high_ms


class CallCounters(Struct, forbid_unknown_fields=True):
    """How calls ended, of one tool or of a whole run.

    Edges store it: the names of the fields are a stored format.
    """

    calls: Count = 0
    succeeded: Count = 0
    errors: dict[str, Count] = field(default_factory=dict[str, int])
    """By kind."""
    latencies: Histogram = field(default_factory=Histogram)
    """Of the calls that ran."""
    last_error: str = ""
    last_error_time: Amount = 0.0
    """Unix seconds; 0 is never."""

    def add(
        self,
        error: str | None,
        *,
        at: float = 0.0,
        elapsed_ms: float | None = None,
        message: str = "",
    ) -> None:
        """Count a call.

        Args:
            error: The kind of error; None or empty if the call succeeded.
            at: When it ended, in Unix seconds.
            elapsed_ms: How long it ran; None if it never ran, or if that does not matter.
            message: The text of the error; without one, its kind is kept as the last error.
        """
        self.calls += 1
        if elapsed_ms is not None:
            self.latencies.add(elapsed_ms)
        if not error:
            self.succeeded += 1
            return
        kind = str(error)
        self.errors[kind] = self.errors.get(kind, 0) + 1
        self.last_error, self.last_error_time = message or kind, at

    def include(self, other: CallCounters) -> None:
        """Add all calls of another one."""
        self.calls += other.calls
        self.succeeded += other.succeeded
        self.latencies.include(other.latencies)
        for kind, count in other.errors.items():
            self.errors[kind] = self.errors.get(kind, 0) + count
        if other.last_error_time >= self.last_error_time:
            self.last_error, self.last_error_time = other.last_error, other.last_error_time

    @property
    def failed(self) -> int:
        """Calls that did not succeed, whatever the reason."""
        return self.calls - self.succeeded

    @property
    def timeouts(self) -> int:
        """Of the failed calls, those that timed out."""
        return self.errors.get(ErrorKind.TIMEOUT, 0)


class Spending(Struct):
    """What replies cost."""

    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    """In US dollars, as far as prices are known."""
    unpriced: int = 0
    """Replies without a known price: with any, the real cost is higher."""

    def add(self, usage: Usage, cost: float | None) -> None:
        """Count a reply; one without a known price is counted as such."""
        self.tokens_in += usage.input
        self.tokens_out += usage.output
        if cost is not None:
            self.cost += cost
        elif usage.input or usage.output:
            self.unpriced += 1

    def include(self, other: Spending) -> None:
        """Add everything of another one."""
        self.tokens_in += other.tokens_in
        self.tokens_out += other.tokens_out
        self.cost += other.cost
        self.unpriced += other.unpriced


class ReplyCounters(Struct):
    """The turns and replies of runs, counted from their events."""

    turns: int = 0
    retried: int = 0
    failed: int = 0
    spending: Spending = field(default_factory=Spending)

    def receive(self, event: Event) -> None:
        """Count an event, if it is about a turn or a reply."""
        match event:
            case TurnStarted():
                self.turns += 1
            case Replied(reply=reply):
                self.spending.add(reply.usage, reply.cost)
            case ReplyRetried():
                self.retried += 1
            case ReplyFailed(usage=usage):
                self.failed += 1
                self.spending.add(usage, None)
            case ContextTrimmed(usage=usage, cost=cost):
                self.spending.add(usage, cost)
            case _:
                pass


class FinishedCall(Struct, frozen=True):
    """The end of a call, together with its start."""

    result: ToolResult
    at: float
    elapsed_ms: float | None
    """How long it ran, never negative; None if it never ran, or was started in another process."""
    arguments: Mapping[str, JSON]

    @property
    def ran(self) -> bool:
        """Whether its start is known."""
        return self.elapsed_ms is not None


class RunMetrics(Struct, frozen=True, omit_defaults=True):
    """How the calls of a run went, in time."""

    duration_ms: float = 0.0
    succeeded: int = 0
    failed: int = 0
    timeouts: int = 0
    parallel_batches: int = 0
    """Turns that ran more than one call."""
    max_concurrency: int = 0
    """How many calls really were under way at once."""
    wall_time_saved_ms: float = 0.0
    """In parallel batches: the calls' own times added up, less the time that passed."""


class RunMeter:
    """Counts the replies and calls of one run from its records, live or stored; a sink."""

    def __init__(
        self,
        *,
        replies: ReplyCounters | None = None,
        on_call: Callable[[FinishedCall], None] | None = None,
    ) -> None:
        """Start to count.

        Args:
            replies: Where turns and replies are counted, perhaps of several runs; by default
                counters of its own.
            on_call: Gets every call that finished.
        """
        self.replies = replies or ReplyCounters()
        self.calls = CallCounters()
        """Of all tools; without latencies."""
        self._on_call = on_call
        self._first: float | None = None
        self._last = 0.0
        self._started: dict[str, tuple[float, Mapping[str, JSON]]] = {}
        self._batch: list[tuple[float, float]] = []
        self._batches = self._peak = 0
        self._saved = 0.0

    def receive(self, record: Record) -> None:
        """Count a record; each one once, in order."""
        at, event = record.at, record.event
        self._last = at
        if self._first is None:
            self._first = at
        if type(event) not in COUNTED_EVENTS:
            return
        if isinstance(event, CallStarted):
            # A call that was interrupted and restarted is measured from its last start.
            self._started[event.call_id] = at, event.arguments
            if len(self._started) > self._peak:
                self._peak = len(self._started)
        elif isinstance(event, CallFinished):
            self._finish(event.result, at)
        else:
            self.replies.receive(event)
            if isinstance(event, TurnStarted | RunFinished):
                self._close_batch()

    def _finish(self, result: ToolResult, at: float) -> None:
        started_at, arguments = self._started.pop(result.call_id, _NO_START)
        elapsed_ms = None
        if started_at is not None:
            self._batch.append((started_at, at))
            elapsed_ms = max(at - started_at, 0.0) * 1000
        self.calls.add(result.error, at=at)
        if self._on_call is not None:
            self._on_call(FinishedCall(result, at, elapsed_ms, arguments))

    def _close_batch(self) -> None:
        batch, self._batch = self._batch, []
        if len(batch) > 1:
            wall = max(end for _, end in batch) - min(start for start, _ in batch)
            self._batches += 1
            self._saved += max(0.0, sum(end - start for start, end in batch) - wall)

    def metrics(self) -> RunMetrics:
        """The metrics so far."""
        return RunMetrics(
            duration_ms=(self._last - (self._first or self._last)) * 1000,
            succeeded=self.calls.succeeded,
            failed=self.calls.failed,
            timeouts=self.calls.timeouts,
            parallel_batches=self._batches,
            max_concurrency=self._peak,
            wall_time_saved_ms=self._saved * 1000,
        )


def result_bytes(result: ToolResult) -> int:
    """How many bytes a call returned to the model, as UTF-8."""
    size = 0
    for block in result.blocks:
        text = block.data if isinstance(block, ImageBlock) else block.text
        size += len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    return size
