"""Traces commands: each runs in a span below the orchestrator's call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from evoclaw.core.deadline import Deadline
from evoclaw.core.messages import ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tracing import use_trace
from evoclaw.edge.plans import CallPlan, Planner, Work
from evoclaw.transport.wire import Command

if TYPE_CHECKING:
    from evoclaw.observe.tracing.tracing import Tracing


def add_spans(
    planners: Mapping[str, Planner], tracing: Tracing | None, agent_id: str
) -> Mapping[str, Planner]:
    """The same planners, with a span around the work of each plan."""
    if tracing is None:
        return planners
    return {name: _traced(planner, tracing, agent_id) for name, planner in planners.items()}


def _traced(planner: Planner, tracing: Tracing, agent_id: str) -> Planner:
    async def plan(command: Command) -> CallPlan | ToolResult:
        made = await planner(command)
        if isinstance(made, ToolResult):
            return made
        return replace(made, work=_work(made, command, tracing, agent_id))

    return plan


def _work(plan: CallPlan, command: Command, tracing: Tracing, agent_id: str) -> Work:
    async def work(deadline: Deadline, progress: Progress) -> ToolResult:
        call = tracing.edge_call(
            agent_id,
            plan.name,
            request_id=command.request_id,
            run_id=command.run_id,
            traceparent=command.traceparent,
        )
        result: ToolResult | None = None
        try:
            with use_trace(call.place):
                result = await plan.work(deadline, progress)
                return result
        finally:
            call.ended(result)

    return work
