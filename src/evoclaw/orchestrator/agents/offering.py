"""Which tools an agent is offered, and how long they may take when nobody says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.core.pipeline import OfferStep
from evoclaw.core.tools import Tool
from evoclaw.skills.disclosure import narrow
from evoclaw.skills.loading import Skill

WAITING_PERMISSIONS = frozenset({"interact", "session"})
"""Permissions of tools that wait for people and for other runs: their time is their own."""


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
        """The intersection."""
        return narrow(tools, self.active)


class DefaultTimeout(OfferStep):
    """Gives tools the configured default timeout, never above their maximum."""

    def __init__(self, seconds: float) -> None:
        if seconds <= 0:
            raise ConfigError("the time that calls may take must be above 0 seconds")
        self._seconds = seconds

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """All but those that wait for people and for other runs."""
        return [
            tool
            if tool.permissions & WAITING_PERMISSIONS
            else replace(tool, timeout=min(self._seconds, tool.max_timeout))
            for tool in tools
        ]
