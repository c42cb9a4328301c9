"""`Routed`: many executors as one; a tool's name says which of them runs the call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.ports import Executor, Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.core.wording import tool_not_found


class Routed:
    """The tools of several executors, each run where it came from."""

    def __init__(self, executors: Iterable[Executor]) -> None:
        self._executors = tuple(executors)
        self._seen: list[Sequence[Tool]] = []
        self._tools = Toolset()
        self._owners: dict[str, Executor] = {}
        self.tools()

    def tools(self) -> Sequence[Tool]:
        """All tools there are now; `DuplicateTool` if two executors claim one name."""
        now = [executor.tools() for executor in self._executors]
        same = len(now) == len(self._seen) and all(
            new is old for new, old in zip(now, self._seen, strict=True)
        )
        if not same:
            self._tools = Toolset(tool for tools in now for tool in tools)
            self._owners = {
                tool.name: executor
                for executor, tools in zip(self._executors, now, strict=True)
                for tool in tools
            }
            self._seen = now
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Hand the call to the executor that has its tool."""
        self.tools()
        owner = self._owners.get(call.name)
        if owner is None:
            raise ToolFailure(ErrorKind.NOT_FOUND, tool_not_found(call.name, self._owners))
        return await owner.execute(call, progress)
