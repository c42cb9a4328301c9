"""The texts of a genome as named parts that a search may change one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from evoclaw.core.events import CallStarted
from evoclaw.core.genome import Genome, ToolText
from evoclaw.core.messages import JSON
from evoclaw.evolution.checks import CalledCheck
from evoclaw.evolution.proposals import ProposerContext
from evoclaw.evolution.proposers.train_scores import patched

PROMPT, NOTES, TOOL_PROMPT, TOOL_PREFIX = "prompt", "notes", "tool_prompt", "tool:"
MAX_TOOLS = 8
"""Whose descriptions are searched: those that the train cases use."""
MAX_PROMPT_CHARS, MAX_NOTES_CHARS, MAX_DESCRIPTION_CHARS = 16_000, 8_000, 4_000
_KEPT_PLACEHOLDERS = ("{tools}", "{answer}")
"""Without its own ones, a model would not use the text."""


class GenomeTexts:
    """The texts of the current genome: prompt, notes, tool prompt and descriptions of tools."""

    def __init__(self, context: ProposerContext) -> None:
        self._context = context
        genome, self._users = context.genome, _tool_users(context)
        own = _descriptions(context, self._users)
        self.now: dict[str, str] = {
            PROMPT: genome.prompt or context.agent.prompt,
            NOTES: "\n".join(genome.notes),
        }
        if context.tool_prompt:
            is_used = self._is_tool_prompt(genome.tool_prompt)
            self.now[TOOL_PROMPT] = genome.tool_prompt if is_used else context.tool_prompt
        for name in list(own)[:MAX_TOOLS]:
            text = genome.tools.get(name, ToolText()).description or own[name]
            self.now[f"{TOOL_PREFIX}{name}"] = text

    def meaning(self, part: str) -> str:
        """What a part is, in words for a model."""
        if part == PROMPT:
            return "its instructions"
        if part == NOTES:
            return "its notes: lessons from earlier runs, one line each"
        if part == TOOL_PROMPT:
            return (
                "what tells its model the tools and how to write a call, in the form that the text "
                "has now. A word in braces stands for something: {tools} for the descriptions of "
                "the tools. Keep these words as they are, and {tools} once"
            )
        name = part.removeprefix(TOOL_PREFIX)
        return f"the description of its tool {name}, beside the JSON Schema of the arguments"

    def is_read_by(self, part: str, cases: Collection[str]) -> bool:
        """Whether the model of a run of any of these cases may read a part."""
        if not part.startswith(TOOL_PREFIX):
            return True
        return not self._users[part.removeprefix(TOOL_PREFIX)].isdisjoint(cases)

    def max_chars(self, part: str) -> int:
        """The longest text that a part may have."""
        return {PROMPT: MAX_PROMPT_CHARS, NOTES: MAX_NOTES_CHARS}.get(part, MAX_DESCRIPTION_CHARS)

    def changed(self, texts: Mapping[str, str]) -> list[str]:
        """The parts that are not as in the current genome."""
        return [name for name, text in texts.items() if text != self.now[name]]

    def patch(self, texts: Mapping[str, str]) -> dict[str, JSON]:
        """The patch of the current genome for these texts."""
        patch: dict[str, JSON] = {}
        tools: dict[str, JSON] = {}
        for name in self.changed(texts):
            if name == NOTES:
                patch[name] = [line for line in texts[name].splitlines() if line.strip()]
            elif name in (PROMPT, TOOL_PROMPT):
                patch[name] = texts[name]
            else:
                tools[name.removeprefix(TOOL_PREFIX)] = {"description": texts[name]}
        return patch | ({"tools": tools} if tools else {})

    def genome(self, texts: Mapping[str, str]) -> Genome | None:
        """The genome with these texts; None if it may not have them."""
        if TOOL_PROMPT in texts and not self._is_tool_prompt(texts[TOOL_PROMPT]):
            return None
        patch = self.patch(texts)
        return patched(self._context, patch) if patch else self._context.genome

    def _is_tool_prompt(self, text: str) -> bool:
        """Whether the model would use a text: it has the same of these placeholders."""
        shipped = self._context.tool_prompt
        return all((word in text) == (word in shipped) for word in _KEPT_PLACEHOLDERS)


def _tool_users(context: ProposerContext) -> dict[str, set[str]]:
    """The tools that the train cases use, each with the names of its cases."""
    users: dict[str, set[str]] = {}
    for file in context.cases:
        case = file.case
        used = [tool.name for tool in case.tools]
        used += [result.tool for result in case.results]
        used += [check.tool for check in case.checks if isinstance(check, CalledCheck)]
        events = (record.event for record in file.records())
        used += [event.name for event in events if isinstance(event, CallStarted)]
        for name in used:
            users.setdefault(name, set()).add(file.name)
    return users


def _descriptions(context: ProposerContext, names: Iterable[str]) -> dict[str, str]:
    """The own descriptions of tools."""
    known = {tool.name: tool.description for tool in context.tools}
    for case in context.cases:
        known |= {tool.name: tool.description for tool in case.case.tools}
    return {name: known[name] for name in names if name in known}
