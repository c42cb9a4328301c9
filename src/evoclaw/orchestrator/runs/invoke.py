"""Asking an agent: one shot as before tools existed, or the whole loop. The answer is an object."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct, json, structs

from evoclaw.core.agent import ITERATIVE, Agent, LoopSettings
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
from evoclaw.core.messages import JSON, Message, SystemMessage, user
from evoclaw.core.metrics import RunMeter
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Ports
from evoclaw.core.result import RunResult, result_of
from evoclaw.core.run import run
from evoclaw.governance.permissions import PermittedTools
from evoclaw.orchestrator.agents.definitions import iterative, require_inputs
from evoclaw.orchestrator.errands import Errand, RunView


class InvokeResponse(Struct, frozen=True):
    """What a single shot gives back."""

    agent: str
    output: dict[str, JSON]
    tokens_used: int
    model: str


class IterativeResponse(Struct, frozen=True):
    """What the loop gives back."""

    agent: str
    output: dict[str, JSON]
    raw_response: str
    tokens_used: int
    model: str
    iterations: int
    tool_calls_made: int
    tools_used: tuple[str, ...]
    termination_reason: str
    run_id: str


class NoAnswer(EvoClawError):
    """A run ended, or waits, without the answer that was asked for."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(result.text)
        self.result = result


class Invoker:
    """The agents there are, and what their runs are given: for use as a library.

    Nothing is kept. `Invocations` asks the same of runs that outlive the process.
    """

    def __init__(self, agents: Mapping[str, Agent], ports: Ports) -> None:
        self._agents = agents
        self._ports = ports

    def has_tools(self, name: str) -> bool:
        """Whether an agent may use any tool at all."""
        return bool(self._narrowed(self._agent(name)).executor.tools())

    async def invoke(self, name: str, inputs: dict[str, JSON]) -> InvokeResponse:
        """Ask once, without tools."""
        agent = self._agent(name)
        without = Ports(self._ports.provider, Pipeline([]), self._ports.policy)
        result = await run(_messages(agent, inputs), without, agent.settings)
        return InvokeResponse(name, result.output, _tokens(result), self._ports.provider.model)

    async def invoke_iterative(
        self, name: str, inputs: dict[str, JSON], settings: LoopSettings = ITERATIVE
    ) -> IterativeResponse:
        """Ask with the tools the agent may use, and double confirmation unless told otherwise."""
        agent = self._agent(name)
        held = structs.replace(settings, output_fields=agent.settings.output_fields)
        result = await run(_messages(agent, inputs), self._narrowed(agent), held)
        return _iterative_response(name, self._ports.provider.model, result)

    def _agent(self, name: str) -> Agent:
        agent = self._agents.get(name)
        if agent is None:
            raise AgentNotFound(name, tuple(self._agents))
        return agent

    def _narrowed(self, agent: Agent) -> Ports:
        """Offer only what the agent's capabilities hold."""
        offered = PermittedTools(agent.capabilities)
        executor = Pipeline([self._ports.executor], [offered])
        return Ports(self._ports.provider, executor, self._ports.policy, self._ports.approver)


class Outcome(Struct, frozen=True):
    """What became of a run: its result, who answered, and why there was no reply, if so."""

    agent: str
    result: RunResult
    model: str
    failed: ReplyFailed | None = None

    def single(self) -> InvokeResponse:
        """The answer of a single shot; `ProviderError` or `NoAnswer` if there is none."""
        self._require_reply()
        if self.result.stop is not StopReason.COMPLETED:
            raise NoAnswer(self.result)
        return InvokeResponse(self.agent, self.result.output, _tokens(self.result), self.model)

    def looped(self) -> IterativeResponse:
        """The answer of the loop, which says how it ended; `ProviderError` without a reply."""
        self._require_reply()
        return _iterative_response(self.agent, self.model, self.result)

    def _require_reply(self) -> None:
        if self.failed is not None and self.result.stop is StopReason.ERROR:
            kinds = {str(kind): kind for kind in ProviderErrorKind}
            kind = kinds.get(self.failed.kind, ProviderErrorKind.UNKNOWN)
            raise ProviderError(kind, self.failed.reason)


