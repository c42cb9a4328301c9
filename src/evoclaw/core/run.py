"""The two ways to start a run: `watch` its records, or `run` it and await its result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from evoclaw.core.agent import LoopSettings
from evoclaw.core.bus import Bus, recorded
from evoclaw.core.deadline import Deadline
from evoclaw.core.events import Record
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import Message, user
from evoclaw.core.ports import Ports, Sink
from evoclaw.core.result import RunResult, collect_result
from evoclaw.core.state import new_run


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
