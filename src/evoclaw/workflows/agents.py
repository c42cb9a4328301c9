"""Invokes an agent once, or in the loop if it has tools."""

from __future__ import annotations

from typing import Protocol

from evoclaw.core.messages import JSON


class InvokedAnswer(Protocol):
    """The answer of an agent."""

    @property
    def output(self) -> dict[str, JSON]:
        """The answer as an object."""
        ...


class InvokableAgents(Protocol):
    """The agents that can be invoked; the orchestrator implements it."""

    def has_tools(self, name: str) -> bool:
        """Whether an agent has any tools."""
        ...

    async def invoke(self, name: str, inputs: dict[str, JSON]) -> InvokedAnswer:
        """Request one reply, without tools."""
        ...

    async def invoke_iterative(self, name: str, inputs: dict[str, JSON]) -> InvokedAnswer:
        """Run the agent in the loop, with its tools."""
        ...


async def invoke_agent(
    agents: InvokableAgents, name: str, inputs: dict[str, JSON], *, iterative: bool = True
) -> dict[str, JSON]:
    """Run an agent in the loop if it has tools; otherwise, or on request, ask for one reply."""
    if iterative and agents.has_tools(name):
        return (await agents.invoke_iterative(name, inputs)).output
    return (await agents.invoke(name, inputs)).output
