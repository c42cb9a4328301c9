"""`McpExecutor`: the tools of any MCP server, over stdio or streamable HTTP, as an executor."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from evoclaw.core.eager import mark_retrieved
from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.core.wording import outcome_unknown, tool_not_found
from evoclaw.executors.mcp.offers import (
    McpServer,
    OfferedTool,
    RejectedTool,
    ServerTerms,
    ToolPins,
    choose,
)

if TYPE_CHECKING:
    from evoclaw.executors.mcp.connection import McpConnection
    from evoclaw.executors.mcp.elicitation import AskPerson
    from evoclaw.executors.mcp.oauth import McpAuth, SignInPrompt
    from evoclaw.executors.mcp.sign_ins import SignInFile

MAX_RECONNECT_DELAY_S = 60.0
"""The longest delay before a failed server is tried again."""
MIN_LIST_INTERVAL_S = 1.0
"""The shortest interval between two tool lists that a server triggers."""


class McpExecutor:
    """The approved tools of one server, run by that server.

    `async with` it: the server is connected, and everything it started has ended when the block
    does. An unreachable server raises no error: it has no tools, and `problem` says why.
    """

    def __init__(
        self,
        server: McpServer,
        pins: ToolPins,
        *,
        sign_ins: SignInFile | None = None,
        prompt: SignInPrompt | None = None,
    ) -> None:
        """Set the server; without `sign_ins`, it is used without OAuth.

        Args:
            server: The server.
            pins: Which of its tools were approved.
            sign_ins: Where the tokens of servers are stored.
            prompt: Asks a person to sign in; None refuses, and names the command to do so.
        """
        server.check()
        self.server = server
        self._pins, self._sign_ins, self._prompt = pins, sign_ins, prompt
        self._terms = ServerTerms(
            server.name, server.permissions, server.trust_hints, server.timeout, server.max_timeout
        )
        self._offers: dict[str, OfferedTool] = {}
        self._tools = Toolset()
        self._connection: McpConnection | None = None
        self._old: list[McpConnection] = []
        """Abandoned connections that may not have ended yet."""
        self._connecting: asyncio.Task[McpConnection] | None = None
        self._listing: asyncio.Task[None] | None = None
        self._failures, self._not_before = 0, 0.0
        self._closed = False
        self._reason = ""
        self.left_out: tuple[RejectedTool, ...] = ()
        """The tools that are not offered, and why."""
        self.problem = ""
        """Why the server is unreachable, if it is; for people."""

    async def __aenter__(self) -> Self:
        with suppress(ToolFailure):
            await self.refresh()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connection and everything the server started."""
        self._closed = True
        tasks = [task for task in (self._connecting, self._listing) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._connection is not None:
            self._old.append(self._connection)
        for connection in self._old:
            await connection.close()

    def tools(self) -> Sequence[Tool]:
        """The approved tools; those of an unreachable server stay, since it may reconnect."""
        return self._tools

    @property
    def should_reconnect(self) -> bool:
        """Whether it is unreachable, and may be tried again now."""
        if self._closed or self._connection is not None:
            return False
        if self._connecting is not None and not self._connecting.done():
            return False
        return asyncio.get_running_loop().time() >= self._not_before

    async def refresh(self) -> None:
        """Connect if needed, and list the tools again: after an approval."""
        reconnects = self._connection is None or not self._connection.alive
        connection = await self._connected()
        if not reconnects:
            await self._list(connection)

    async def execute(
        self, call: Call, progress: Progress, person: AskPerson | None = None
    ) -> ToolResult:
        """Run one call on the server; reconnect, or restart the server, if it is unreachable.

        With a person, questions of the server during the call are asked; else they are declined.
        """
        from evoclaw.executors.mcp.connection import (
            CallNotAllowed,
            CallNotRun,
            McpConnectionLost,
        )
        from evoclaw.executors.mcp.results import to_result

        if call.resumed and not call.safe_to_repeat:
            # Servers keep no journal: whether the call ran before a crash is unknown.
            raise ToolFailure(ErrorKind.UNKNOWN, outcome_unknown(call.name))
        connection = await self._connected()
        offered = self._offer(call)
        try:
            answer = await connection.call(offered, call, progress, person)
        except CallNotAllowed as refused:
            await self._drop_connection(connection, str(refused))
            raise self._not_signed_in() from None
        except CallNotRun:
            await self._drop_connection(connection, "the server lost our session")
            raise self._offline("It did not run this call; call the tool again.") from None
        except McpConnectionLost as lost:
            await self._drop_connection(connection, str(lost))
            raise self._lost(call) from None
        self._failures = 0
        return to_result(call, answer, self.server.name)

    def _offer(self, call: Call) -> OfferedTool:
        offered = self._offers.get(call.name)
        if offered is None:
            raise ToolFailure(ErrorKind.NOT_FOUND, tool_not_found(call.name, self._offers))
        if offered.tool.parameters != call.tool.parameters:
            text = f"Error: Tool {call.name!r} has changed since it was offered; call it again."
            raise ToolFailure(ErrorKind.CONFLICT, text)
        return offered

    async def _connected(self) -> McpConnection:
        """The current connection, or a new one; concurrent callers share one attempt."""
        if self._closed:
            raise self._offline("It was closed.")
        connection = self._connection
        if connection is not None and connection.alive:
            return connection
        if self._connecting is None or self._connecting.done():
            if connection is not None:
                self._give_up(connection, connection.why())
            wait = self._not_before - asyncio.get_running_loop().time()
            if wait > 0:
                raise self._offline(f"The next attempt is in {wait:.0f}s.")
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(mark_retrieved)
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> McpConnection:
        try:
            # Imported only here: the SDK is an optional dependency.
            from evoclaw.executors.mcp.connection import McpConnection, McpUnreachable
        except ImportError as missing:
            raise ConfigError(
                f"MCP support is not installed ({missing}); run: pip install 'evoclaw[mcp]'"
            ) from None
        try:
            auth = self._auth()
        except ConfigError as problem:  # a secret that cannot be read: only this server is unusable
            self._note_failure(str(problem), "")
            raise self._offline("Continue without it or explain to the user.") from None
        connection = McpConnection(self.server, self.list_again, auth)
        try:
            await connection.open()
            await self._list(connection)
            self._connection, self._reason, self.problem = connection, "", ""
        except McpUnreachable as problem:
            self._note_failure(str(problem), connection.last_words)
            raise self._offline("Continue without it or explain to the user.") from None
        finally:
            if self._connection is not connection:
                await connection.close()
        return connection

    def _auth(self) -> McpAuth | None:
        from evoclaw.executors.mcp.oauth import oauth_client

        if self._sign_ins is None or not self.server.url:
            return None
        return oauth_client(self.server, self._sign_ins, self._prompt)

    async def _list(self, connection: McpConnection) -> None:
        from evoclaw.executors.mcp.connection import McpUnreachable

        try:
            listed = await connection.list()
        except McpUnreachable as problem:
            if self._connection is not connection:
                raise
            await self._drop_connection(connection, str(problem))
            raise self._offline("Continue without it or explain to the user.") from None
        offers, self.left_out = choose(listed, self._terms, self._pins)
        found = {offer.tool.name: offer for offer in offers}
        if found != self._offers:
            self._tools = Toolset(offer.tool for offer in offers)
            self._offers = found

    def try_again(self) -> None:
        """Connect without further delay: a person has signed in."""
        self._failures, self._not_before = 0, 0.0

    def list_again(self) -> None:
        """List the tools again soon, at a limited rate: the server or an approval changed."""
        if not self._closed and (self._listing is None or self._listing.done()):
            self._listing = asyncio.create_task(self._list_soon())
            self._listing.add_done_callback(mark_retrieved)

    async def _list_soon(self) -> None:
        await asyncio.sleep(MIN_LIST_INTERVAL_S)
        connection = self._connection
        if connection is not None and connection.alive:
            with suppress(ToolFailure):
                await self._list(connection)

    async def _drop_connection(self, connection: McpConnection, reason: str) -> None:
        """Close an unusable connection, and wait until it has ended."""
        self._give_up(connection, reason)
        await connection.close()

    def _give_up(self, connection: McpConnection, reason: str) -> None:
        if self._connection is connection:
            self._connection = None
            self._note_failure(reason, connection.last_words)
            self._old = [connection for connection in self._old if not connection.ended] + [
                connection
            ]

    def _note_failure(self, reason: str, last_words: str) -> None:
        # No delay after the first failure: usually the server was only restarted.
        delay = min(MAX_RECONNECT_DELAY_S, 2.0 ** (self._failures - 1)) if self._failures else 0.0
        self._failures += 1
        self._not_before = asyncio.get_running_loop().time() + delay
        self._reason = reason
        self.problem = f"{reason}; its last output: {last_words}" if last_words else reason

    def _offline(self, what_now: str) -> ToolFailure:
        why = f" ({self._reason})" if self._reason else ""
        return ToolFailure(
            ErrorKind.AGENT_OFFLINE,
            f"Error: The MCP server {self.server.name!r} is unreachable{why}. {what_now}",
            mcp_server=self.server.name,
        )

    def _not_signed_in(self) -> ToolFailure:
        return ToolFailure(
            ErrorKind.PERMISSION_DENIED,
            f"Error: The MCP server {self.server.name!r} did not run this call: {self._reason}. "
            "Tell the user, and continue without it.",
            mcp_server=self.server.name,
        )

    def _lost(self, call: Call) -> ToolFailure:
        if call.safe_to_repeat:
            return self._offline(
                "It disconnected during the call; call the tool again if it is still needed."
            )
        return ToolFailure(
            ErrorKind.UNKNOWN,
            f"Error: The MCP server {self.server.name!r} disconnected ({self._reason}) while "
            f"{call.name!r} ran; it may have happened.\n"
            "It was not run again. Look first, then decide, or ask the user.",
            mcp_server=self.server.name,
        )
