"""`LocalExecutor`: runs calls in this process, with injected file and process operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from evoclaw.core.bound_tools import BoundTool, ToolEnvironment
from evoclaw.core.errors import ConfigError, DuplicateTool, ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.ops import ExecOps, FileOps
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.core.wording import outcome_unknown, tool_not_found


class LocalExecutor:
    """Runs bound tools; the same tools run elsewhere when given another machine's operations."""

    def __init__(
        self,
        bound: Iterable[BoundTool],
        *,
        files: FileOps | None = None,
        exec: ExecOps | None = None,
        given: Mapping[type, object] | None = None,
        exec_for: Callable[[Call], ExecOps] | None = None,
        sound: bool = False,
    ) -> None:
        """Bind the tools to their dependencies.

        Args:
            bound: The tools.
            files: The files of the machine.
            exec: The processes of the machine.
            given: Further dependencies of the tools, by Protocol.
            exec_for: The processes for one call, if they differ per call.
            sound: Whether their schemas are known to be valid and need no check.
        """
        self._exec_for = exec_for
        self._given = dict(given or {})
        if files is not None:
            self._given[FileOps] = files
        if exec is not None:
            self._given[ExecOps] = exec
        self._bound: dict[str, BoundTool] = {}
        for tool in bound:
            if tool.name in self._bound:
                raise DuplicateTool(tool.name)
            if missing := tool.dependencies - self._given.keys():
                raise ConfigError(_unmet(tool.name, missing))
            self._bound[tool.name] = tool
        tools = tuple(tool.tool for tool in self._bound.values())
        self._tools = Toolset(tools, trusted=True) if sound else Toolset.shared(tools)

    def tools(self) -> Sequence[Tool]:
        """The tools it was built with."""
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run one call to completion."""
        bound = self._bound.get(call.name)
        if bound is None:
            raise ToolFailure(ErrorKind.NOT_FOUND, tool_not_found(call.name, self._bound))
        if call.resumed and not call.safe_to_repeat:
            # This process keeps no journal: whether the call ran before a crash is unknown.
            raise ToolFailure(ErrorKind.UNKNOWN, outcome_unknown(call.name))
        dependencies = self._given
        if self._exec_for is not None and ExecOps in bound.dependencies:
            dependencies = {**dependencies, ExecOps: self._exec_for(call)}
        return await bound.run(call, ToolEnvironment(dependencies, progress))


_HOW = {FileOps: "`files=LocalFiles(…)`", ExecOps: "`exec=LocalProcesses(…)`"}


def _unmet(name: str, missing: Iterable[type]) -> str:
    kinds = sorted(missing, key=lambda kind: kind.__name__)
    names = " and ".join(kind.__name__ for kind in kinds)
    how = " and ".join(_HOW.get(kind, f"`given={{{kind.__name__}: …}}`") for kind in kinds)
    return f"tool {name!r} needs {names}; give {how}"
