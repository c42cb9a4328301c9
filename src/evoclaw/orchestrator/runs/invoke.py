"""Invokes an agent with inputs: one reply without tools, or the loop; returns an object."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from msgspec import Struct, json, structs

from evoclaw.core.agent import Agent
from evoclaw.core.errors import AgentNotFound, EvoClawError, ProviderError, ProviderErrorKind
from evoclaw.core.events import (
    Record,
    ReplyFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
    TurnStarted,
)
from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON
from evoclaw.core.metrics import RunMeter
from evoclaw.core.run import RunResult, result_of
from evoclaw.orchestrator.agents.definitions import iterative_settings, require_inputs
from evoclaw.orchestrator.runs.requests import RunRequest, RunView
from evoclaw.orchestrator.runs.runs import Runs


class InvokeResponse(Struct, frozen=True):
    """The answer of one reply without tools."""

    agent: str
    """The name of the agent."""
    output: dict[str, JSON]
    """The fields of the answer."""
    tokens_used: int
    """Input and output tokens together."""
    model: str
    """The model that answered."""


class IterativeResponse(Struct, frozen=True):
    """The answer of the loop."""

    agent: str
    """The name of the agent."""
    output: dict[str, JSON]
    """The fields of the answer."""
    raw_response: str
    """The text of the last reply."""
    tokens_used: int
    """Input and output tokens together."""
    model: str
    """The model that answered."""
    iterations: int
    """How many turns the run took."""
    tool_calls_made: int
    """How many calls the run made."""
    tools_used: tuple[str, ...]
    """The names of the tools that it called."""
    termination_reason: str
    """How the run ended."""
    run_id: str
    """The id of the run."""


class NoAnswer(EvoClawError):
    """A run ended, or waits, without an answer."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(result.text)
        self.result = result


class InvocationOutcome(Struct, frozen=True):
    """How a run ended: its result, the model, and why there was no reply, if so."""

    agent: str
    result: RunResult
    model: str
    failed: ReplyFailed | None = None

    def single_response(self) -> InvokeResponse:
        """The answer of one reply; raises `ProviderError` or `NoAnswer` if there is none."""
        self._require_reply()
        if self.result.stop is not StopReason.COMPLETED:
            raise NoAnswer(self.result)
        return InvokeResponse(self.agent, self.result.output, _tokens(self.result), self.model)

    def iterative_response(self) -> IterativeResponse:
        """The answer of the loop, with its stop reason; raises `ProviderError` without a reply."""
        self._require_reply()
        return _iterative_response(self.agent, self.model, self.result)

    def _require_reply(self) -> None:
        if self.failed is not None and self.result.stop is StopReason.ERROR:
            kinds = {str(kind): kind for kind in ProviderErrorKind}
            kind = kinds.get(self.failed.kind, ProviderErrorKind.UNKNOWN)
            raise ProviderError(kind, self.failed.reason)


class Invocations:
    """Invokes agents by stored runs: a started run is answered, also after a restart."""

    def __init__(self, runs: Runs, agents: Mapping[str, Agent]) -> None:
        self._runs, self._agents = runs, agents

    def agent(self, name: str) -> Agent:
        """The agent of that name; `AgentNotFound` if there is none."""
        found = self._agents.get(name)
        if found is None:
            raise AgentNotFound(name, tuple(self._agents))
        return found

    async def start(
        self,
        principal: Principal,
        name: str,
        inputs: dict[str, JSON],
        *,
        single: bool = False,
        settings: Mapping[str, Any] | None = None,
        model: str = "",
        key: str = "",
    ) -> RunView:
        """Start a run; raises if the inputs do not fit the agent.

        Args:
            principal: On whose behalf.
            name: The agent.
            inputs: The inputs of the agent.
            single: One reply without tools; else the loop, with double confirmation.
            settings: Limits that differ from the agent's, by the names of `LoopSettings`.
            model: A model that replaces the agent's.
            key: An idempotency key: the same key returns the run that it started.
        """
        agent = self.agent(name)
        require_inputs(agent, inputs)
        defaults = agent.settings if single else iterative_settings(agent)
        request = RunRequest(
            message=json.encode(inputs).decode(),
            agent=name,
            title=f"invoke {name}",
            settings=structs.replace(defaults, **(settings or {})),
            model=model,
            single=single,
        )
        view, _ = await self._runs.start(principal, request, key=key)
        return view

    async def outcome(self, tenant: str, view: RunView) -> InvocationOutcome:
        """Wait until a run ends, or waits for a person."""
        reader = OutcomeReader(view.agent)
        async with aclosing(self.watch(tenant, view)) as records:
            async for record in records:
                reader.receive(record)
        return reader.outcome()

    def watch(self, tenant: str, view: RunView) -> AsyncGenerator[Record, None]:
        """All records of a run, until it ends or waits for a person."""
        return self._runs.records(tenant, view.run_id)


class OutcomeReader:
    """Builds the outcome of a run from its records."""

    def __init__(self, agent: str) -> None:
        self._agent, self._meter = agent, RunMeter()
        self._model = self._run_id = ""
        self._end: RunFinished | None = None
        self._failed: ReplyFailed | None = None

    def receive(self, record: Record) -> None:
        """Read one record."""
        self._meter.receive(record)
        self._run_id = record.run_id
        match record.event:
            case RunStarted(model=model) | RunResumed(model=model):
                self._model = model
            case TurnStarted():
                self._failed = None
            case ReplyFailed():
                self._failed = record.event
            case RunFinished():
                self._end = record.event
            case _:
                pass

    def outcome(self) -> InvocationOutcome:
        """The outcome, after the last record."""
        if self._end is None:
            raise RuntimeError("the records of a run end with RunFinished")
        result = result_of(self._run_id, self._end, self._meter.metrics())
        return InvocationOutcome(self._agent, result, self._model, self._failed)


def _iterative_response(agent: str, model: str, result: RunResult) -> IterativeResponse:
    return IterativeResponse(
        agent,
        result.output,
        result.text,
        _tokens(result),
        model,
        result.turns,
        result.calls,
        result.tools_used,
        result.stop,
        result.run_id,
    )


def _tokens(result: RunResult) -> int:
    return result.usage.input + result.usage.output
