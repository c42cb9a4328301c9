"""`SkillExecutor`: runs the tools of the skills in use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evoclaw.core.bound_tools import BoundTool, ToolEnvironment
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.ops import ExecOps
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.core.wording import outcome_unknown, tool_not_found
from evoclaw.skills.registry import SkillRegistry


class SkillExecutor:
    """Runs the tools of a skill registry; tools of a new skill are offered from the next turn."""

    def __init__(
        self,
        registry: SkillRegistry,
        exec: ExecOps,
        *,
        dependencies: Mapping[type, object] | None = None,
        exec_for: Callable[[Call], ExecOps] | None = None,
    ) -> None:
        """Run the tools of a registry.

        Args:
            registry: Supplies the tools.
            exec: Runs processes on the machine.
            dependencies: Other dependencies by their Protocol, such as `Sandboxes`.
            exec_for: Chooses the `ExecOps` of a call where it is not the same for all calls.
        """
        self._exec_for = exec_for
        self._registry = registry
        self._dependencies: dict[type, object] = {**(dependencies or {}), ExecOps: exec}
        self._bound: Mapping[str, BoundTool] = {}
        self._tools = Toolset()

    def tools(self) -> Sequence[Tool]:
        """The tools of the skills in use; the same object until a skill changes."""
        bound = {tool.name: tool for tool in self._registry.tools()}
        if bound != self._bound:
            self._tools = Toolset((entry.tool for entry in bound.values()), like=self._tools)
            self._bound = bound
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run one call."""
        if call.name not in self._bound:
            self.tools()
        bound = self._bound.get(call.name)
        if bound is None:
            raise ToolFailure(ErrorKind.NOT_FOUND, tool_not_found(call.name, self._bound))
        if call.resumed and not call.safe_to_repeat:
            raise ToolFailure(ErrorKind.UNKNOWN, outcome_unknown(call.name))
        given = self._dependencies
        if self._exec_for is not None:
            given = {**given, ExecOps: self._exec_for(call)}
        return await bound.run(call, ToolEnvironment(given, progress))
