"""Runs the steps of workflows as ordinary runs: stored, judged, recorded and resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evoclaw.core.agent import Agent
from evoclaw.core.events import StopReason
from evoclaw.core.labels import Label, Principal, join_labels
from evoclaw.core.messages import ToolResult, label_of
from evoclaw.core.tools import Effect, Tool
from evoclaw.orchestrator.sessions.run_ids import tenant_run_id
from evoclaw.workflows.ports import AgentRunResult, RetrySafety, StepWaiting

if TYPE_CHECKING:
    from evoclaw.core.run import RunResult
    from evoclaw.orchestrator.runs.runs import Runs
    from evoclaw.orchestrator.sessions.conversations import Conversations
    from evoclaw.workflows.ports import AgentCall, AgentRunOutcome, ToolOutcome, ToolRequest

STEP_RETRY_DELAY_S = 5.0
"""Seconds until a step that was rejected for lack of capacity is retried."""


@dataclass(frozen=True, slots=True)
class AgentSteps:
    """Workflow steps that ask an agent."""

    runs: Runs
    conversations: Conversations

    async def start(self, who: Principal, call: AgentCall) -> StepWaiting | None:
        """Start the run of a step; the same run if the step is started again."""
        from evoclaw.orchestrator.agents.definitions import iterative_settings
        from evoclaw.orchestrator.runs.runs import Draining, RunQueueFull, RunRequest

        agent = self.conversations.agents.get(call.agent)
        settings = iterative_settings(agent) if agent is not None and call.iterative else None
        request = RunRequest(
            call.message,
            agent=call.agent,
            title=call.title,
            settings=settings,
            single=not call.iterative,
            label=call.label,
            workflow_step=call.step,
        )
        try:
            await self.runs.start(who, request, run_id=call.run_id)
        except (Draining, RunQueueFull) as problem:
            return StepWaiting(str(problem), STEP_RETRY_DELAY_S)
        return None

    async def result(self, tenant: str, run_id: str) -> AgentRunOutcome:
        """Await the end of a run; `StepWaiting` as soon as it waits for a person."""
        result = await self.runs.result(tenant, tenant_run_id(tenant, run_id))
        if result.stop is StopReason.WAITING:
            return StepWaiting(result.reason or result.text, for_person=True)
        done = result.stop is StopReason.COMPLETED
        return AgentRunResult(
            ok=done,
            output=result.output,
            text=result.text,
            reason="" if done else result.reason or str(result.stop),
            safe_to_retry=not result.calls,
            label=await self._label(tenant, result),
        )

    async def _label(self, tenant: str, result: RunResult) -> Label:
        """The joined label of all messages of its session."""
        view = await self.runs.get(tenant, result.run_id)
        if view is None:
            return join_labels(())
        messages = await self.conversations.store.of(tenant).messages(view.session_id)
        return join_labels(label_of(message) for _, message in messages)

    async def cancel(self, tenant: str, run_id: str) -> None:
        """Cancel a run."""
        await self.runs.cancel(tenant, tenant_run_id(tenant, run_id))


@dataclass(frozen=True, slots=True)
class ToolSteps:
    """Workflow steps that are one call: a run without a model, under the rules of an agent."""

    runs: Runs
    agent: Callable[[], Agent]
    tools: Callable[[Agent], Sequence[Tool]]

    def retry_safety(self, who: Principal, tool: str) -> RetrySafety:
        """How safely a call can be repeated; its run starts once, so no call runs twice."""
        found = next((known for known in self.tools(self.agent()) if known.name == tool), None)
        if found is None:
            return RetrySafety(deduplicated=True)
        harmless = found.effect is Effect.READ or found.idempotent
        return RetrySafety(idempotent=harmless, deduplicated=True)

    async def execute(self, who: Principal, asked: ToolRequest) -> ToolOutcome:
        """Judge and run one call; its run continues if the workflow stops waiting for it."""
        from evoclaw.orchestrator.runs.runs import Draining, RunQueueFull
        from evoclaw.orchestrator.runs.single_calls import single_call_request

        run_id = _tool_run_id(who.tenant, asked.request_id)
        try:
            request = single_call_request(
                asked.tool,
                asked.arguments,
                agent=self.agent().name,
                label=asked.label,
                timeout_s=asked.timeout_s,
                step=asked.step,
            )
            await self.runs.start(who, request, run_id=run_id)
        except (Draining, RunQueueFull) as problem:
            return StepWaiting(str(problem), STEP_RETRY_DELAY_S)
        result = await self.runs.result(who.tenant, run_id)
        if result.stop is StopReason.WAITING:
            return StepWaiting(result.reason or result.text, for_person=True)
        return await self._outcome(who.tenant, result)

    async def cancel(self, tenant: str, request_id: str) -> None:
        """Cancel the run of a call."""
        await self.runs.cancel(tenant, _tool_run_id(tenant, request_id))

    async def _outcome(self, tenant: str, result: RunResult) -> ToolResult:
        from evoclaw.core.messages import ErrorKind
        from evoclaw.core.tools import failure
        from evoclaw.orchestrator.runs.single_calls import call_result

        found = await call_result(self.runs, tenant, result.run_id)
        if found is not None:
            return found
        return failure("call", "", ErrorKind.INTERNAL, result.reason or result.text)


def _tool_run_id(tenant: str, request_id: str) -> str:
    """The run id of a tool step, derived from its request id.

    It names its workflow, like the run of an agent step: the workflow is woken when the run
    continues or ends.
    """
    return tenant_run_id(tenant, "tool-" + request_id.replace(".", "-"))
