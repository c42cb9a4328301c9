"""`McpConnection`: one connection to an MCP server; the only file that uses the official SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import httpx2
from mcp import Client, types
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from evoclaw.core.eager import mark_retrieved
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call
from evoclaw.core.version import VERSION
from evoclaw.executors.mcp.elicitation import AskPerson
from evoclaw.executors.mcp.mcp_calls import CallClock, McpToolCall, TasksExtension
from evoclaw.executors.mcp.oauth import McpAuth
from evoclaw.executors.mcp.offers import (
    MAX_NOTE_CHARS,
    MAX_SERVER_TOOLS,
    ListedTool,
    McpServer,
    OfferedTool,
    one_line,
)
from evoclaw.executors.mcp.process import ServerProcess
from evoclaw.executors.mcp.resources import extra_tools

MAX_MESSAGE_BYTES = 10 << 20
"""Bytes of one message: an image of 5 MB, and then some."""
MAX_LIST_PAGES = 50
"""Pages of a list of tools."""
CLOSE_TIMEOUT_S = 15.0
"""How long a connection may take to close."""
_LOST = ("Connection closed", "SSE stream")
"""Messages by which the SDK reports a lost connection, under a code with many meanings."""


class McpConnectionLost(Exception):
    """The connection ended before the answer came: the outcome of the call is unknown."""


class CallNotRun(Exception):
    """The server has dropped the session, so it did not run the call."""


class CallNotAllowed(Exception):
    """The server did not run the call: it wants a sign-in. The message says what to do."""


class McpUnreachable(Exception):
    """The server cannot be reached; the message says why, in one line."""


class McpConnection:
    """One connection, in its own task as the SDK requires."""

    def __init__(
        self, server: McpServer, on_change: Callable[[], None], auth: McpAuth | None = None
    ) -> None:
        self._server, self._on_change, self._auth = server, on_change, auth
        self._ready, self._over = asyncio.Event(), asyncio.Event()
        self._client: Client | None = None
        self._calls: list[McpToolCall] = []
        self._process: ServerProcess | None = None
        self._living: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether it can be used, as far as known."""
        return self._ready.is_set() and not self._over.is_set() and not self.ended

    @property
    def ended(self) -> bool:
        """Whether its task has ended."""
        return self._living is None or self._living.done()

    async def open(self) -> None:
        """Connect and negotiate the version; `McpUnreachable` if that fails or takes too long."""
        self._living = asyncio.create_task(self._live(), name=f"mcp {self._server.name}")
        self._living.add_done_callback(mark_retrieved)
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait(
                (self._living, ready),
                timeout=self._server.start_timeout,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            ready.cancel()
            if not self.alive:
                await self.close()
        if not self.alive:
            raise McpUnreachable(self.why())

    async def close(self) -> None:
        """Close it, and end everything the server started."""
        self._over.set()
        if self._living is None:
            return
        if not self._ready.is_set():
            self._living.cancel()
        await asyncio.wait([self._living], timeout=CLOSE_TIMEOUT_S)
        if not self._living.done():
            self._living.cancel()
            await asyncio.wait([self._living], timeout=CLOSE_TIMEOUT_S)

    def why(self) -> str:
        """Why the server is not connected, in one line."""
        process, task = self._process, self._living
        reason = process.fault if process is not None else ""
        if self._auth is not None:
            reason = self._auth.problem
        if not reason and task is not None and task.done() and not task.cancelled():
            reason = _told(task.exception())
        if not reason:
            waited = f"it did not answer within {self._server.start_timeout:g}s"
            reason = "the connection ended" if self._ready.is_set() else waited
        return one_line(reason, MAX_NOTE_CHARS)

    @property
    def last_words(self) -> str:
        """The end of the server's stderr: for people, never for the model."""
        return one_line(self._process.last_words, MAX_NOTE_CHARS) if self._process else ""

    async def _live(self) -> None:
        client = Client(
            self._transport(),
            mode="auto",
            read_timeout_seconds=self._server.start_timeout,
            message_handler=self._heard,
            elicitation_callback=self._elicit,
            extensions=[TasksExtension()],
            client_info=types.Implementation(name="evoclaw", version=VERSION),
            cache=None,
        )
        async with client:
            self._client = client
            self._ready.set()
            await self._over.wait()

    def _transport(self) -> AbstractAsyncContextManager[Any]:
        server = self._server
        if not server.command:
            return _http(server, self._auth)
        self._process = ServerProcess(
            server.command, server.env, server.cwd, MAX_MESSAGE_BYTES, self._over.set
        )
        return self._process.streams()

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._on_change()

    async def list(self) -> list[ListedTool]:
        """Every tool of the server, page by page; `McpUnreachable` if listing fails."""
        assert self._client is not None
        found: list[ListedTool] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(self._server.start_timeout):
                for _ in range(MAX_LIST_PAGES):
                    page = await self._client.list_tools(cursor=cursor)
                    found += map(_listed, page.tools)
                    cursor = page.next_cursor
                    if cursor is None or len(found) > MAX_SERVER_TOOLS:
                        break
                able = self._client.server_capabilities
                found += await extra_tools(self._client.session, able, found)
        except (MCPError, ValidationError, TimeoutError) as problem:
            reason = str(problem).partition("\n")[0] or "it took too long"
            why = self.why() if not self.alive else one_line(reason, MAX_NOTE_CHARS)
            raise McpUnreachable(f"it does not list its tools: {why}") from None
        return found

    async def call(
        self,
        tool: OfferedTool,
        call: Call,
        progress: Progress,
        person: AskPerson | None = None,
    ) -> types.CallToolResult:
        """Call a tool. On cancellation or timeout the server is notified to stop.

        Does not use the SDK's `call_tool`: it checks answers against the server's own schema with
        a validator whose patterns can run forever.
        """
        assert self._client is not None
        clock = CallClock(call.timeout)
        # The same for all attempts of the call, as are its questions.
        call_id = call.request_id.rpartition(".")[0] or call.request_id
        request = McpToolCall(self._server.name, call_id, clock, progress, person)
        self._calls.append(request)
        session = self._client.session
        try:
            async with clock.running():
                return await request.send(session, tool, call.arguments)
        except MCPError as problem:
            raise self._worded(problem, call.timeout) from None
        except TimeoutError:
            timed_out = MCPError(types.REQUEST_TIMEOUT, "")
            raise self._worded(timed_out, call.timeout) from None
        except ValidationError:
            raise ToolFailure(
                ErrorKind.EXECUTION_FAILED,
                f"Error: The MCP server {self._server.name!r} sent an invalid answer. The "
                "call may still have happened; check before you repeat it.",
            ) from None
        finally:
            self._calls.remove(request)

    async def _elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        """Answer a question of the server: the call that it belongs to must be certain."""
        if len(self._calls) != 1:
            return types.ElicitResult(action="decline")
        return await self._calls[0].elicit(params)

    def _worded(self, problem: MCPError, timeout: float) -> Exception:
        message, name = one_line(problem.message, MAX_NOTE_CHARS), self._server.name
        if self._auth is not None and self._auth.problem:
            return CallNotAllowed(self._auth.problem)
        match problem.code:
            case types.CONNECTION_CLOSED if not self.alive or message.startswith(_LOST):
                return McpConnectionLost(self.why() if not self.alive else message)
            case types.INVALID_REQUEST if message == "Session terminated":
                return CallNotRun(message)
            case types.REQUEST_TIMEOUT:
                kind, text = ErrorKind.TIMEOUT, f"did not answer within {timeout:g}s"
            case types.INVALID_PARAMS:
                kind, text = ErrorKind.INVALID_PARAMS, f"refused the arguments: {message}"
            case types.METHOD_NOT_FOUND:
                kind, text = ErrorKind.NOT_FOUND, f"no longer has this tool: {message}"
            case _:
                kind, text = ErrorKind.EXECUTION_FAILED, f"answered with an error: {message}"
        return ToolFailure(kind, f"Error: The MCP server {name!r} {text}", mcp_server=name)


def _listed(tool: types.Tool) -> ListedTool:
    hints = tool.annotations
    return ListedTool(
        tool.name,
        tool.description or tool.title or "",
        tool.input_schema,
        tool.output_schema,
        {} if hints is None else hints.model_dump(by_alias=True, exclude_none=True),
        (tool.execution.task_support or "") if tool.execution is not None else "",
    )


def _told(problem: BaseException | None) -> str:
    """The innermost exception: task groups wrap it."""
    while isinstance(problem, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", problem)
        problem = group.exceptions[0]
    if problem is None:
        return ""
    return str(problem) or type(problem).__name__


@asynccontextmanager
async def _http(server: McpServer, auth: McpAuth | None) -> AsyncGenerator[Any]:
    client = httpx2.AsyncClient(
        headers={"accept-encoding": "identity", **server.headers},
        timeout=httpx2.Timeout(server.start_timeout, read=server.max_timeout + CLOSE_TIMEOUT_S),
        event_hooks={"response": [_bound]},
        auth=auth,
        trust_env=False,
    )
    async with (
        client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
        ) as streams,
    ):
        yield streams


async def _bound(response: httpx2.Response) -> None:
    """Limit the size of an answer; in an event stream each event has its own limit."""
    kind = response.headers.get("content-type", "")
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)
    if response.headers.get("content-encoding", "identity") != "identity":
        await stream.aclose()
        raise httpx2.DecodingError(
            "compressed although no compression was accepted", request=response.request
        )
    if not kind.lower().startswith("text/event-stream"):
        response.stream = _Bounded(stream)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        remaining = MAX_MESSAGE_BYTES
        async for chunk in self._inner:
            remaining -= len(chunk)
            if remaining < 0:
                raise httpx2.StreamError(f"an answer longer than {MAX_MESSAGE_BYTES:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
