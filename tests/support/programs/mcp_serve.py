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
from evoclaw.cli.main import parser
from evoclaw.cli.mcp import Door, Wanted, mcp
from evoclaw.core.chain import Chain
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.tools import ALL
from evoclaw.executors.files import LocalFiles
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.mcp.pins import PinFile
from evoclaw.executors.processes import LocalProcesses
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.governance.permissions import Permissions, PermittedTools
from evoclaw.tools.define import tool
from evoclaw.tools.sets import coding


@tool("shell")
async def shout() -> str:
    """Write where the wire was, and read from there."""
    os.write(1, b"stray\n")
    return f"read {os.read(0, 100)!r}"


class Local:
    """The tools of this machine."""

    async def mcp_over_stdio(self, wanted: Wanted, env: Mapping[str, str]) -> None:
        await serve_stdio(offered(wanted))

    @asynccontextmanager
    async def mcp_over_http(
        self, wanted: Wanted, door: Door, env: Mapping[str, str]
    ) -> AsyncGenerator[str]:
        served = serving_http(
            offered(wanted), host=door.host, port=door.port, token=door.token, names=door.names
        )
        async with served as url:
            yield url

    def mcp_pins(self, env: Mapping[str, str]) -> PinFile:
        raise NotImplementedError


def offered(wanted: Wanted) -> McpTools:
    held = frozenset({"file_read"} if wanted.level is Level.READ_ONLY else {ALL})
    files, processes = LocalFiles(wanted.workspace), LocalProcesses(wanted.workspace)
    local = LocalExecutor([*coding(), shout], files=files, exec=processes)
    executor = Pipeline([local], [PermittedTools(held)])
    policy = Chain((Permissions(held), Autonomy(wanted.level)))
    return McpTools(executor, policy, wanted.approver, capabilities=held)


if __name__ == "__main__":
    sys.exit(mcp(parser().parse_args(["mcp", "serve", *sys.argv[1:]]), Local()))
