"""The command `prompt`: a question answered by the device's own model and tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ToolFailure
from evoclaw.core.events import CallFinished, CallStarted, Record, RunFinished, StopReason
from evoclaw.core.genome import Genome, with_notes
from evoclaw.core.hidden_text import mark_hidden_text
from evoclaw.core.messages import (
    JSON,
    ErrorKind,
    Message,
    SystemMessage,
    TextBlock,
    ToolResult,
    UserMessage,
)
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Ports, Progress
from evoclaw.core.reported_usage import report_usage
from evoclaw.core.routes import Place, Route
from evoclaw.core.state import RunState
from evoclaw.core.tools import failure
from evoclaw.core.tuned_runs import tightened
from evoclaw.edge.fitness import Outcomes
from evoclaw.edge.genome import EDGE_SETTINGS
from evoclaw.edge.nested_calls import PendingNestedCalls
from evoclaw.edge.plans import CallPlan, GrantCheck, no_grants
from evoclaw.edge.tuned_prompts import PromptModel, tuned_prompt
from evoclaw.transport.wire import Command


class RunOutcomeSink:
    """A sink that records the calls and the end of a prompt's run in the device's outcomes."""

    def __init__(self, outcomes: Outcomes, tool_error_limit: int) -> None:
        self._outcomes, self._limit = outcomes, tool_error_limit
        self._state = RunState("")
        self._began: dict[str, float] = {}

    def receive(self, record: Record) -> None:
        """Handle a record."""
        event = record.event
        self._state.apply(event)
        if isinstance(event, CallStarted):
            self._began[event.call_id] = record.at
        elif isinstance(event, CallFinished):
            self._note_call(event, record.at)
        elif isinstance(event, RunFinished):
            by_tools = event.stop is StopReason.ERROR and self._state.failed_turns >= self._limit
            self._outcomes.record_run(event.stop, by_tools=by_tools)

    def _note_call(self, event: CallFinished, at: float) -> None:
        result = event.result
        started = self._began.pop(result.call_id, None)
        elapsed = None if started is None else max(at - started, 0.0) * 1000
        self._outcomes.record_call(
            result.name, error=result.error, message=result.text, elapsed_ms=elapsed
        )


DEFAULT_PROMPT_TIMEOUT_S = 60.0
"""For a prompt without a timeout."""
_WORDS = ("prompt", "query", "message", "text", "content")
_STOPS = {
    StopReason.CANCELLED: ErrorKind.CANCELLED,
    StopReason.DURATION_EXCEEDED: ErrorKind.TIMEOUT,
    StopReason.ERROR: ErrorKind.EXECUTION_FAILED,
}


class PromptPlans:
    """Plans for the command `prompt`."""

    def __init__(
        self,
        ports: Ports | None,
        genome: Callable[[], Genome],
        *,
        model: PromptModel | None = None,
        check: GrantCheck = no_grants,
        outcomes: Outcomes | None = None,
        nested: PendingNestedCalls | None = None,
    ) -> None:
        """Without ports the device has no model, and prompts are refused."""
        self._ports, self._genome, self._check = ports, genome, check
        self._model = model or PromptModel()
        self._nested = nested or PendingNestedCalls()
        self._outcomes = outcomes or Outcomes()

    async def plan(self, command: Command) -> CallPlan | ToolResult:
        """Read the question."""
        values = [command.payload.get(key) for key in _WORDS]
        text = next((value for value in values if isinstance(value, str) and value.strip()), None)
        if text is None:
            raise ToolFailure(ErrorKind.INVALID_PARAMS, "Set `prompt` to the text of the prompt.")
        self._check(command)
        if self._ports is None:
            why = "This agent has no model of its own; call its tools instead."
            return failure(command.request_id, "prompt", ErrorKind.NOT_FOUND, why)
        ports, asked = (
            self._with_prompt_tools(self._ports, command),
            command.payload.get("timeout_ms"),
        )
        requested = (
            asked / 1000
            if isinstance(asked, int | float) and asked > 0
            else DEFAULT_PROMPT_TIMEOUT_S
        )
        seconds = min(requested, tightened(EDGE_SETTINGS, self._genome()).max_seconds)

        async def work(deadline: Deadline, progress: Progress) -> ToolResult:
            asked = mark_hidden_text(UserMessage((TextBlock(text, command.label),)))
            return await self._answer(command.request_id, asked, ports, deadline, seconds)

        return CallPlan("prompt", work)

    def _with_prompt_tools(self, ports: Ports, command: Command) -> Ports:
        """The ports of a prompt: its model may also call the tools that the prompt names."""
        pipeline = Pipeline.of(ports.executor)
        tools = self._nested.of(command, pipeline.tools())
        if tools is None:
            return ports
        return replace(ports, executor=pipeline.with_steps(routes=[Route(tools, Place.EDGE)]))

    async def _answer(
        self, request_id: str, asked: UserMessage, ports: Ports, deadline: Deadline, seconds: float
    ) -> ToolResult:
        # Imported here: an edge without a model need not spend the memory.
        from evoclaw.core.run import run

        genome = self._genome()
        settings = replace(tightened(EDGE_SETTINGS, genome), max_seconds=seconds)
        ports, skills = await tuned_prompt(ports, self._model, genome)
        texts = filter(None, (with_notes(genome.prompt, genome.notes), skills))
        instructions = "\n\n".join(texts)
        task: list[Message] = [SystemMessage(instructions)] if instructions else []
        notes = RunOutcomeSink(self._outcomes, settings.tool_error_limit)
        end = asyncio.get_running_loop().call_later(seconds, deadline.expire)
        try:
            answer = await run([*task, asked], ports, settings, sinks=[notes], deadline=deadline)
        finally:
            end.cancel()
        details: dict[str, JSON] = {
            "stop": str(answer.stop), "turns": answer.turns, "calls": answer.calls,
            "genome": genome.digest, **report_usage(answer.usage, answer.cost),
        }  # fmt: skip
        if (kind := _STOPS.get(answer.stop)) is not None:
            return failure(request_id, "prompt", kind, answer.text, **details)
        return ToolResult(request_id, "prompt", (TextBlock(answer.text),), details=details)
