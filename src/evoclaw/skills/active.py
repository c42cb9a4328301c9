"""The active skills of a run, which limit its tools: the model has read their instructions.

It is imported where skills may be used; `disclosure`, which loads them, only where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from evoclaw.core.messages import Message, ToolResult
from evoclaw.core.pipeline import Execution, OfferStep, ResultStep
from evoclaw.core.tools import Tool

if TYPE_CHECKING:  # an edge without skills need not load them
    from evoclaw.skills.loading import Skill
    from evoclaw.skills.tuned import SkillSource

SKILL_TOOL = "skill"
"""The tool that loads instructions and files; `restrict_tools` keeps it beside other tools."""


def restrict_tools(tools: Iterable[Tool], active: Sequence[Skill]) -> tuple[Tool, ...]:
    """Keep the tools that every active skill allows and none disallows.

    A skill without `allowed-tools` allows all.
    """
    remaining = tuple(tool for tool in tools if disallowing_skill(tool, active) is None)
    limits = [skill for skill in active if skill.allowed_tools is not None]
    for skill in limits:
        own = {program.tool.name.lower() for program in skill.programs}
        permitted = (
            skill.allowed_tools | own | {SKILL_TOOL} if skill.allowed_tools else frozenset[str]()
        )
        remaining = tuple(tool for tool in remaining if _names(tool) & permitted)
    # The tool `skill` alone is of no use.
    return () if limits and {tool.name for tool in remaining} <= {SKILL_TOOL} else remaining


def disallowing_skill(tool: Tool, active: Iterable[Skill]) -> Skill | None:
    """The first of the active skills that disallows a tool."""
    names = _names(tool)
    return next((skill for skill in active if names & skill.disallowed_tools), None)


def _names(tool: Tool) -> set[str]:
    return {name.lower() for name in (tool.name, *tool.aliases)}


class ActiveSkillTools(OfferStep, ResultStep):
    """Offers only the tools that the active skills allow.

    A skill is active once the model has read its instructions.
    """

    def __init__(self, skills: SkillSource, history: Iterable[Message] = ()) -> None:
        """Activate the skills whose instructions are in the history already."""
        self._skills = skills
        self.active: tuple[Skill, ...] = ()
        """The skills whose instructions the model has read."""
        for message in history:
            if (
                isinstance(message, ToolResult)
                and message.name == SKILL_TOOL
                and message.error is None
            ):
                details = message.details
                self._activate("" if details.get("reference") else details.get("skill"))

    def version(self) -> object:
        """A value that changes with the active skills."""
        return self.active

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Keep the tools that all active skills allow."""
        return restrict_tools(tools, self.active) if self.active else tools

    async def finish(self, execution: Execution, result: ToolResult) -> ToolResult:
        """Activate the skill whose instructions this call has loaded."""
        call = execution.call
        if call.name == SKILL_TOOL and result.error is None and not call.arguments.get("reference"):
            self._activate(call.arguments.get("name"))
        return result

    def _activate(self, name: object) -> None:
        skill = self._skills.find(name) if isinstance(name, str) and name else None
        if skill is not None and skill not in self.active:
            self.active = (*self.active, skill)
