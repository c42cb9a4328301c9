"""Asking an agent: one shot as before tools existed, or the whole loop. The answer is an object."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, json, structs

from evoclaw.core.agent import ITERATIVE, Agent, LoopSettings
from evoclaw.core.errors import AgentNotFound
from evoclaw.core.messages import JSON, Message, SystemMessage, user
from evoclaw.core.ports import Ports
from evoclaw.core.result import RunResult
from evoclaw.core.run import run
from evoclaw.executors.wrapped import Filtered


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


class Invoker:
    """The agents there are, and what their runs are given."""

    def __init__(self, agents: Mapping[str, Agent], ports: Ports) -> None:
        self._agents = agents
        self._ports = ports

    def has_tools(self, name: str) -> bool:
        """Whether an agent may use any tool at all."""
        return bool(self._narrowed(self._agent(name)).executor.tools())

    async def invoke(self, name: str, inputs: dict[str, JSON]) -> InvokeResponse:
        """Ask once, without tools."""
        agent = self._agent(name)
        without = Ports(
            self._ports.provider, Filtered(self._ports.executor, frozenset()), self._ports.policy
        )
        result = await run(_messages(agent, inputs), without, agent.settings)
        return InvokeResponse(name, result.output, _tokens(result), self._ports.provider.model)

    async def invoke_iterative(
        self, name: str, inputs: dict[str, JSON], settings: LoopSettings = ITERATIVE
    ) -> IterativeResponse:
        """Ask with the tools the agent may use, and double confirmation unless told otherwise."""
        agent = self._agent(name)
        held = structs.replace(settings, output_fields=agent.settings.output_fields)
        result = await run(_messages(agent, inputs), self._narrowed(agent), held)
        return IterativeResponse(
            name,
            result.output,
            result.text,
            _tokens(result),
            self._ports.provider.model,
            result.turns,
            result.calls,
            result.tools_used,
            result.stop,
            result.run_id,
        )

    def _agent(self, name: str) -> Agent:
        agent = self._agents.get(name)
        if agent is None:
            raise AgentNotFound(name, tuple(self._agents))
        return agent

    def _narrowed(self, agent: Agent) -> Ports:
        """Offer only what the agent's capabilities hold."""
        executor = Filtered(self._ports.executor, agent.capabilities)
        return Ports(self._ports.provider, executor, self._ports.policy, self._ports.approver)


def _messages(agent: Agent, inputs: dict[str, JSON]) -> tuple[Message, ...]:
    asked = user(json.encode(inputs).decode())
    return (SystemMessage(agent.prompt), asked) if agent.prompt else (asked,)


def _tokens(result: RunResult) -> int:
    return result.usage.input + result.usage.output
