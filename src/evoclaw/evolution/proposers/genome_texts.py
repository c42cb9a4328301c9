"""The texts of a genome as named parts that a search may change one by one."""

from __future__ import annotations

from collections.abc import Mapping

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
        genome, own = context.genome, _descriptions(context)
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


def _descriptions(context: ProposerContext) -> dict[str, str]:
    """The tools that the train cases use, with their own descriptions."""
    known = {tool.name: tool.description for tool in context.tools}
    used: dict[str, None] = {}
    for case in context.cases:
        known |= {tool.name: tool.description for tool in case.case.tools}
        used |= dict.fromkeys(tool.name for tool in case.case.tools)
        used |= dict.fromkeys(result.tool for result in case.case.results)
        used |= dict.fromkeys(c.tool for c in case.case.checks if isinstance(c, CalledCheck))
        events = (record.event for record in case.records())
        used |= dict.fromkeys(event.name for event in events if isinstance(event, CallStarted))
    return {name: known[name] for name in used if name in known}
