"""`evoclaw mcp serve` as a process, its runtime built here.

Start it with `python -m tests.support.programs.mcp_serve OPTIONS`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from evoclaw.api.mcp_http import serving_http
from evoclaw.api.mcp_server import McpTools
from evoclaw.api.mcp_stdio import serve_stdio
from evoclaw.cli.mcp import McpServeOptions, mcp, serve
from evoclaw.core.chain import Chain
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.tools import ALL_PERMISSIONS
from evoclaw.executors.files import LocalFiles
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.processes import LocalProcesses
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.governance.permissions import Permissions, PermittedTools
from evoclaw.tools.define import tool
from evoclaw.tools.sets import coding
from evoclaw.wiring.mcp_server import McpHttpOptions, McpServerOptions


@tool("shell")
async def shout() -> str:
    """Write where the wire was, and read from there."""
    os.write(1, b"stray\n")
    return f"read {os.read(0, 100)!r}"


async def over_stdio(wanted: McpServerOptions, env: Mapping[str, str]) -> None:
    """Serve the tools of this machine."""
    await serve_stdio(offered(wanted))


@asynccontextmanager
async def over_http(
    wanted: McpServerOptions, door: McpHttpOptions, env: Mapping[str, str]
) -> AsyncGenerator[str]:
    """The same over HTTP."""
    served = serving_http(
        offered(wanted), host=door.host, port=door.port, token=door.token, names=door.host_names
    )
    async with served as url:
        yield url


def offered(wanted: McpServerOptions) -> McpTools:
    held = frozenset({"file_read"} if wanted.level is Level.READ_ONLY else {ALL_PERMISSIONS})
    files, processes = LocalFiles(wanted.workspace), LocalProcesses(wanted.workspace)
    local = LocalExecutor([*coding(), shout], files=files, exec=processes)
    executor = Pipeline([local], [PermittedTools(held)])
    policy = Chain((Permissions(held), Autonomy(wanted.level)))
    return McpTools(executor, policy, wanted.approver)


def main(words: list[str]) -> int:
    """Read the options as `evoclaw mcp serve` does."""
    command = mcp.commands["serve"]
    with command.make_context("serve", words) as context:
        return serve(McpServeOptions(**context.params), over_stdio, over_http)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
