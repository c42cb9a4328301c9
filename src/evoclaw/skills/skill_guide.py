"""Parses SKILL.md in the open Agent Skills format: front matter, then instructions."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from evoclaw.skills import frontmatter, names
from evoclaw.skills.folders import SkillRefused
from evoclaw.skills.frontmatter import FrontMatterError, FrontMatterValue

SKILL_FILES = ("SKILL.md", "skill.md")
"""The first name is preferred."""
MAX_DESCRIPTION_CHARS = 1024
MAX_COMPATIBILITY_CHARS = 500
ALLOWED_TOOLS, DISALLOWED_TOOLS = "allowed-tools", "disallowed-tools"
FIELDS = (
    "name", "description", "license", "compatibility", "metadata", ALLOWED_TOOLS, DISALLOWED_TOOLS,
)  # fmt: skip
_OTHER_SPELLINGS = {
    "allowed_tools": ALLOWED_TOOLS,
    "disallowed_tools": DISALLOWED_TOOLS,
}

_TOOL_NAME = re.compile(r"([A-Za-z_][\w.@-]*)(\([^()]*\))?")


class SkillGuide(Struct, frozen=True):
    """A valid SKILL.md."""

    name: str
    description: str
    instructions: str
    license: str = ""
    compatibility: str = ""
    metadata: dict[str, str] = {}
    allowed_tools: frozenset[str] | None = None
    """The tool names of `allowed-tools`, in lower case; None if the field is absent."""
    disallowed_tools: frozenset[str] = frozenset()
    """The tool names of `disallowed-tools`, in lower case."""
    notes: tuple[str, ...] = ()
    """Warnings about fields that are ignored."""


def read_guide(path: Path, text: str) -> SkillGuide:
    """Parse SKILL.md; `SkillRefused` if it is not valid."""
    try:
        lines, body = frontmatter.split_front_matter(text)
        head = _with_one_spelling(path, frontmatter.parse_front_matter(lines))
    except FrontMatterError as problem:
        raise SkillRefused(path, str(problem)) from None
    notes = [
        f"{names.unknown_name('field', key, FIELDS)}; the field is ignored"
        for key in head
        if key not in FIELDS
    ]

    def text_of(key: str, longest: int) -> str:
        value = head.get(key, "")
        if not isinstance(value, str):
            raise SkillRefused(path, f"{key} must be a text")
        if len(value) > longest:
            raise SkillRefused(path, f"{key} has {len(value):,} characters, more than {longest:,}")
        return value.strip()

    allowed, patterns = _tool_names(path, head, ALLOWED_TOOLS)
    disallowed, refused_patterns = _tool_names(path, head, DISALLOWED_TOOLS)
    if refused_patterns:
        # To ignore the pattern would forbid more than the author wrote, or less.
        raise SkillRefused(
            path, f"{DISALLOWED_TOOLS}: {refused_patterns[0]!r}: name the tool without brackets"
        )
    notes += [
        f"{ALLOWED_TOOLS}: {word!r}: the pattern in brackets is ignored; use a policy"
        for word in patterns
    ]
    return SkillGuide(
        _required(path, "name", text_of, 256),
        _required(path, "description", text_of, MAX_DESCRIPTION_CHARS),
        body.strip(),
        text_of("license", MAX_DESCRIPTION_CHARS),
        text_of("compatibility", MAX_COMPATIBILITY_CHARS),
        _metadata(path, head),
        allowed,
        disallowed or frozenset(),
        tuple(notes),
    )


def _required(path: Path, key: str, text_of: Callable[[str, int], str], longest: int) -> str:
    text = text_of(key, longest)
    if not text:
        raise SkillRefused(path, f"the front matter must have a line `{key}: …`")
    if key == "name" and (problem := names.skill_name_problem(text)):
        raise SkillRefused(path, problem)
    return text


def _metadata(path: Path, head: dict[str, FrontMatterValue]) -> dict[str, str]:
    value = head.get("metadata", {})
    if not isinstance(value, dict):
        if not value:
            return {}
        raise SkillRefused(path, "metadata must be indented lines `key: value`")
    return value


def _with_one_spelling(
    path: Path, head: dict[str, FrontMatterValue]
) -> dict[str, FrontMatterValue]:
    """The fields, with `disallowed_tools` read as `disallowed-tools`."""
    found: dict[str, FrontMatterValue] = {}
    for key, value in head.items():
        name = _OTHER_SPELLINGS.get(key, key)
        if name in found:
            raise SkillRefused(path, f"the front matter has {name} twice; keep one of them")
        found[name] = value
    return found


def _tool_names(
    path: Path, head: dict[str, FrontMatterValue], field: str
) -> tuple[frozenset[str] | None, list[str]]:
    """The tool names of a field, and the words with a pattern in brackets; None: no field."""
    if field not in head:
        return None, []
    value = head[field]
    if isinstance(value, dict):
        raise SkillRefused(path, f"{field} must be tool names separated by spaces")
    # Patterns in brackets may contain spaces: `Bash(git log:*)`.
    words = value if isinstance(value, list) else re.findall(r"[^\s,(]+(?:\([^()]*\))?", value)
    found: set[str] = set()
    patterns: list[str] = []
    for word in words:
        match = _TOOL_NAME.fullmatch(word)
        if match is None:
            raise SkillRefused(path, f"{field}: {word[:80]!r} is not a tool name")
        found.add(match[1].lower())
        if match[2]:
            patterns.append(word)
    return frozenset(found), patterns
