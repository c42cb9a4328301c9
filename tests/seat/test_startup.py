"""What `evoclaw up` does not do before it answers: importing takes most of the CPU of a start."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.up_process import ok, up_process

UNUSED_LIBRARIES = frozenset(
    {
        "aiohttp",
        "anyio._backends._asyncio",
        "attr",
        "h11",
        "jsonschema_rs",
        "mcp",
        "opentelemetry.sdk",
        "prometheus_client",
        "psutil",
        "psycopg",
        "pydantic",
        "segno",
        "tree_sitter",
        "uvloop",
    }
)
"""Libraries that a start needs for nothing, although some of them are installed with others."""
MACHINE_TOOLS = frozenset(
    {"evoclaw.tools.git.reading", "evoclaw.tools.search", "evoclaw.tools.shell"}
)


async def test_up_answers_without_importing_what_only_later_requests_need(tmp_path: Path) -> None:
    async with up_process(tmp_path) as up:
        up.shell.env["PYTHONPROFILEIMPORTTIME"] = "1"
        up.configure()
        client = await up.start()
        assert ok(await client.get("/health/live"))
        imported = set(re.findall(r"^import time:.*\| +(\S+)$", up.output(), re.MULTILINE))
        assert "litestar" in imported
        assert imported & (UNUSED_LIBRARIES | MACHINE_TOOLS) == set()
