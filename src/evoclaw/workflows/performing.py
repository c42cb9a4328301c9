"""Having somebody else do a step: an agent, a tool, another workflow. What came of it is a fact."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import Label
from evoclaw.core.messages import JSON, ErrorKind, ToolResult, is_array, is_object, label_of
from evoclaw.workflows.definition import AgentStep, Leaf, Retry, ToolStep, WorkflowStep
from evoclaw.workflows.events import StepFailed, StepFinished, StepUnknown
from evoclaw.workflows.planning import asks_of, sources_of
from evoclaw.workflows.ports import AgentCall, AgentRuns, ToolAsked, ToolCalls, Waiting
from evoclaw.workflows.progress import Progress, StepProgress
from evoclaw.workflows.templates import as_text, used

T = TypeVar("T")
Came: TypeAlias = StepFinished | StepFailed | StepUnknown | Waiting
"""What came of a step, or that it waits."""

MAX_OUTPUT = 1_000_000
"""Bytes of a step's output as JSON."""
MAX_DEPTH = 64
NOTHING_RAN = frozenset(
    {
        ErrorKind.AGENT_OFFLINE,
        ErrorKind.QUEUE_FULL,
        ErrorKind.EXPIRED,
        ErrorKind.SANDBOX_UNAVAILABLE,
    }
)
"""Failures before anything was done, that may pass."""


class Children(Protocol):
    """Workflows that are steps of others."""

    async def look_after(
        self, progress: Progress, step: WorkflowStep, inputs: dict[str, JSON], label: Label
    ) -> Came:
        """Start one if it is not there yet, and see whether it has ended."""
        ...

    async def stop(self, tenant: str, workflow_id: str, reason: str) -> None:
        """Have one cancelled."""
        ...


class Performer:
    """Asks agents, tools and other workflows."""

    def __init__(
        self,
        agents: AgentRuns,
        tools: ToolCalls,
        children: Children,
        clock: Callable[[], float],
    ) -> None:
        self._agents, self._tools, self._children = agents, tools, children
        self._clock = clock

    async def perform(self, step: Leaf, progress: Progress, *, resumed: bool) -> Came:
        """Do a step that has started.

        Args:
            step: Which.
            progress: How far its workflow is; the step is under way.
            resumed: Whether it may have been begun by a process that is no more.
        """
        there = progress.steps[step.name]
        try:
            given = asks_of(step, progress)
        except EvoClawError as problem:
            return StepFailed(step.name, there.attempt, str(problem))
        label = progress.label_of(used(sources_of(step)))
        match step:
            case AgentStep():
                came = await self._agent(step, progress, given, label)
            case ToolStep():
                came = await self._tool(step, progress, given, label, resumed)
            case WorkflowStep():
                came = await self._workflow(step, progress, given, label)
        return _bounded(came)

    async def cancel(self, step: Leaf, progress: Progress, reason: str) -> None:
        """Have whoever does a step stop."""
        there, tenant = progress.steps[step.name], progress.plan.who.tenant
        match step:
            case AgentStep():
                await self._agents.cancel(tenant, there.run_ids[-1])
            case ToolStep():
                await self._tools.cancel(tenant, _request_id(step, progress))
            case WorkflowStep():
                await self._children.stop(tenant, there.workflow_id, reason)

    async def _agent(
        self, step: AgentStep, progress: Progress, given: dict[str, JSON], label: Label
    ) -> Came:
        there, who = progress.steps[step.name], progress.plan.who
        run_id = there.run_ids[-1]
        call = AgentCall(
            run_id=run_id,
            agent=step.agent,
            message=_message(as_text(given["message"]), given["inputs"]),
            iterative=step.iterative,
            title=f"{progress.plan.workflow.name}: {step.name}",
            label=label,
        )
        try:
            waiting = await self._agents.begin(who, call)
        except EvoClawError as problem:
            return self._failed(step, there, str(problem), safe=True)
        if waiting is not None:
            return waiting
        try:
            ended = await self._in_time(step, there, self._agents.result(who.tenant, run_id))
        except OutOfTime as late:
            await self._agents.cancel(who.tenant, run_id)
            return self._failed(step, there, str(late), safe=False)
        except EvoClawError as problem:
            return self._failed(step, there, str(problem), safe=False)
        if isinstance(ended, Waiting):
            return ended
        if not ended.ok:
            error = ended.reason or "the agent did not complete it"
            return self._failed(step, there, error, safe=ended.harmless)
        output = {**ended.output, "text": ended.output.get("text", ended.text)}
        return StepFinished(step.name, there.attempt, output, ended.label | label)

    async def _tool(
        self,
        step: ToolStep,
        progress: Progress,
        given: dict[str, JSON],
        label: Label,
        resumed: bool,
    ) -> Came:
        there, who = progress.steps[step.name], progress.plan.who
        nature = self._tools.nature(who, step.tool)
        if resumed and not (nature.harmless or nature.remembered):
            reason = f"the process ended while {step.tool!r} ran; it may have been done, or not"
            return StepUnknown(step.name, there.attempt, reason)
        asked = ToolAsked(
            request_id=_request_id(step, progress),
            tool=step.tool,
            arguments=given,
            timeout_s=step.timeout_s,
            resumed=resumed,
            label=label,
        )
        try:
            result = await self._in_time(step, there, self._tools.execute(who, asked))
        except OutOfTime as late:
            await self._tools.cancel(who.tenant, asked.request_id)
            if nature.harmless:
                return self._failed(step, there, str(late), safe=True)
            return StepUnknown(step.name, there.attempt, f"{late}; it may have been done, or not")
        except EvoClawError as problem:
            return self._failed(step, there, str(problem), safe=nature.harmless)
        if isinstance(result, Waiting):
            return result
        if result.error is ErrorKind.UNKNOWN and not nature.harmless:
            return StepUnknown(step.name, there.attempt, result.text)
        if result.error is not None:
            safe = nature.harmless or result.error in NOTHING_RAN
            error = f"{result.error}: {result.text}"
            return self._failed(step, there, error, safe=safe, output=_output(result))
        return StepFinished(step.name, there.attempt, _output(result), label_of(result) | label)

    async def _workflow(
        self, step: WorkflowStep, progress: Progress, given: dict[str, JSON], label: Label
    ) -> Came:
        there, tenant = progress.steps[step.name], progress.plan.who.tenant
        try:
            looked = self._children.look_after(progress, step, given, label)
            return await self._in_time(step, there, looked)
        except OutOfTime as late:
            await self._children.stop(tenant, there.workflow_id, str(late))
            return StepFailed(step.name, there.attempt, str(late))
        except EvoClawError as problem:
            return StepFailed(step.name, there.attempt, str(problem))

    async def _in_time(self, step: Leaf, there: StepProgress, work: Awaitable[T]) -> T:
        """Await something within what is left of a step's time; `OutOfTime` if that is over."""
        left = None
        if step.timeout_s is not None:
            left = max(0.0, there.started_at + step.timeout_s - self._clock())
        limit = asyncio.timeout(left)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise OutOfTime(f"it took longer than {step.timeout_s:g} s") from None

    def _failed(
        self,
        step: AgentStep | ToolStep,
        there: StepProgress,
        error: str,
        *,
        safe: bool,
        output: JSON = None,
    ) -> StepFailed:
        again = again_at(step.retry, there.attempt, self._clock()) if safe else None
        return StepFailed(step.name, there.attempt, error, output, again)


