"""The tools that an `agent.toml` adds to an edge: skills, own Python files and MCP servers.

They change while the edge runs. `AddedTools.watching` keeps the advert up to date, connects the
servers, and logs what cannot be used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from evoclaw.core.errors import ConfigError, EvoClawError, ToolFailure
from evoclaw.core.ports import Executor
from evoclaw.core.routes import Route
from evoclaw.core.tools import ALL_PERMISSIONS, Tool, missing_permissions

if TYPE_CHECKING:
    from evoclaw.executors.mcp.executor import McpExecutor
    from evoclaw.executors.mcp.pins import PinFile
    from evoclaw.executors.own_tools import OwnTools
    from evoclaw.skills.registry import SkillRegistry

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 2.0
"""Between two checks for changed files, approvals and servers."""
LOAD_TIMEOUT_S = 30.0
"""How long the start of an edge waits for files that a sandbox loads: its first tools are approved
with its invitation, later ones are not."""
CONNECT_TIMEOUT_S = 5.0
"""How long the start of an edge waits for its MCP servers; later ones are advertised later."""


class _HasTools(Protocol):
    def tools(self) -> Sequence[Tool]: ...


class AddedTools:
    """The added tools of one edge."""

    def __init__(
        self,
        executors: Mapping[str, Executor],
        *,
        skills: SkillRegistry | None = None,
        own: OwnTools | None = None,
        servers: Sequence[McpExecutor] = (),
        pins: PinFile | None = None,
        capabilities: frozenset[str] = frozenset({ALL_PERMISSIONS}),
        poll_interval: float = POLL_INTERVAL_S,
    ) -> None:
        """Choose the executors, each under a name for messages; the first ones take precedence."""
        self._executors, self._capabilities = dict(executors), capabilities
        self._skills, self._own, self._servers, self._pins = skills, own, tuple(servers), pins
        self._poll_interval = poll_interval
        self._approvals: dict[str, object] = {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._logged: dict[str, str] = {}

    @property
    def routes(self) -> list[Route]:
        """The routes to the executors; a tool whose name is taken is left out."""
        return [Route(executor, yields=True) for executor in self._executors.values()]

    @property
    def skills(self) -> SkillRegistry | None:
        """The registry of the skills; None if the settings name no folder of them."""
        return self._skills

    def problems(self) -> dict[str, str]:
        """What cannot be used, and why."""
        found = self._forbidden() | self._taken_names()
        if self._own is not None:
            found |= self._own.problems
        if self._skills is not None:
            issues = self._skills.problems()
            found |= {str(issue.path): issue.reason for issue in issues if issue.refused}
        for server in self._servers:
            name = f"MCP server {server.server.name}"
            waiting = [tool.name for tool in server.left_out if tool.digest]
            if server.problem:
                found[name] = server.problem
            elif waiting and self._pins is not None:
                approve = f"evoclaw mcp approve {self._pins.key(server.server.name)}"
                found[name] = f"not approved: {', '.join(waiting)}; approve with `{approve}`"
        return found

    def skill_tools(self) -> dict[str, frozenset[str]]:
        """The skills, and the tools of each."""
        skills = () if self._skills is None else self._skills.skills()
        return {
            skill.name: frozenset(program.tool.name for program in skill.programs)
            for skill in skills
        }

    def _forbidden(self) -> dict[str, str]:
        """The tools that the capabilities of the edge do not allow."""
        found = dict[str, str]()
        for source, executor in self._executors.items():
            for tool in executor.tools():
                if missing := missing_permissions(tool, self._capabilities):
                    needs = ", ".join(map(repr, missing))
                    reason = f"it needs {needs}; add it to `capabilities` in agent.toml"
                    found[f"{tool.name} ({source})"] = reason
        return found

    def _taken_names(self) -> dict[str, str]:
        """The tools that are left out because another one has the name."""
        owners, found = dict[str, str](), dict[str, str]()
        for source, executor in self._executors.items():
            for tool in executor.tools():
                owner = owners.setdefault(tool.name, source)
                if owner != source:
                    reason = f"a tool of {owner} has the same name; rename one of them"
                    found[f"{tool.name} ({source})"] = reason
        return found

    async def connect(self) -> None:
        """Connect the servers and load the files; what takes longer is offered later."""
        self._refresh_servers()
        if self._own is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOAD_TIMEOUT_S):
                    await self._own.settle()
        if self._connecting:
            await asyncio.wait(self._connecting.values(), timeout=CONNECT_TIMEOUT_S)

    @asynccontextmanager
    async def watching(
        self, offered: _HasTools, advertise: Callable[[], Awaitable[None]]
    ) -> AsyncGenerator[None]:
        """While the block runs, advertise the offered tools again whenever they change."""
        watch = asyncio.create_task(self._watch(offered, offered.tools(), advertise))
        try:
            yield
        finally:
            tasks = [watch, *self._connecting.values()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _watch(
        self,
        offered: _HasTools,
        advertised: Sequence[Tool],
        advertise: Callable[[], Awaitable[None]],
    ) -> None:
        while True:
            try:
                if (now := offered.tools()) is not advertised:
                    await advertise()
                    advertised = now
                self._log(self.problems())
            except EvoClawError as problem:
                self._log({"all changes": str(problem)})
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_interval):
                    await self._changed.wait()
            self._changed.clear()
            self._refresh_servers()

    def _refresh_servers(self) -> None:
        """Connect servers that are not connected, and apply changed approvals."""
        for server in self._servers:
            name, running = server.server.name, self._connecting.get(server.server.name)
            if running is not None and not running.done():
                continue
            approvals = self._approved(name)
            if running is None or server.problem or approvals != self._approvals.get(name):
                self._approvals[name] = approvals
                self._connecting[name] = asyncio.create_task(self._refresh(server))

    def _approved(self, server: str) -> object:
        try:
            return None if self._pins is None else self._pins.digests(server)
        except ConfigError as problem:
            return str(problem)

    async def _refresh(self, server: McpExecutor) -> None:
        try:
            await server.refresh()
            self._changed.set()
        except ToolFailure:
            return  # `server.problem` says why; it is tried again at the next poll
        except EvoClawError as problem:
            server.problem = str(problem)

    def _log(self, problems: dict[str, str]) -> None:
        """Log the problems that were not logged at the last check."""
        for name, reason in problems.items():
            if self._logged.get(name) != reason:
                logger.warning("not offered: %s: %s", name, reason)
        self._logged = problems
