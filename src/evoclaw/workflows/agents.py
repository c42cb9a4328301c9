"""The step that asks an agent."""

from __future__ import annotations

from typing import Protocol

from evoclaw.core.messages import JSON


class Answer(Protocol):
    """What an agent gives back."""

    @property
    def output(self) -> dict[str, JSON]:
        """The answer as an object."""
        ...


class Agents(Protocol):
    """Who can be asked. The orchestrator is; rooms of one floor do not import each other."""

    def has_tools(self, name: str) -> bool:
        """Whether an agent may use any tool at all."""
        ...

    async def invoke(self, name: str, inputs: dict[str, JSON]) -> Answer:
        """Ask once, without tools."""
        ...

    async def invoke_iterative(self, name: str, inputs: dict[str, JSON]) -> Answer:
        """Ask in the loop."""
        ...


async def invoke_agent(
    agents: Agents, name: str, inputs: dict[str, JSON], *, iterative: bool = True
) -> dict[str, JSON]:
    """Ask an agent in the loop when it has tools; in a single shot otherwise, or when told so."""
    if iterative and agents.has_tools(name):
        return (await agents.invoke_iterative(name, inputs)).output
    return (await agents.invoke(name, inputs)).output
