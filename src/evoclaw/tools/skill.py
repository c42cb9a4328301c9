"""The tool `skill`: lists skills, loads their instructions and reads their files."""

from __future__ import annotations

from typing import Protocol

from evoclaw.core.bound_tools import ToolOutput
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, TextBlock
from evoclaw.tools.define import tool


class SkillReader(Protocol):
    """Reads the texts of skills; `ToolFailure` for an unknown skill or file."""

    async def catalogue(self) -> str:
        """List the skills, one line each."""
        ...

    async def instructions(self, name: str) -> str:
        """The instructions of a skill."""
        ...

    async def reference(self, name: str, path: str) -> str:
        """The text of a file of a skill."""
        ...


@tool("file_read", timeout=5, max_timeout=30, effect="read", resources=())
async def skill(texts: SkillReader, name: str = "", reference: str = "") -> ToolOutput:
    """Load the instructions of a skill before you start a task that it fits, or read its files.

    Args:
        texts: The skills.
        name: The skill's name; omit it to list the skills.
        reference: A file of the skill to read, such as 'references/api.md'; omit it to load
            the instructions.
    """
    details: dict[str, JSON] = {"skill": name, "reference": reference}
    if not name:
        if reference:
            raise ToolFailure(
                ErrorKind.INVALID_PARAMS, "Set 'name' to the skill that has the file 'reference'."
            )
        listed = await texts.catalogue()
        return ToolOutput((TextBlock(listed or "There are no skills here."),), details)
    if reference:
        text = await texts.reference(name, reference)
    else:
        text = await texts.instructions(name)
    return ToolOutput((TextBlock(text or "(the file is empty)"),), details)
