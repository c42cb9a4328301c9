"""Sets of tools for common purposes. Each tool's file is loaded when a set that has it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evoclaw.core.bound import BoundTool
from evoclaw.tools.catalogue import CATALOGUE, load

NAMES = tuple(CATALOGUE)
"""Every tool there is."""
_READ_ONLY = ("read", "glob", "grep")
_CODING = ("read", "write", "edit", "glob", "grep", "apply_patch", "bash")
_GIT = ("git_status", "git_diff", "git_log", "git_commit", "git_branch")


def named(names: Sequence[str]) -> tuple[BoundTool, ...]:
    """The tools of these names; `KeyError` for one that there is not."""
    return load(names)


def read_only() -> tuple[BoundTool, ...]:
    """Look, but change nothing."""
    return named(_READ_ONLY)


def coding() -> tuple[BoundTool, ...]:
    """Read, change and run the files of a workspace."""
    return named((*_CODING, *_GIT))


def remote() -> tuple[BoundTool, ...]:
    """What needs files and processes alone, and so works on any machine that has both."""
    return coding()


def everything() -> tuple[BoundTool, ...]:
    """All there are; most need more than files and processes."""
    return named(NAMES)


def usable(tools: Sequence[BoundTool], given: Mapping[type, object]) -> tuple[BoundTool, ...]:
    """Of some tools, those that are given all they need."""
    return tuple(tool for tool in tools if tool.needs <= given.keys())
