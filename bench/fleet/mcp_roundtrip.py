"""A call of a no-op tool through the official MCP SDK, over HTTP to another process.

This is a common way to reach a tool on another machine: nothing is journaled, and the outcome of an
interrupted call is unknown. `python -m bench.fleet.mcp_roundtrip PORT` runs the server.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from mcp import Client
from tests.support.ports import free_port

BODY = "x" * 500
CONNECT_ATTEMPTS = 100


def serve(port: int) -> None:
    """Serve the tool until killed."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("bench", log_level="ERROR")

    @server.tool()
    async def nothing(text: str) -> str:
        """Do nothing."""
        return text

    server.run("streamable-http", port=port, json_response=True, stateless_http=True)


@contextmanager
def server() -> Iterator[int]:
    """Run the server while the block runs; yields its port."""
    port = free_port()
    argv = [sys.executable, "-m", "bench.fleet.mcp_roundtrip", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield port
        finally:
            process.kill()


@asynccontextmanager
async def calling() -> AsyncGenerator[Callable[[], Awaitable[None]]]:
    """A function that makes a call, while the server runs."""
    with server() as port:
        await _wait_listening(port)
        async with Client(f"http://127.0.0.1:{port}/mcp", read_timeout_seconds=30) as client:

            async def trip() -> None:
                result = await client.call_tool("nothing", {"text": BODY})
                assert not result.is_error, result

            yield trip


async def _wait_listening(port: int) -> None:
    for _ in range(CONNECT_ATTEMPTS):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise SystemExit("the MCP server did not start listening within 10 s")


if __name__ == "__main__":
    serve(int(sys.argv[1]))
