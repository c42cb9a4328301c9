"""Sets of tools for common purposes."""

from __future__ import annotations

from evoclaw.core.bound import BoundTool
from evoclaw.tools.files import edit, read, write
from evoclaw.tools.search import glob, grep
from evoclaw.tools.shell import bash


def read_only() -> tuple[BoundTool, ...]:
    """Look, but change nothing."""
    return (read, glob, grep)


def coding() -> tuple[BoundTool, ...]:
    """Read, change and run the files of a workspace."""
    return (read, write, edit, glob, grep, bash)


def everything() -> tuple[BoundTool, ...]:
    """All there are."""
    return coding()
