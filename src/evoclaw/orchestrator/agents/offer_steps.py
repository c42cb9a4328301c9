"""Steps that limit the tools offered to an agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from evoclaw.core.agent import Agent
from evoclaw.core.pipeline import OfferStep
from evoclaw.core.tools import Tool
from evoclaw.providers.models.local import takes_one_tool
from evoclaw.skills.disclosure import restrict_tools
from evoclaw.skills.loading import Skill

IMAGE_TOOL = "image"
"""The tool that shows an image to the model."""
SMALL_MODEL_TOOLS = ("read",)
"""The default tools of the smallest model: more than one confuses it."""


def tools_for_model(model: str, tools: Sequence[str] | None) -> Sequence[str] | None:
    """The tools that the caller asked for, or those that a model can handle; None is all.

    Args:
        model: The name that its provider gives it.
        tools: What the caller asked for; None for the default.
    """
    return SMALL_MODEL_TOOLS if tools is None and takes_one_tool(model) else tools


def fit_to_model(agent: Agent, model: str) -> Agent:
    """The agent, with fewer tools if its model is small: many tools confuse a small model."""
    tools = tools_for_model(model, None)
    if tools is None or agent.tools is not None:
        return agent
    return replace(agent, tools=frozenset(tools))


@dataclass(frozen=True, slots=True)
class AgentTools(OfferStep):
    """Offers only the tools that the agent's definition, or `--tools`, names."""

    names: frozenset[str]

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """By name or alias."""
        names = self.names
        return [tool for tool in tools if tool.name in names or not names.isdisjoint(tool.aliases)]


@dataclass(frozen=True, slots=True)
class AgentSkills(OfferStep):
    """Offers only the tools that all skills of the agent's definition work with."""

    active: tuple[Skill, ...]

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """The tools that all active skills allow."""
        return restrict_tools(tools, self.active)


class WithoutImageTool(OfferStep):
    """Leaves out the tool `image`, as the model of the run cannot see images."""

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """All other tools."""
        return [tool for tool in tools if tool.name != IMAGE_TOOL]
