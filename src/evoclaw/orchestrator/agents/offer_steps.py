"""Steps that limit the tools offered to an agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evoclaw.core.pipeline import OfferStep
from evoclaw.core.tools import Tool
from evoclaw.skills.active import restrict_tools
from evoclaw.skills.loading import Skill

IMAGE_TOOL = "image"
"""The tool that shows an image to the model."""


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
