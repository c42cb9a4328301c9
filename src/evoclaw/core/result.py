"""The result of a run: its answer and its metrics, a fold over its records."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec import Struct

from evoclaw.core.events import Record, RunFinished, StopReason
from evoclaw.core.messages import JSON, Usage
from evoclaw.core.metrics import RunMeter, RunMetrics


class RunResult(Struct, frozen=True, omit_defaults=True):
    """The answer of a run, its usage and its metrics."""

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


async def collect_result(records: AsyncIterator[Record]) -> RunResult:
    """Await the end of a run and return its result."""
    meter = RunMeter()
    record: Record | None = None
    async for record in records:
        meter.receive(record)
    if record is None or not isinstance(record.event, RunFinished):
        raise RuntimeError("a run ends with RunFinished")
    return result_of(record.run_id, record.event, meter.metrics())


def result_of(run_id: str, end: RunFinished, metrics: RunMetrics) -> RunResult:
    """The result of a run from its last event and its metrics."""
    return RunResult(
        run_id, end.text, end.output, end.stop, end.reason, end.turns, end.calls, end.tools_used,
        end.usage, end.cost, metrics, run_id,
    )  # fmt: skip
