"""Sets of tools for common purposes; a tool's module is imported when a set includes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.errors import ConfigError
from evoclaw.core.pipeline import OfferStep
from evoclaw.core.tools import Tool
from evoclaw.tools.catalogue import CATALOGUE, load

TOOL_NAMES = tuple(name for name, entry in CATALOGUE.items() if entry.as_program)
"""The names of the built-in tools, without those that only a host process has."""
_READ_ONLY = ("read", "glob", "grep")
_CODING = ("read", "write", "edit", "glob", "grep", "apply_patch", "bash")
_GIT = ("git_status", "git_diff", "git_log", "git_commit", "git_branch")


def select(
    tools: Sequence[BoundTool], names: Collection[str], *, setting: str = ""
) -> tuple[BoundTool, ...]:
    """Those of the tools that are named; `ConfigError` for an unknown name.

    Args:
        tools: All tools, which decide the order.
        names: The names.
        setting: Where the names come from, for the error.
    """
    known = {tool.name for tool in tools}
    if unknown := [name for name in names if name not in known]:
        where = f" in {setting}" if setting else ""
        raise ConfigError(
            f"unknown tool {', '.join(map(repr, unknown))}{where}; "
            f"available tools: {', '.join(sorted(known))}"
        )
    return tuple(tool for tool in tools if tool.name in names)


def read_only() -> tuple[BoundTool, ...]:
    """Tools that read files and change nothing."""
    return load(_READ_ONLY)


def coding() -> tuple[BoundTool, ...]:
    """Tools that read, change and run the files of a workspace.

    They need only files and processes, and so work on any machine.
    """
    return load((*_CODING, *_GIT))


def everything() -> tuple[BoundTool, ...]:
    """All built-in tools; most need more than files and processes."""
    return load(TOOL_NAMES)


def usable(
    tools: Sequence[BoundTool], dependencies: Mapping[type, object]
) -> tuple[BoundTool, ...]:
    """The tools whose dependencies are all available."""
    return tuple(tool for tool in tools if tool.dependencies <= dependencies.keys())


@dataclass(frozen=True, slots=True)
class FewBuiltInTools(OfferStep):
    """Offers a small model few built-in tools; those of skills, own files and MCP servers stay.

    Without the first tool, such as `bash` for a read-only agent, nothing is left out.
    """

    names: tuple[str, ...]

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """These, and those that are not of the catalogue."""
        if all(tool.name != self.names[0] for tool in tools):
            return tools
        return [tool for tool in tools if tool.name in self.names or tool.name not in CATALOGUE]
