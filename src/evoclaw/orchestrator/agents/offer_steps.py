"""Steps that limit the tools offered to an agent, and set their default timeout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from evoclaw.core.agent import Agent
from evoclaw.core.errors import ConfigError
from evoclaw.core.pipeline import OfferStep
from evoclaw.core.tools import Tool
from evoclaw.providers.registry import LOCAL_MODEL
from evoclaw.skills.disclosure import restrict_tools
from evoclaw.skills.loading import Skill

WAITING_PERMISSIONS = frozenset({"interact", "session"})
"""Permissions of tools that wait for people or other runs, and keep their own timeout."""
SMALL_MODEL_TOOLS = ("read",)
"""The default tools of the small embedded model: more than one confuses it."""


def tools_for_model(model: str, tools: Sequence[str] | None) -> Sequence[str] | None:
    """The tools that the caller asked for, or those a small model can handle; None is all."""
    small = model.partition("/")[0] == LOCAL_MODEL
    return SMALL_MODEL_TOOLS if tools is None and small else tools


def fit_to_model(agent: Agent, default_model: str) -> Agent:
    """The agent, with fewer tools if its model is small: many tools confuse a small model."""
    tools = tools_for_model(agent.model or default_model, None)
    if tools is None or agent.tools is not None:
        return agent
    return replace(agent, tools=frozenset(tools))


@dataclass(frozen=True, slots=True)
class AgentTools(OfferStep):
    """Offers only the tools that the agent's definition names."""

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


class DefaultTimeout(OfferStep):
    """Gives tools the configured default timeout, never above their maximum."""

    def __init__(self, seconds: float) -> None:
        if seconds <= 0:
            raise ConfigError(
                f"the default timeout of calls must be above 0 seconds, not {seconds:g}"
            )
        self._seconds = seconds

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Set the timeout of all tools but those that wait for people or other runs."""
        return [
            tool
            if tool.permissions & WAITING_PERMISSIONS
            else replace(tool, timeout=min(self._seconds, tool.max_timeout))
            for tool in tools
        ]
