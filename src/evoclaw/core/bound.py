"""A tool bound to the code that runs it, and what that code is handed and may hand back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from msgspec import Struct

from evoclaw.core.messages import JSON, Block, ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool


class Machine(Struct, frozen=True):
    """What one call may use of the machine it runs on."""

    given: Mapping[type, object]
    """Operations, by the Protocol that says what they are."""
    progress: Progress


class Output(Struct, frozen=True):
    """What a tool may return when text alone is not enough."""

    blocks: tuple[Block, ...]
    """For the model."""
    details: dict[str, JSON] = {}
    """For people and machines; never sent to the model."""


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool and the code behind it."""

    tool: Tool
    run: Callable[[Call, Machine], Awaitable[ToolResult]]
    """Runs one call to its end; raises `ToolFailure`."""
    needs: frozenset[type] = frozenset()
    """The Protocols of the operations that it is handed; it cannot run without them."""
    function: Callable[..., object] | None = None
    """What the author wrote, for tests and for calling by hand."""

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool.name
