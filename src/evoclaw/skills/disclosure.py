"""Progressive disclosure of skills: a list, then the instructions of one, then its files."""

from __future__ import annotations

import asyncio
import hashlib
import unicodedata
from collections.abc import Iterable

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.skills.active import SKILL_TOOL
from evoclaw.skills.folders import MAX_TEXT_BYTES, SkillRefused, read_bytes, to_text
from evoclaw.skills.loading import Skill
from evoclaw.skills.names import unknown_name
from evoclaw.skills.tuned import SkillSource

MAX_LISTED_DESCRIPTION_CHARS = 300
"""Of each description in the list of skills."""
MAX_LISTED = 100
"""Skills, or files of a skill, in one list."""

_INVISIBLE_CATEGORIES = ("Cc", "Cf", "Cs", "Co")
"""Unicode categories that a reader does not see: control, format (zero-width, bidi, tags),
surrogate, private use."""


def skill_list(skills: Iterable[Skill]) -> str:
    """The list of skills for the system prompt, one line each; empty without skills."""
    lines = [f"- {skill.name}: {_one_line(skill.description)}" for skill in skills]
    if not lines:
        return ""
    beyond = len(lines) - MAX_LISTED
    more = [f"- … and {beyond} more; the tool `{SKILL_TOOL}` lists them"] if beyond > 0 else []
    head = (
        f"Skills: when a task fits one of these, call the tool `{SKILL_TOOL}` with its name first "
        "and follow the instructions that it returns."
    )
    return "\n".join((head, *lines[:MAX_LISTED], *more))


def skill_instructions(skill: Skill) -> str:
    """The instructions of a skill, with its tools and its files."""
    parts = [
        f"# Skill {skill.key}",
        without_invisible_characters(skill.instructions) or _one_line(skill.description),
    ]
    if skill.programs:
        tools = ", ".join(f"`{program.tool.name}`" for program in skill.programs)
        parts.append(f"Its tools: {tools}")
    if references := skill.references:
        shown = "\n".join(
            f"- {without_invisible_characters(path)}" for path in references[:MAX_LISTED]
        )
        parts.append(
            f"Its files, to be read with the tool `{SKILL_TOOL}` and `reference`:\n{shown}"
        )
    return "\n\n".join(parts)


def skill_file(skill: Skill, path: str) -> str:
    """The text of one file of a skill, unchanged since the skill was loaded."""
    wanted = path.removeprefix("./")
    if wanted not in skill.file_hashes:
        problem = unknown_name("file", path, skill.references)
        raise ToolFailure(ErrorKind.NOT_FOUND, f"Skill '{skill.name}': {problem}.")
    try:
        data = read_bytes(skill.folder, wanted, MAX_TEXT_BYTES)
        text = to_text(skill.folder / wanted, data)
    except SkillRefused as refused:
        raise ToolFailure(
            ErrorKind.EXECUTION_FAILED, f"'{path}' cannot be shown: {refused.reason}."
        ) from None
    if hashlib.sha256(data).hexdigest() != skill.file_hashes[wanted]:
        raise ToolFailure(
            ErrorKind.CONFLICT,
            f"'{path}' was changed since the skill was loaded. Load the skill again first.",
        )
    return without_invisible_characters(text)


def without_invisible_characters(text: str) -> str:
    """The text without invisible characters, which can hide instructions from a reader."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char
        for char in text
        if char in "\n\t" or unicodedata.category(char) not in _INVISIBLE_CATEGORIES
    )


def _one_line(text: str) -> str:
    line = " ".join(without_invisible_characters(text.replace("\n", " ")).split())
    return (
        line
        if len(line) <= MAX_LISTED_DESCRIPTION_CHARS
        else f"{line[: MAX_LISTED_DESCRIPTION_CHARS - 1]}…"
    )


class RegistrySkillReader:
    """Reads skills of a registry for the tool `skill`."""

    def __init__(self, skills: SkillSource) -> None:
        self._skills = skills

    async def catalogue(self) -> str:
        """List the skills, one line each."""
        found = await asyncio.to_thread(self._skills.skills)
        return "\n".join(f"- {skill.name}: {_one_line(skill.description)}" for skill in found)

    async def instructions(self, name: str) -> str:
        """The instructions of a skill."""
        return skill_instructions(await asyncio.to_thread(self._find, name))

    async def reference(self, name: str, path: str) -> str:
        """The text of a file of a skill."""
        skill = await asyncio.to_thread(self._find, name)
        return await asyncio.to_thread(skill_file, skill, path)

    def _find(self, name: str) -> Skill:
        skill = self._skills.find(name)
        if skill is None:
            known = [other.name for other in self._skills.skills()]
            hint = unknown_name("skill", name, known) if known else "There are no skills here"
            raise ToolFailure(ErrorKind.NOT_FOUND, f"{hint[:1].upper()}{hint[1:]}.")
        return skill
