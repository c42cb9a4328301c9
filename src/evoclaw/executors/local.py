"""`LocalExecutor`: calls that run in this process, over the operations it is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evoclaw.core.bound import BoundTool, Machine
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
    ) -> None:
        self._bound: dict[str, BoundTool] = {}
        for one in bound:
            if one.name in self._bound:
                raise DuplicateTool(one.name)
            if one.needs_files and files is None:
                raise ConfigError(f"tool {one.name!r} needs files; give `files=LocalFiles(…)`")
            if one.needs_exec and exec is None:
                raise ConfigError(f"tool {one.name!r} runs programs; give `exec=LocalProcesses(…)`")
            self._bound[one.name] = one
        self._tools = Toolset(one.tool for one in self._bound.values())
        self._files, self._exec = files, exec

    def tools(self) -> Sequence[Tool]:
        """The tools it was built with."""
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run one call to its end."""
        bound = self._bound.get(call.name)
        if bound is None:
            raise ToolFailure(ErrorKind.NOT_FOUND, tool_not_found(call.name, self._bound))
        if call.resumed and not call.harmless:
            # This process keeps no journal: what it started before a crash, it cannot know.
            raise ToolFailure(ErrorKind.UNKNOWN, outcome_unknown(call.name))
        return await bound.run(call, Machine(self._files, self._exec, progress))
