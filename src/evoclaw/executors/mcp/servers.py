"""`McpServers`: the configured MCP servers as one executor; they can change while it is used."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import NO_TOOLS, Toolset
from evoclaw.core.wording import tool_not_found
from evoclaw.executors.mcp.elicitation import AskPerson
from evoclaw.executors.mcp.executor import McpExecutor
from evoclaw.executors.mcp.offers import McpServer
from evoclaw.executors.mcp.pins import PinFile
from evoclaw.executors.mcp.sign_ins import SignInFile

logger = logging.getLogger(__name__)


class McpServers:
    """The approved tools of all configured servers.

    Approvals, servers that come back, and other definitions take effect while it is used. `async
    with` it: every connection and everything that the servers started ends with the block.
    """

    def __init__(
        self,
        definitions: Sequence[McpServer],
        pins: PinFile,
        sign_ins: SignInFile | None = None,
    ) -> None:
        """Set the servers, the approvals of their tools, and where their tokens are stored."""
        self._pins, self._approvals = pins, pins.version()
        self._sign_ins = sign_ins
        self._sign_in_version = None if sign_ins is None else sign_ins.version()
        self._servers: dict[str, McpExecutor] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sources: Sequence[Sequence[Tool]] = ()
        self._tools: Toolset = NO_TOOLS
        self._add(_by_name(definitions).values())

    def _add(self, definitions: Iterable[McpServer]) -> list[McpExecutor]:
        added = [
            McpExecutor(definition, self._pins, sign_ins=self._sign_ins)
            for definition in definitions
        ]
        self._servers |= {server.server.name: server for server in added}
        return added

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(_connect(server) for server in self._servers.values()))
        for server in self._servers.values():
            if server.problem:
                logger.warning(
                    "the MCP server %s cannot be used: %s", server.server.name, server.problem
                )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        servers, self._servers = tuple(self._servers.values()), {}
        for server in servers:
            await server.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def __iter__(self) -> Iterator[McpExecutor]:
        return iter(tuple(self._servers.values()))

    def use(self, definitions: Sequence[McpServer]) -> None:
        """Use other definitions: servers that are new or changed are connected in the background.

        Raises `ConfigError` and changes nothing if a definition is wrong.
        """
        wanted = _by_name(definitions)
        for definition in wanted.values():
            definition.check()
        for name, server in list(self._servers.items()):
            if wanted.get(name) != server.server:
                del self._servers[name]
                self._start(server.close())
        for server in self._add([wanted[name] for name in wanted if name not in self._servers]):
            self._start(_connect_later(server))

    def tools(self) -> Sequence[Tool]:
        """The approved tools of all servers; the same object while nothing changed."""
        self._notice_approvals()
        self._notice_sign_ins()
        for server in self._servers.values():
            if server.should_reconnect:
                self._start(_connect_later(server))
        sources = [server.tools() for server in self._servers.values()]
        same = len(sources) == len(self._sources) and all(
            new is old for new, old in zip(sources, self._sources, strict=True)
        )
        if not same:
            tools = (tool for source in sources for tool in source)
            self._sources, self._tools = sources, Toolset(tools, sources=sources)
        return self._tools

    async def execute(
        self, call: Call, progress: Progress, person: AskPerson | None = None
    ) -> ToolResult:
        """Run one call on the server that has the tool."""
        for server in self._servers.values():
            if any(tool.name == call.name for tool in server.tools()):
                return await server.execute(call, progress, person)
        raise ToolFailure(ErrorKind.NOT_FOUND, tool_not_found(call.name, self._tools.names))

    def _notice_approvals(self) -> None:
        """Have the tools listed again after `evoclaw mcp approve` or `forget`."""
        approvals = self._pins.version()
        if approvals != self._approvals:
            self._approvals = approvals
            for server in self._servers.values():
                server.list_again()

    def _notice_sign_ins(self) -> None:
        """Connect the unreachable servers again after `evoclaw mcp login`."""
        version = None if self._sign_ins is None else self._sign_ins.version()
        if version != self._sign_in_version:
            self._sign_in_version = version
            for server in self._servers.values():
                if server.problem:
                    server.try_again()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@dataclass(frozen=True, slots=True)
class AttendedMcpServers:
    """The servers in a run with a person, who is shown the questions of the servers."""

    servers: McpServers
    person: AskPerson

    def tools(self) -> Sequence[Tool]:
        """The approved tools of all servers."""
        return self.servers.tools()

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run one call on the server that has the tool."""
        return await self.servers.execute(call, progress, self.person)


async def _connect(server: McpExecutor) -> None:
    """Connect a server; the reason of a failure is kept in its `problem`."""
    with suppress(ToolFailure):
        await server.refresh()


async def _connect_later(server: McpExecutor) -> None:
    """Connect a server in the background; an error is stored as its `problem`."""
    try:
        await _connect(server)
    except ConfigError as problem:
        server.problem = str(problem)


def _by_name(definitions: Sequence[McpServer]) -> dict[str, McpServer]:
    found = {definition.name: definition for definition in definitions}
    if len(found) < len(definitions):
        names = [definition.name for definition in definitions]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"two [[mcp]] servers have the name {twice!r}; rename one")
    return found