class OutOfTime(EvoClawError):
    """A step took longer than it may."""


def again_at(retry: Retry, attempt: int, now: float) -> float | None:
    """When a step that failed is tried again; None if it is not."""
    return None if attempt >= retry.attempts else now + retry.pause(attempt)


def _request_id(step: ToolStep, progress: Progress) -> str:
    return f"{progress.workflow_id}-{step.name}.1.0.{progress.steps[step.name].attempt}"


def _message(message: str, inputs: dict[str, JSON]) -> str:
    if not inputs:
        return message
    given = msgspec.json.encode(inputs).decode()
    return f"{message}\n\n{given}" if message else given


def _output(result: ToolResult) -> JSON:
    """A result as an object; what is JSON itself can be referred into."""
    output: dict[str, JSON] = {"text": result.text, "details": result.details}
    with suppress(msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        output["data"] = msgspec.json.decode(result.text)
    return output


def _bounded(came: Came) -> Came:
    """Refuse an output that is too large to be kept with the workflow."""
    if isinstance(came, StepFinished | StepFailed) and (problem := _too_much(came.output)):
        error = came.error if isinstance(came, StepFailed) else problem
        return StepFailed(came.step, came.attempt, error, label=came.label)
    return came


def _too_much(output: JSON) -> str:
    if not _is_flat(output):
        return f"its output is nested more than {MAX_DEPTH} deep"
    if len(msgspec.json.encode(output)) > MAX_OUTPUT:
        return f"its output has more than {MAX_OUTPUT} bytes; have it write a file instead"
    return ""


def _is_flat(value: JSON) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[JSON] = []
        for one in level:
            if is_object(one):
                inner += one.values()
            elif is_array(one):
                inner += one
        if not inner:
            return True
        level = inner
    return False
