"""`SkillExecutor`: the tools of the skills that are there now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from evoclaw.core.bound import BoundTool, Machine
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.ops import ExecOps
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.core.wording import outcome_unknown, tool_not_found


class Bound(Protocol):
    """Where the tools come from."""

    def tools(self) -> Sequence[BoundTool]:
        """Those that are there now."""
        ...


class SkillExecutor:
    """Runs the tools of a shelf; one that is added shows up with the next turn."""

    def __init__(
        self,
        shelf: Bound,
        exec: ExecOps,
        *,
        given: Mapping[type, object] | None = None,
        exec_for: Callable[[Call], ExecOps] | None = None,
    ) -> None:
        """Take the skills and the machine's processes.

        Args:
            shelf: The skills.
            exec: The processes of the machine.
            given: Whatever else is there, by its Protocol; `Sandboxes` for tools that need one.
            exec_for: The processes for one call, where they are not the same for all.
        """
        self._exec_for = exec_for
        self._shelf = shelf
        self._given: dict[type, object] = {**(given or {}), ExecOps: exec}
        self._bound: Mapping[str, BoundTool] = {}
        self._tools = Toolset()

    def tools(self) -> Sequence[Tool]:
        """The tools that are there now; the same object as long as nothing changes."""
        bound = {one.name: one for one in self._shelf.tools()}
        if bound != self._bound:
            self._tools = Toolset((one.tool for one in bound.values()), like=self._tools)
            self._bound = bound
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run one call to its end."""
        if call.name not in self._bound:
            self.tools()
        bound = self._bound.get(call.name)
        if bound is None:
            raise ToolFailure(ErrorKind.NOT_FOUND, tool_not_found(call.name, self._bound))
        if call.resumed and not call.harmless:
            raise ToolFailure(ErrorKind.UNKNOWN, outcome_unknown(call.name))
        given = self._given
        if self._exec_for is not None:
            given = {**given, ExecOps: self._exec_for(call)}
        return await bound.run(call, Machine(given, progress))
