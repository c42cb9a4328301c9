"""Nested calls: of an edge's own model, while the orchestrator waits for the edge's answer.

They have no authority of their own: they are accepted only from the edge that was asked, only while
its prompt is open, and belong to the run that sent it.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TypeAlias

from evoclaw.core.agent import LoopSettings
from evoclaw.core.calls import Turn, judge, perform
from evoclaw.core.chain import Chain
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.events import Event
from evoclaw.core.messages import JSON, ErrorKind, ToolResult
from evoclaw.core.pipeline import Pipeline, kind_of
from evoclaw.core.ports import Ask, Deny, Ports
from evoclaw.core.tools import Call, Tool, failure
from evoclaw.core.toolset import NO_TOOLS
from evoclaw.core.wording import crashed, denied
from evoclaw.governance.budget.policy import RunBudget
from evoclaw.governance.rate_limits import RateLimits
from evoclaw.transport.outcomes import to_payload
from evoclaw.transport.requests import Requests
from evoclaw.transport.wire import Command, NestedCall, NestedResult, Report, as_payload, convert

MAX_NESTED_CALLS = 50
"""Calls of one prompt."""
MAX_RESULT_CHARS = 30_000
"""Characters of a result's text: it travels to the edge in one message."""
MAX_BLOCKS_CHARS = 60_000
"""Characters of pictures and other blocks beside the text of a result."""
RunNestedCall: TypeAlias = Callable[[NestedCall], Awaitable[ToolResult]]


@dataclass
class OpenPrompt:
    """A prompt that an edge is answering, and the calls of its model so far."""

    agent_id: str
    run: RunNestedCall
    calls: dict[int, asyncio.Task[ToolResult]] = field(
        default_factory=dict[int, "asyncio.Task[ToolResult]"]
    )
    sending: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    @property
    def results(self) -> list[ToolResult]:
        """The results of the calls that have ended, in order."""
        ended = [task for _, task in sorted(self.calls.items()) if task.done()]
        return [task.result() for task in ended if not task.cancelled()]