class Begins(Protocol):
    """Begins runs that are kept; `Runs` does."""

    async def start(
        self, who: Principal, errand: Errand, *, key: str = "", run_id: str = ""
    ) -> tuple[RunView, bool]:
        """Begin one, or give the one that the key began; kept when this returns."""
        ...

    def whole(self, tenant: str, run_id: str) -> AsyncGenerator[Record, None]:
        """All its records, until it ended or waits."""
        ...


class Invocations:
    """Asks agents by runs that are kept: what was begun is answered, also after a restart."""

    def __init__(self, runs: Begins, agents: Mapping[str, Agent]) -> None:
        self._runs, self._agents = runs, agents

    def agent(self, name: str) -> Agent:
        """One of the agents."""
        found = self._agents.get(name)
        if found is None:
            raise AgentNotFound(name, tuple(self._agents))
        return found

    async def begin(
        self,
        who: Principal,
        name: str,
        inputs: dict[str, JSON],
        *,
        single: bool = False,
        settings: Mapping[str, Any] | None = None,
        model: str = "",
        key: str = "",
    ) -> RunView:
        """Begin to ask; `BadInputs` if the agent cannot be asked so.

        Args:
            who: On whose behalf.
            name: Of the agent.
            inputs: What it is asked with.
            single: One reply without tools; else the loop, with double confirmation.
            settings: Limits that differ from the agent's, by the names of `LoopSettings`.
            model: Another one than the agent's.
            key: The same again gives the run that was begun with it.
        """
        agent = self.agent(name)
        require_inputs(agent, inputs)
        usual = agent.settings if single else iterative(agent)
        errand = Errand(
            message=json.encode(inputs).decode(),
            agent=name,
            title=f"invoke {name}",
            settings=structs.replace(usual, **(settings or {})),
            model=model,
            single=single,
        )
        view, _ = await self._runs.start(who, errand, key=key)
        return view

    async def outcome(self, tenant: str, view: RunView) -> Outcome:
        """Wait until a run ended, or waits for a person."""
        reading = Reading(view.agent)
        async with aclosing(self.watch(tenant, view)) as records:
            async for record in records:
                reading.see(record)
        return reading.outcome()

    def watch(self, tenant: str, view: RunView) -> AsyncGenerator[Record, None]:
        """The records of a run, all of them, until it ended or waits for a person."""
        return self._runs.whole(tenant, view.run_id)

    def of(self, who: Principal) -> InvokedFor:
        """The same for one principal: what workflows ask."""
        return InvokedFor(self, who)


@dataclass(frozen=True, slots=True)
class InvokedFor:
    """Agents, asked on behalf of one principal."""

    invocations: Invocations
    who: Principal

    def has_tools(self, name: str) -> bool:
        """Whether an agent may use any tool at all; if there is none, the loop is one reply."""
        return bool(self.invocations.agent(name).capabilities)

    async def invoke(self, name: str, inputs: dict[str, JSON]) -> InvokeResponse:
        """Ask once, without tools."""
        view = await self.invocations.begin(self.who, name, inputs, single=True)
        return (await self.invocations.outcome(self.who.tenant, view)).single()

    async def invoke_iterative(self, name: str, inputs: dict[str, JSON]) -> IterativeResponse:
        """Ask in the loop."""
        view = await self.invocations.begin(self.who, name, inputs)
        return (await self.invocations.outcome(self.who.tenant, view)).looped()


class Reading:
    """What became of a run, from its records."""

    def __init__(self, agent: str) -> None:
        self._agent, self._meter = agent, RunMeter()
        self._model = self._run_id = ""
        self._end: RunFinished | None = None
        self._failed: ReplyFailed | None = None

    def see(self, record: Record) -> None:
        """Take one record in."""
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

    def outcome(self) -> Outcome:
        """What it was, when the records are over."""
        if self._end is None:
            raise RuntimeError("the records of a run end with RunFinished")
        result = result_of(self._run_id, self._end, self._meter.metrics())
        return Outcome(self._agent, result, self._model, self._failed)


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


def _messages(agent: Agent, inputs: dict[str, JSON]) -> tuple[Message, ...]:
    asked = user(json.encode(inputs).decode())
    return (SystemMessage(agent.prompt), asked) if agent.prompt else (asked,)


def _tokens(result: RunResult) -> int:
    return result.usage.input + result.usage.output
