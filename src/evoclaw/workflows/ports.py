"""The ports of workflows: runs of agents, and calls of tools; `wiring` connects them."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from msgspec import Struct

from evoclaw.core.labels import CLEAN, Label, Principal
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.governance.approvals import WorkflowStepRef
from evoclaw.workflows.events import StepFailed, StepFinished, StepUnknown


class AgentCall(Struct, frozen=True, kw_only=True):
    """A request to run an agent."""

    run_id: str
    """The id of the run: the same for the same attempt, also after a restart."""
    agent: str
    message: str
    iterative: bool = True
    """Whether the agent runs in the loop with its tools; false requests one reply without."""
    title: str = ""
    label: Label = CLEAN
    """The label of the values the message was made from."""
    step: WorkflowStepRef | None = None
    """The step, whose approvals cover the calls of the run."""


class AgentRunResult(Struct, frozen=True, kw_only=True):
    """How an agent's run ended."""

    ok: bool
    """Whether the run completed."""
    output: dict[str, JSON] = {}
    text: str = ""
    reason: str = ""
    """Why it did not complete."""
    safe_to_retry: bool = False
    """Whether the run may safely be repeated, because it called no tool."""
    label: Label = CLEAN
    """The label of everything in its session."""


class StepWaiting(Struct, frozen=True):
    """The step waits for a person, or for another run or workflow."""

    reason: str
    retry_after_s: float = 300.0
    """Seconds until the step is run again, unless `Workflows.wake` is called before."""
    for_person: bool = False
    """Whether a person must act: this time does not count against the timeout of the step."""


class ToolRequest(Struct, frozen=True, kw_only=True):
    """A request to call a tool."""

    request_id: str
    """The same for the same attempt, also after a restart."""
    tool: str
    arguments: dict[str, JSON]
    timeout_s: float | None = None
    """None uses the timeout of the tool."""
    resumed: bool = False
    """Whether the call may have been started before a crash, with the same request id."""
    label: Label = CLEAN
    """The label of the values the arguments were made from."""
    step: WorkflowStepRef | None = None
    """The step, whose approvals cover the call."""


class RetrySafety(Struct, frozen=True):
    """Whether a call may be repeated when its outcome is unknown."""

    idempotent: bool = False
    """The tool only reads, or is idempotent: calling it twice has the effect of one call."""
    deduplicated: bool = False
    """The executor deduplicates by request id: it returns the result instead of calling again."""


AgentRunOutcome: TypeAlias = AgentRunResult | StepWaiting
ToolOutcome: TypeAlias = ToolResult | StepWaiting
StepOutcome: TypeAlias = StepFinished | StepFailed | StepUnknown | StepWaiting
"""The outcome of a step, or that it waits."""


class AgentRuns(Protocol):
    """Runs of agents, by id; the orchestrator implements it."""

    async def start(self, who: Principal, call: AgentCall) -> StepWaiting | None:
        """Start a run; durable when this returns, and idempotent by run id.

        `StepWaiting` if it cannot start right now; an `EvoClawError` if it never can.
        """
        ...

    async def result(self, tenant: str, run_id: str) -> AgentRunOutcome:
        """Await the end of a run; `StepWaiting` as soon as the run waits for a person."""
        ...

    async def cancel(self, tenant: str, run_id: str) -> None:
        """Cancel a run; does nothing if it does not exist or has ended."""
        ...


class ToolCalls(Protocol):
    """Calls of tools, under the same policies, limits and records as those of an agent."""

    def retry_safety(self, who: Principal, tool: str) -> RetrySafety:
        """Whether calls of a tool may be repeated; those of an unknown tool may not."""
        ...

    async def execute(self, who: Principal, asked: ToolRequest) -> ToolOutcome:
        """Judge and run a call; `StepWaiting` if it needs approval and has not run.

        When the task is cancelled, the call must end too, unless calls are deduplicated: then it
        may continue, and the next driver requests it again with the same request id.
        """
        ...

    async def cancel(self, tenant: str, request_id: str) -> None:
        """Cancel a call; does nothing if there is none."""
        ...
