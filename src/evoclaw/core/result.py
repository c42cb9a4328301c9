"""What came of a run: its answer and its figures, a fold over its records."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec import Struct

from evoclaw.core.events import (
    CallFinished,
    CallStarted,
    Record,
    RunFinished,
    StopReason,
    TurnStarted,
)
from evoclaw.core.messages import JSON, ErrorKind, Usage


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


class RunResult(Struct, frozen=True, omit_defaults=True):
    """A run's answer and what it took."""

    run_id: str
    text: str
    output: dict[str, JSON]
    stop: StopReason
    reason: str = ""
    turns: int = 0
    calls: int = 0
    tools_used: tuple[str, ...] = ()
    usage: Usage = Usage()
    cost: float | None = None
    metrics: RunMetrics = RunMetrics()
    trace_id: str = ""


class Meter:
    """Measures a run from its records; a sink."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._last = 0.0
        self._started: dict[str, float] = {}
        self._batch: list[tuple[float, float]] = []
        self._succeeded = self._failed = self._timeouts = 0
        self._batches = self._peak = 0
        self._saved = 0.0

    def receive(self, record: Record) -> None:
        """Take one record in."""
        self._first = record.at if self._first is None else self._first
        self._last = record.at
        match record.event:
            case TurnStarted() | RunFinished():
                self._close_batch()
            case CallStarted(call_id):
                self._started[call_id] = record.at
                self._peak = max(self._peak, len(self._started))
            case CallFinished(result):
                start = self._started.pop(result.call_id, None)
                if start is not None:
                    self._batch.append((start, record.at))
                self._succeeded += result.error is None
                self._failed += result.error is not None
                self._timeouts += result.error is ErrorKind.TIMEOUT
            case _:
                pass

    def _close_batch(self) -> None:
        batch, self._batch = self._batch, []
        if len(batch) > 1:
            wall = max(end for _, end in batch) - min(start for start, _ in batch)
            self._batches += 1
            self._saved += max(0.0, sum(end - start for start, end in batch) - wall)

    def metrics(self) -> RunMetrics:
        """The figures so far."""
        return RunMetrics(
            duration_ms=(self._last - (self._first or self._last)) * 1000,
            succeeded=self._succeeded,
            failed=self._failed,
            timeouts=self._timeouts,
            parallel_batches=self._batches,
            max_concurrency=self._peak,
            wall_time_saved_ms=self._saved * 1000,
        )


async def answer(records: AsyncIterator[Record]) -> RunResult:
    """Await the end of a run."""
    meter = Meter()
    record: Record | None = None
    async for record in records:
        meter.receive(record)
    if record is None or not isinstance(record.event, RunFinished):
        raise RuntimeError("a run ends with RunFinished")
    return result_of(record.run_id, record.event, meter.metrics())


def result_of(run_id: str, end: RunFinished, metrics: RunMetrics) -> RunResult:
    """Put the end of a run and its figures together."""
    return RunResult(
        run_id, end.text, end.output, end.stop, end.reason, end.turns, end.calls, end.tools_used,
        end.usage, end.cost, metrics, run_id,
    )  # fmt: skip
