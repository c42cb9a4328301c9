"""`Narrowed`: once a skill's instructions were loaded, only the tools it works with are offered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, Message, ToolResult
from evoclaw.core.ports import Executor, Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.core.wording import tool_not_found
from evoclaw.skills.disclosure import TOOL, Skills, narrow
from evoclaw.skills.loading import Skill


class Narrowed:
    """An executor around another one; make one for each run."""

    def __init__(self, inner: Executor, skills: Skills, history: Iterable[Message] = ()) -> None:
        """Go on with the skills whose instructions are in the history already."""
        self._inner, self._skills = inner, skills
        self.active: tuple[Skill, ...] = ()
        """The skills whose instructions the model has read."""
        for message in history:
            if isinstance(message, ToolResult) and message.name == TOOL and message.error is None:
                told = message.details
                self._activate("" if told.get("reference") else told.get("skill"))
        self._seen: tuple[Sequence[Tool], tuple[Skill, ...]] | None = None
        self._tools: Sequence[Tool] = ()

    def tools(self) -> Sequence[Tool]:
        """What is left of the inner tools; the same object while nothing changed."""
        inner = self._inner.tools()
        if not self.active:
            return inner
        if self._seen is None or self._seen[0] is not inner or self._seen[1] is not self.active:
            self._tools = Toolset(narrow(inner, self.active), like=inner)
            self._seen = inner, self.active
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Hand the call on if it is among them; reading a skill's instructions makes it active."""
        names = [tool.name for tool in self.tools()] if self.active else None
        if names is not None and call.name not in names:
            raise ToolFailure(ErrorKind.NOT_FOUND, tool_not_found(call.name, names))
        result = await self._inner.execute(call, progress)
        if call.name == TOOL and result.error is None and not call.arguments.get("reference"):
            self._activate(call.arguments.get("name"))
        return result

    def _activate(self, name: object) -> None:
        skill = self._skills.find(name) if isinstance(name, str) and name else None
        if skill is not None and skill not in self.active:
            self.active = (*self.active, skill)
