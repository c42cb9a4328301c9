"""Validates and compares the names, versions and platforms of skills and tools."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches

TOOL_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
SKILL_NAME_PATTERN = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
VERSION_PATTERN = re.compile(r"(\d{1,9}(?:\.\d{1,9}){0,3})(?:-([0-9A-Za-z.-]{1,40}))?")
MAX_NAME_CHARS = 64
NO_VERSION = "0"

PLATFORMS = {
    "linux": "linux",
    "macos": "darwin",
    "darwin": "darwin",
    "windows": "win32",
    "win32": "win32",
}
"""The accepted platform names, and `sys.platform` of each."""

_CONFUSABLES = str.maketrans({"I": "l", "1": "l", "|": "l", "0": "o", "-": "_"})


def tool_name_problem(name: str) -> str:
    """Why a text is not a valid tool name; empty if it is valid."""
    if strange := _non_ascii_character(name):
        return f"the tool name {name!r} contains {strange}; use ASCII letters, digits, '_' and '-'"
    if not TOOL_NAME_PATTERN.fullmatch(name):
        return (
            f"{name!r} is not a tool name: use a letter or '_', then up to 63 letters, digits, "
            "'_' or '-'"
        )
    return ""


def skill_name_problem(name: str) -> str:
    """Why a text is not a valid skill name; empty if it is valid."""
    if strange := _non_ascii_character(name):
        return f"the skill name {name!r} contains {strange}; use a-z, 0-9 and '-'"
    if len(name) > MAX_NAME_CHARS or not SKILL_NAME_PATTERN.fullmatch(name):
        return (
            f"{name!r} is not a skill name: use up to {MAX_NAME_CHARS} of a-z, 0-9 and single "
            "hyphens between them"
        )
    return ""


def _non_ascii_character(name: str) -> str:
    """The first character that is not ASCII, by its Unicode name; empty if there is none."""
    for char in name[:MAX_NAME_CHARS]:
        if not char.isascii():
            return f"U+{ord(char):04X} {unicodedata.name(char, 'without a name')}"
    return ""


def skeleton(name: str) -> str:
    """The confusable skeleton of a name: equal for two names that look alike."""
    return name.translate(_CONFUSABLES).lower().replace("rn", "m").replace("vv", "w")


def version_key(version: str) -> tuple[tuple[int, ...], bool, str]:
    """What versions are ordered by; a pre-release comes before its release."""
    found = VERSION_PATTERN.fullmatch(version)
    if found is None:
        return ((0,), False, version)
    numbers = [int(part) for part in found[1].split(".")]
    return (tuple(numbers + [0] * (4 - len(numbers))), found[2] is None, found[2] or "")


def supports_platform(platforms: Iterable[str], here: str = sys.platform) -> bool:
    """Whether one of the platforms is this one; an empty list supports every platform."""
    wanted = {PLATFORMS[platform] for platform in platforms}
    return not wanted or here in wanted


def unknown_name(what: str, name: str, names: Iterable[str]) -> str:
    """An error message for an unknown name, with the closest known name or all of them."""
    known = sorted(names)
    closest = next(iter(get_close_matches(name[:80], known, 1)), "")
    hint = f"did you mean {closest!r}?" if closest else f"known: {', '.join(known)}"
    return f"unknown {what} {name[:80]!r}; {hint}"