class NestedCallReceiver:
    """Receives the calls of edges, and sends their results."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._open: dict[str, OpenPrompt] = {}
        self.counts: Counter[str] = Counter()
        """Calls that were dropped, by reason."""

    @property
    def open_prompts(self) -> frozenset[str]:
        """The request ids of the prompts whose calls are accepted now."""
        return frozenset(self._open)

    @asynccontextmanager
    async def accepting(
        self, agent_id: str, prompt_id: str, run: RunNestedCall
    ) -> AsyncGenerator[OpenPrompt]:
        """Accept calls of an edge while the block runs; then all of them have ended."""
        prompt = self._open[prompt_id] = OpenPrompt(agent_id, run)
        try:
            yield prompt
        finally:
            del self._open[prompt_id]
            tasks = [*prompt.calls.values(), *prompt.sending]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    def received(self, report: Report) -> None:
        """Run a call, or send its result again; `WireError` if it cannot be read."""
        asked = convert(report.payload, NestedCall)
        prompt = self._open.get(asked.prompt_id)
        if prompt is None or prompt.agent_id != report.agent_id:
            # Another orchestrator may drive the run; an ended prompt has no authority left.
            self.counts["no open prompt"] += 1
            return
        running = prompt.calls.get(asked.number)
        if (running is not None and not running.done()) or len(prompt.sending) >= MAX_NESTED_CALLS:
            self.counts["repeated"] += 1
            return
        if running is None and 1 <= asked.number <= MAX_NESTED_CALLS:
            running = prompt.calls[asked.number] = asyncio.create_task(self._run(prompt, asked))
        sending = asyncio.create_task(self._send(prompt, asked, running))
        prompt.sending.add(sending)
        sending.add_done_callback(prompt.sending.discard)

    async def _run(self, prompt: OpenPrompt, asked: NestedCall) -> ToolResult:
        try:
            return await prompt.run(asked)
        except ToolFailure as problem:
            return _failed(asked, problem.kind, problem.message, **problem.details)
        except EvoClawError as problem:
            return _failed(asked, ErrorKind.INTERNAL, crashed(asked.tool, problem))

    async def _send(
        self, prompt: OpenPrompt, asked: NestedCall, call: asyncio.Task[ToolResult] | None
    ) -> None:
        if call is None:
            text = f"Error: One question may make {MAX_NESTED_CALLS} calls at most. Answer now."
            result = _failed(asked, ErrorKind.PERMISSION_DENIED, text)
        else:
            result = await asyncio.shield(call)
        with suppress(ToolFailure):  # the edge repeats the call, and gets the result then
            await self._requests.query(prompt.agent_id, _command(asked, _short_payload(result)))


def _failed(asked: NestedCall, kind: ErrorKind, text: str, **details: JSON) -> ToolResult:
    return failure(f"{asked.prompt_id}#{asked.number}", asked.tool, kind, text, **details)


class ParentRun:
    """The run that a prompt belongs to: its rules and its budget apply to nested calls."""

    def __init__(self, ports: Ports, budget: RunBudget) -> None:
        pipeline = Pipeline.of(ports.executor)
        # The pipeline has the route to the tool that holds this object.
        self._pipeline = weakref.ref(pipeline)
        self._provider, self._budget = ports.provider, budget

    def tools(self) -> Sequence[Tool]:
        """The tools of the run; none once it has ended."""
        pipeline = self._pipeline()
        return () if pipeline is None else pipeline.tools()

    async def run(self, call: Call, judged: Iterable[Call]) -> ToolResult:
        """Judge and run a call; a person cannot be asked meanwhile.

        Args:
            call: The call.
            judged: The calls on edges that it stands for, or the call itself.
        """
        pipeline = self._pipeline()
        if pipeline is None:
            raise ToolFailure(ErrorKind.CANCELLED, "Error: The run has ended.")
        ports = Ports(self._provider, pipeline, pipeline.policy)
        settings = LoopSettings(max_result_chars=MAX_RESULT_CHARS)
        turn = Turn(ports, settings, NO_TOOLS, Deadline())
        # The first one counts for its tool and for those that it forwards to.
        without_rates = [step for step in pipeline.before if kind_of(step) is not RateLimits]
        rest = Ports(self._provider, pipeline, Chain(tuple(without_rates)))
        uncounted = Turn(rest, settings, NO_TOOLS, Deadline())
        for number, inner in enumerate(judged):
            verdict = await judge(inner, turn if number == 0 else uncounted)
            if isinstance(verdict, Deny | Ask):
                reason = verdict.reason if isinstance(verdict, Deny) else _unasked(verdict)
                return call.failed(ErrorKind.PERMISSION_DENIED, denied(inner, reason))
        self._budget.start_call(call.id)
        result = call.failed(ErrorKind.CANCELLED, "Error: The call was cancelled.")
        try:
            result = await perform(call, turn, _ignore)
        finally:
            self._budget.settle_call(result)
        return result


def _unasked(verdict: Ask) -> str:
    return (
        f"{verdict.reason}. It needs a person's approval, which a call of an edge's model cannot "
        "wait for. Answer without it, and say what you would have done."
    )


def _ignore(_: Event) -> None:
    """Ignore the output of a nested call while it runs: only its result is sent to the edge."""


def _command(asked: NestedCall, outcome: dict[str, JSON]) -> Command:
    payload = as_payload(NestedResult(asked.prompt_id, asked.number, outcome))
    return Command("nested_result", payload, f"nested-{token_hex(8)}")


def _short_payload(result: ToolResult) -> dict[str, JSON]:
    """The result for the model of an edge, which needs its text and not its details."""
    payload = to_payload(result, "", 0)
    payload.pop("details", None)
    if len(str(payload.get("blocks", ""))) > MAX_BLOCKS_CHARS:
        del payload["blocks"]
    return payload
