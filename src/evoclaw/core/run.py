"""A run as others see it: `watch` its records or `run` it, its event bus, and its result.

The bus stamps events and passes the records to sinks, in order. A sink that raises never ends the
run. The result is a fold over the records.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing

from msgspec import Struct

from evoclaw.core.agent import LoopSettings
from evoclaw.core.deadline import Deadline
from evoclaw.core.events import Event, Record, RunFinished, StopReason
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import JSON, Message, Usage, user
from evoclaw.core.metrics import RunMeter, RunMetrics
from evoclaw.core.ports import Ports, Sink
from evoclaw.core.state import new_run


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


class Bus:
    """Stamps the events of one run and delivers the records to its sinks."""

    def __init__(
        self,
        run_id: str,
        sinks: Sequence[Sink] = (),
        *,
        clock: Callable[[], float] = time.time,
        seq: int = 0,
    ) -> None:
        self.run_id = run_id
        self.seq = seq
        """The last number assigned; a resumed run continues to count."""
        self._sinks = sinks
        self._clock = clock
        self.failures: list[tuple[Sink, Exception]] = []
        """The errors that sinks raised, for the code that built the bus to report."""

    def publish(self, event: Event) -> Record:
        """Stamp one event and pass the record to every sink."""
        self.seq += 1
        record = Record(self.run_id, self.seq, self._clock(), event)
        for sink in self._sinks:
            try:
                sink.receive(record)
            except Exception as error:
                self.failures.append((sink, error))
        return record


async def recorded(events: AsyncGenerator[Event, None], bus: Bus) -> AsyncGenerator[Record, None]:
    """Turn a run's events into records; closing this closes the run."""
    async with aclosing(events):
        async for event in events:
            yield bus.publish(event)


def watch(
    task: str | Sequence[Message],
    ports: Ports,
    settings: LoopSettings = LoopSettings(),
    *,
    sinks: Sequence[Sink] = (),
    deadline: Deadline | None = None,
) -> AsyncGenerator[Record, None]:
    """Run a task and yield its records as they occur; `deadline.cancel()` ends it cleanly."""
    state = new_run((user(task),) if isinstance(task, str) else task)
    all_sinks = (*ports.sinks, *sinks)
    return recorded(run_loop(state, ports, settings, deadline), Bus(state.run_id, all_sinks))


async def run(
    task: str | Sequence[Message],
    ports: Ports,
    settings: LoopSettings = LoopSettings(),
    *,
    sinks: Sequence[Sink] = (),
    deadline: Deadline | None = None,
) -> RunResult:
    """Run a task and await its result."""
    return await collect_result(watch(task, ports, settings, sinks=sinks, deadline=deadline))
