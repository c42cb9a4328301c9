"""Resources and prompts of MCP servers are tools: approved, limited, untrusted like the others."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, ImageBlock, ToolResult
from evoclaw.core.tools import Call
from evoclaw.executors.mcp.executor import McpExecutor
from evoclaw.executors.mcp.offers import McpServer, NoPins, ToolPins
from evoclaw.executors.mcp.pins import PinFile
from tests.support import mcp_features
from tests.support.mcp_features import PICTURE
from tests.support.mcp_servers import command

pytestmark = pytest.mark.process
EXTRAS = {"x__list_resources", "x__read_resource", "x__get_prompt"}


@asynccontextmanager
async def features(pins: ToolPins | None = None) -> AsyncGenerator[McpExecutor]:
    server = McpServer("x", command=(sys.executable, str(mcp_features.__file__)))
    async with asyncio.timeout(60), McpExecutor(server, pins or NoPins()) as executor:
        assert not executor.problem
        yield executor


async def ask(executor: McpExecutor, tool_name: str, /, **arguments: object) -> ToolResult:
    found = next(tool for tool in executor.tools() if tool.name == f"x__{tool_name}")
    call = Call("c1", found, dict(arguments), "run.1.0.1", 20.0)
    return await executor.execute(call, lambda text: None)


async def test_resources_and_templates_are_listed_and_read() -> None:
    async with features() as executor:
        listed = await ask(executor, "list_resources")
        shopping = await ask(executor, "read_resource", uri="list://shopping")
        note = await ask(executor, "read_resource", uri="note://monday")
        lake = await ask(executor, "read_resource", uri="image://lake")
        with pytest.raises(ToolFailure) as missing:
            await ask(executor, "read_resource", uri="list://nothing")

    assert "list://shopping (text/plain) What to buy." in listed.text.splitlines()
    assert "note://{name} (text/plain) A note by its name." in listed.text.splitlines()
    assert shopping.text.endswith("bread, milk") and note.text.endswith("the note monday")
    assert lake.blocks == (ImageBlock("image/png", PICTURE),)
    assert missing.value.kind in (ErrorKind.EXECUTION_FAILED, ErrorKind.INVALID_PARAMS)


async def test_prompts_are_listed_and_filled() -> None:
    async with features() as executor:
        listed = await ask(executor, "get_prompt")
        recipe = await ask(executor, "get_prompt", name="recipe", arguments={"dish": "soup"})

    assert "recipe(dish) How to cook a dish." in listed.text.splitlines()
    assert recipe.text.splitlines() == ["[user]", "Explain how to cook soup."]


async def test_resources_and_prompts_wait_for_an_approval_as_tools_do(tmp_path: Path) -> None:
    pins = PinFile(tmp_path / "pins.json")
    async with features(pins) as executor:
        offered = executor.tools()
        waiting = {left.name for left in executor.left_out if left.digest}

    assert not offered and waiting >= EXTRAS


async def test_a_server_without_resources_has_no_tools_for_them(tmp_path: Path) -> None:
    server = McpServer("x", command=command("plain", tmp_path))
    async with asyncio.timeout(60), McpExecutor(server, NoPins()) as executor:
        names = {tool.name for tool in executor.tools()}

    assert names and not names & EXTRAS
