"""Which tools an agent is offered, and how long they may take when nobody says."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from evoclaw.core.agent import Agent
from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.ports import Executor, Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.wording import tool_not_found
from evoclaw.executors.wrapped import Filtered, Wrapper
from evoclaw.skills.disclosure import narrow
from evoclaw.skills.loading import Skill

WAITING = frozenset({"interact", "session"})
"""Permissions of tools that wait for people and for other runs: their time is their own."""


def offered(
    executor: Executor,
    agent: Agent,
    *,
    active: Sequence[Skill] = (),
    seconds: float | None = None,
) -> Executor:
    """An executor as one agent sees it.

    Args:
        executor: All tools there are.
        agent: Who is offered some of them: what its capabilities and its list of names allow.
        active: Its skills; only what all of them work with is left.
        seconds: How long a call may take that names no time; each tool's own if not given.
    """
    held = Filtered(executor, agent.capabilities)
    return _Offered(held, agent.tools, tuple(active), seconds)


class _Offered(Wrapper):
    def __init__(
        self,
        inner: Executor,
        names: frozenset[str] | None,
        active: tuple[Skill, ...],
        seconds: float | None,
    ) -> None:
        super().__init__(inner)
        if seconds is not None and seconds <= 0:
            raise ConfigError("the time that calls may take must be above 0 seconds")
        self._names, self._active, self._seconds = names, active, seconds

    def change(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Leave out what may not be used; give the others their time."""
        names = self._names
        named = [one for one in tools if names is None or _is_named(one, names)]
        left = narrow(named, self._active) if self._active else named
        return [self._timed(tool) for tool in left] if self._seconds is not None else left

    def _timed(self, tool: Tool) -> Tool:
        if self._seconds is None or tool.permissions & WAITING:
            return tool
        return replace(tool, timeout=min(self._seconds, tool.max_timeout))

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Hand the call on if it is among them."""
        names = [tool.name for tool in self.tools()]
        if call.name not in names:
            raise ToolFailure(ErrorKind.NOT_FOUND, tool_not_found(call.name, names))
        return await super().execute(call, progress)


def _is_named(tool: Tool, names: frozenset[str]) -> bool:
    return tool.name in names or not names.isdisjoint(tool.aliases)
