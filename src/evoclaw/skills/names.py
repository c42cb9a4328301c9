"""Names and versions: what may be one, which of them look alike, which is newer."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches

TOOL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
SKILL = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
VERSION = re.compile(r"(\d{1,9}(?:\.\d{1,9}){0,3})(?:-([0-9A-Za-z.-]{1,40}))?")
LONGEST = 64
NO_VERSION = "0"

PLATFORMS = {
    "linux": "linux",
    "macos": "darwin",
    "darwin": "darwin",
    "windows": "win32",
    "win32": "win32",
}
"""How a platform may be called, and what Python calls it."""

_ALIKE = str.maketrans({"I": "l", "1": "l", "|": "l", "0": "o", "-": "_"})


def problem_with_tool(name: str) -> str:
    """Why a text cannot be a tool's name; empty if it can."""
    if strange := _strange(name):
        return f"the tool name {name!r} holds {strange}; use ASCII letters, digits, '_' and '-'"
    if not TOOL.fullmatch(name):
        return (
            f"{name!r} is no tool name: a letter or '_', then letters, digits, '_', '-', 64 at most"
        )
    return ""


def problem_with_skill(name: str) -> str:
    """Why a text cannot be a skill's name; empty if it can."""
    if strange := _strange(name):
        return f"the skill name {name!r} holds {strange}; use a-z, 0-9 and '-'"
    if len(name) > LONGEST or not SKILL.fullmatch(name):
        return f"{name!r} is no skill name: a-z, 0-9, single hyphens between, {LONGEST} at most"
    return ""


def _strange(name: str) -> str:
    """The first character that only looks like one of ours, by its full name."""
    for char in name[:LONGEST]:
        if not char.isascii():
            return f"U+{ord(char):04X} {unicodedata.name(char, 'without a name')}"
    return ""


def skeleton(name: str) -> str:
    """What two names have in common that a reader takes for each other."""
    return name.translate(_ALIKE).lower().replace("rn", "m").replace("vv", "w")


def version_key(version: str) -> tuple[tuple[int, ...], bool, str]:
    """What versions are ordered by; a pre-release comes before its release."""
    found = VERSION.fullmatch(version)
    if found is None:
        return ((0,), False, version)
    numbers = [int(part) for part in found[1].split(".")]
    return (tuple(numbers + [0] * (4 - len(numbers))), found[2] is None, found[2] or "")


def fits(platforms: Iterable[str], here: str = sys.platform) -> bool:
    """Whether something is for this platform; what names none is for all."""
    wanted = {PLATFORMS[one] for one in platforms}
    return not wanted or here in wanted


def unknown(what: str, name: str, names: Iterable[str]) -> str:
    """Say that a word is not known, and which was meant, or which there are."""
    there = sorted(names)
    meant = next(iter(get_close_matches(name[:80], there, 1)), "")
    hint = f"did you mean {meant!r}?" if meant else f"there are: {', '.join(there)}"
    return f"unknown {what} {name[:80]!r}; {hint}"
