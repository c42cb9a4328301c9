"""Runs the steps that call an agent, a tool or another workflow, and returns their outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from evoclaw.core.encoding import json_text
from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import Label
from evoclaw.core.messages import JSON, ErrorKind, ToolResult, is_array, is_object, label_of
from evoclaw.workflows.child_workflows import ChildWorkflows
from evoclaw.workflows.definition import (
    AgentStep,
    LeafStep,
    Retry,
    ToolStep,
    WorkflowStep,
    step_ref,
)
from evoclaw.workflows.events import StepFailed, StepFinished, StepUnknown
from evoclaw.workflows.planner import filled_inputs, templates_of
from evoclaw.workflows.ports import (
    AgentCall,
    AgentRuns,
    StepOutcome,
    StepWaiting,
    ToolCalls,
    ToolRequest,
)
from evoclaw.workflows.progress import Progress, StepProgress
from evoclaw.workflows.templates import references_in

T = TypeVar("T")
MAX_OUTPUT_BYTES = 1_000_000
"""Maximum size of a step's output as JSON."""
MAX_OUTPUT_DEPTH = 64
PAUSED_POLL_INTERVAL_S = 5.0
"""Seconds between two checks of a child workflow that waits for a person, near its timeout."""
NOT_STARTED_ERRORS = frozenset(
    {
        ErrorKind.AGENT_OFFLINE,
        ErrorKind.QUEUE_FULL,
        ErrorKind.EXPIRED,
        ErrorKind.SANDBOX_UNAVAILABLE,
    }
)
"""Errors before the call ran, which may be temporary."""


class StepRunner:
    """Runs steps through agents, tools and other workflows."""

    def __init__(
        self,
        agents: AgentRuns,
        tools: ToolCalls,
        children: ChildWorkflows,
        clock: Callable[[], float],
    ) -> None:
        self._agents, self._tools, self._children = agents, tools, children
        self._clock = clock

    async def run(self, step: LeafStep, progress: Progress, *, resumed: bool) -> StepOutcome:
        """Run a step that has started.

        Args:
            step: The step.
            progress: The progress of its workflow, in which the step has started.
            resumed: Whether a process that has died may have started the attempt.
        """
        current = progress.steps[step.name]
        try:
            given = filled_inputs(step, progress)
        except EvoClawError as problem:
            return StepFailed(step.name, current.attempt, str(problem))
        label = progress.label_of(references_in(templates_of(step)))
        match step:
            case AgentStep():
                outcome = await self._agent(step, progress, given, label)
            case ToolStep():
                outcome = await self._tool(step, progress, given, label, resumed)
            case WorkflowStep():
                outcome = await self._workflow(step, progress, given, label)
        return _bounded(outcome)

    async def cancel(self, step: LeafStep, progress: Progress, reason: str) -> None:
        """Cancel the run, call or workflow of a step."""
        current, tenant = progress.steps[step.name], progress.plan.who.tenant
        match step:
            case AgentStep():
                await self._agents.cancel(tenant, current.run_ids[-1])
            case ToolStep():
                await self._tools.cancel(tenant, _request_id(step, progress))
            case WorkflowStep():
                await self._children.cancel(tenant, current.workflow_id, reason)

    async def _agent(
        self, step: AgentStep, progress: Progress, given: dict[str, JSON], label: Label
    ) -> StepOutcome:
        current, who = progress.steps[step.name], progress.plan.who
        run_id = current.run_ids[-1]
        call = AgentCall(
            run_id=run_id,
            agent=step.agent,
            message=_message(json_text(given["message"]), given["inputs"]),
            iterative=step.iterative,
            title=f"{progress.plan.workflow.name}: {step.name}",
            label=label,
            step=step_ref(progress.plan.workflow, step),
        )
        try:
            waiting = await self._agents.start(who, call)
        except EvoClawError as problem:
            return self._failed(step, current, str(problem), safe=True)
        if waiting is not None:
            return waiting
        try:
            ended = await self._within_timeout(
                step, current, self._agents.result(who.tenant, run_id)
            )
        except StepTimeout as late:
            await self._agents.cancel(who.tenant, run_id)
            return self._failed(step, current, str(late), safe=False)
        except EvoClawError as problem:
            return self._failed(step, current, str(problem), safe=False)
        if isinstance(ended, StepWaiting):
            return ended
        if not ended.ok:
            error = ended.reason or "the agent did not complete the run"
            return self._failed(step, current, error, safe=ended.safe_to_retry)
        output = {**ended.output, "text": ended.output.get("text", ended.text)}
        return StepFinished(step.name, current.attempt, output, ended.label | label)

    async def _tool(
        self,
        step: ToolStep,
        progress: Progress,
        given: dict[str, JSON],
        label: Label,
        resumed: bool,
    ) -> StepOutcome:
        current, who = progress.steps[step.name], progress.plan.who
        nature = self._tools.retry_safety(who, step.tool)
        if resumed and not (nature.idempotent or nature.deduplicated):
            reason = (
                f"the process ended while {step.tool!r} ran; it may or may not have taken effect"
            )
            return StepUnknown(step.name, current.attempt, reason)
        asked = ToolRequest(
            request_id=_request_id(step, progress),
            tool=step.tool,
            arguments=given,
            timeout_s=step.timeout_s,
            resumed=resumed,
            label=label,
            step=step_ref(progress.plan.workflow, step),
        )
        try:
            result = await self._within_timeout(step, current, self._tools.execute(who, asked))
        except StepTimeout as late:
            await self._tools.cancel(who.tenant, asked.request_id)
            if nature.idempotent:
                return self._failed(step, current, str(late), safe=True)
            reason = f"{late}; it may or may not have taken effect"
            return StepUnknown(step.name, current.attempt, reason)
        except EvoClawError as problem:
            return self._failed(step, current, str(problem), safe=nature.idempotent)
        if isinstance(result, StepWaiting):
            return result
        if result.error is ErrorKind.UNKNOWN and not nature.idempotent:
            return StepUnknown(step.name, current.attempt, result.text)
        if result.error is not None:
            safe = nature.idempotent or result.error in NOT_STARTED_ERRORS
            error = f"{result.error}: {result.text}"
            return self._failed(step, current, error, safe=safe, output=_output(result))
        return StepFinished(step.name, current.attempt, _output(result), label_of(result) | label)

    async def _workflow(
        self, step: WorkflowStep, progress: Progress, given: dict[str, JSON], label: Label
    ) -> StepOutcome:
        current, tenant = progress.steps[step.name], progress.plan.who.tenant
        try:
            outcome = await self._children.start_or_poll(progress, step, given, label)
        except EvoClawError as problem:
            return StepFailed(step.name, current.attempt, str(problem))
        if step.timeout_s is None or not isinstance(outcome, StepWaiting):
            return outcome
        now = self._clock()
        paused = await self._children.person_time(tenant, current.workflow_id, now)
        left = current.started_at + step.timeout_s + paused.seconds - now
        if left > 0:
            again = max(left, PAUSED_POLL_INTERVAL_S) if paused.is_paused else left
            return StepWaiting(outcome.reason, min(outcome.retry_after_s, again))
        late = _timeout_error(step)
        await self._children.cancel(tenant, current.workflow_id, late)
        return StepFailed(step.name, current.attempt, late)

    async def _within_timeout(self, step: LeafStep, current: StepProgress, work: Awaitable[T]) -> T:
        """Await something within the rest of a step's timeout; else `StepTimeout`."""
        due, left = current.times_out_at(step.timeout_s), step.timeout_s
        limit = asyncio.timeout(left if due is None else max(0.0, due - self._clock()))
        try:
            async with limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise StepTimeout(_timeout_error(step)) from None

    def _failed(
        self,
        step: AgentStep | ToolStep,
        current: StepProgress,
        error: str,
        *,
        safe: bool,
        output: JSON = None,
    ) -> StepFailed:
        again = retry_at(step.retry, current.attempt, self._clock()) if safe else None
        return StepFailed(step.name, current.attempt, error, output, again)


