"""A llama.cpp server as users run it: no key, and the template and the defaults of the model."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

CONTEXT_TOKENS = 8192
_PROGRAM = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = sys.argv[1], int(sys.argv[2]), 1
params.hostnames, params.port, params.ui = ["127.0.0.1"], 0, False
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def llama_server(model: Path) -> AsyncGenerator[str]:
    """The address of a server of this file; it is stopped when the block ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", _PROGRAM, str(model), str(CONTEXT_TOKENS)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(120):
            address = (await process.stdout.readline()).decode().strip()
        yield address
    finally:
        process.kill()
        await process.wait()
