"""A tool together with the function that runs it, its dependencies, and its output."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from msgspec import Struct

from evoclaw.core.messages import JSON, Block, ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool


class ToolEnvironment(Struct, frozen=True):
    """The dependencies injected into the function of a tool for one call."""

    dependencies: Mapping[type, object]
    """The implementation of each Protocol that the tool depends on."""
    progress: Progress


class ToolOutput(Struct, frozen=True):
    """What a tool returns when plain text is not enough."""

    blocks: tuple[Block, ...]
    """For the model."""
    details: dict[str, JSON] = {}
    """For people and programs; never sent to the model."""


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool and the function that runs its calls."""

    tool: Tool
    run: Callable[[Call, ToolEnvironment], Awaitable[ToolResult]]
    """Runs one call; raises `ToolFailure`."""
    dependencies: frozenset[type] = frozenset()
    """The Protocols that are injected; without an implementation of each, the tool cannot run."""
    function: Callable[..., object] | None = None
    """The function as its author wrote it, for tests and direct calls."""

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool.name