class StepTimeout(EvoClawError):
    """A step took longer than its timeout."""


def retry_at(retry: Retry, attempt: int, now: float) -> float | None:
    """When a failed step is retried; None if it is not."""
    return None if attempt >= retry.attempts else now + retry.delay_s(attempt)


def _timeout_error(step: LeafStep) -> str:
    return f"the step took longer than {step.timeout_s:g} s"


def _request_id(step: ToolStep, progress: Progress) -> str:
    return f"{progress.workflow_id}-{step.name}.1.0.{progress.steps[step.name].attempt}"


def _message(message: str, inputs: dict[str, JSON]) -> str:
    if not inputs:
        return message
    given = msgspec.json.encode(inputs).decode()
    return f"{message}\n\n{given}" if message else given


def _output(result: ToolResult) -> JSON:
    """A result as an object; if its text is JSON, expressions can refer to the values in it."""
    output: dict[str, JSON] = {"text": result.text, "details": result.details}
    with suppress(msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        output["data"] = msgspec.json.decode(result.text)
    return output


def _bounded(outcome: StepOutcome) -> StepOutcome:
    """Refuse an output that is too large to be stored with the workflow."""
    if isinstance(outcome, StepFinished | StepFailed) and (
        problem := _output_problem(outcome.output)
    ):
        error = outcome.error if isinstance(outcome, StepFailed) else problem
        return StepFailed(outcome.step, outcome.attempt, error, label=outcome.label)
    return outcome


def _output_problem(output: JSON) -> str:
    if not _depth_allowed(output):
        return f"the output is nested more than {MAX_OUTPUT_DEPTH} deep"
    if len(msgspec.json.encode(output)) > MAX_OUTPUT_BYTES:
        return f"the output has more than {MAX_OUTPUT_BYTES} bytes; write it to a file instead"
    return ""


def _depth_allowed(value: JSON) -> bool:
    level = [value]
    for _ in range(MAX_OUTPUT_DEPTH):
        inner: list[JSON] = []
        for node in level:
            if is_object(node):
                inner += node.values()
            elif is_array(node):
                inner += node
        if not inner:
            return True
        level = inner
    return False
