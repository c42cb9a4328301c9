"""Skills as prompts of the MCP server: the user of a client chooses one, and adds a task."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mcp import types

from evoclaw.api.mcp.requests import McpRequest
from evoclaw.api.problems import ApiError
from evoclaw.orchestrator.people.access import TokenScope
from evoclaw.orchestrator.sanitizing import one_line
from evoclaw.skills.disclosure import skill_instructions
from evoclaw.skills.loading import Skill
from evoclaw.skills.registry import SkillRegistry

MAX_DESCRIPTION_CHARS = 1_000
TASK_ARGUMENT = "task"


class SkillPrompts:
    """The skills of a registry."""

    def __init__(self, skills: SkillRegistry, *, needs_token: bool = False) -> None:
        """Offer the skills; with `needs_token`, to tokens with the scope `skills:read`."""
        self._skills, self._needs_token = skills, needs_token

    async def prompts(self, request: McpRequest) -> Sequence[types.Prompt]:
        """One prompt for each skill; none for a token that may not read skills."""
        if self._needs_token:
            caller = request.caller
            if caller is None or not caller.may(TokenScope.SKILLS_READ):
                return ()
        found = await asyncio.to_thread(self._skills.skills)
        return [_prompt(skill) for skill in found]

    async def get(
        self, request: McpRequest, name: str, arguments: dict[str, str]
    ) -> types.GetPromptResult:
        """The instructions of a skill, and the task that the user added."""
        if self._needs_token:
            request.require_caller(TokenScope.SKILLS_READ)
        skill = await asyncio.to_thread(self._skills.find, name)
        if skill is None:
            text = f"There is no prompt {one_line(name)!r}. List the prompts to find its name."
            raise ApiError(404, "not_found", text)
        if unknown := [given for given in arguments if given != TASK_ARGUMENT]:
            text = f"Unknown argument {one_line(unknown[0])!r}. The only one is {TASK_ARGUMENT!r}."
            raise ApiError(422, "invalid", text)
        text, task = skill_instructions(skill), arguments.get(TASK_ARGUMENT, "").strip()
        messages = [text, f"Follow these instructions for this task:\n\n{task}"] if task else [text]
        return types.GetPromptResult(
            description=one_line(skill.description, MAX_DESCRIPTION_CHARS),
            messages=[
                types.PromptMessage(role="user", content=types.TextContent(text=message))
                for message in messages
            ],
        )

    async def complete(self, request: McpRequest, prompt: str, name: str) -> Sequence[str]:
        """Nothing: a task is free text."""
        return ()


def _prompt(skill: Skill) -> types.Prompt:
    return types.Prompt(
        name=skill.name,
        description=one_line(skill.description, MAX_DESCRIPTION_CHARS),
        arguments=[
            types.PromptArgument(
                name=TASK_ARGUMENT,
                description="What to do with the skill, in plain words",
                required=False,
            )
        ],
    )
