"""Restricts the offered tools to those that the active skills allow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evoclaw.core.messages import Message, ToolResult
from evoclaw.core.pipeline import Execution, OfferStep, ResultStep
from evoclaw.core.tools import Tool
from evoclaw.skills.disclosure import SKILL_TOOL, SkillSource, restrict_tools
from evoclaw.skills.loading import Skill


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
