"""A call of a tool that does nothing through the official MCP SDK, over HTTP to another process.

It is how others reach a tool on another machine: nothing is journaled, and a call that is cut off
may have happened or not. Run as a program, it is the server: `python -m bench.fleet.mcp_roundtrip PORT`.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from mcp import Client
from tests.support.ports import free_port

BODY = "x" * 500
TRIES = 100


def serve(port: int) -> None:
    """Offer the tool until killed."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("bench", log_level="ERROR")

    @server.tool()
    async def nothing(text: str) -> str:
        """Do nothing."""
        return text

    server.run("streamable-http", port=port, json_response=True, stateless_http=True)


@contextmanager
def server() -> Iterator[int]:
    """The server, while the block runs; its port."""
    port = free_port()
    argv = [sys.executable, "-m", "bench.fleet.mcp_roundtrip", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield port
        finally:
            process.kill()


@asynccontextmanager
async def calling() -> AsyncGenerator[Callable[[], Awaitable[None]]]:
    """A way to make a call, while the server runs."""
    with server() as port:
        await _answers(port)
        async with Client(f"http://127.0.0.1:{port}/mcp", read_timeout_seconds=30) as client:

            async def trip() -> None:
                result = await client.call_tool("nothing", {"text": BODY})
                assert not result.is_error, result

            yield trip


async def _answers(port: int) -> None:
    for _ in range(TRIES):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise SystemExit("the MCP server does not answer")


if __name__ == "__main__":
    serve(int(sys.argv[1]))
