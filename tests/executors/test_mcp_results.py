"""Results of MCP tools are told to the model once, and never as base64 text."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from evoclaw.core.messages import ImageBlock, TextBlock, ToolResult
from evoclaw.core.tools import Call
from evoclaw.executors.mcp.executor import McpExecutor
from evoclaw.executors.mcp.offers import McpServer, NoPins
from tests.support import mcp_features
from tests.support.mcp_features import PICTURE

pytestmark = pytest.mark.process


@asynccontextmanager
async def features() -> AsyncGenerator[McpExecutor]:
    command = (sys.executable, str(mcp_features.__file__))
    async with (
        asyncio.timeout(60),
        McpExecutor(McpServer("x", command=command), NoPins()) as executor,
    ):
        assert not executor.problem
        yield executor


async def ask(executor: McpExecutor, name: str, **arguments: object) -> ToolResult:
    found = next(tool for tool in executor.tools() if tool.name == f"x__{name}")
    call = Call("c1", found, dict(arguments), "run.1.0.1", 20.0)
    return await executor.execute(call, lambda text: None)


async def test_a_picture_with_structured_content_is_shown_once_and_not_as_text() -> None:
    async with features() as executor:
        result = await ask(executor, "picture")

    assert result.blocks == (ImageBlock("image/png", PICTURE),)


async def test_a_picture_inside_json_is_shown_as_an_image_and_named_by_its_size() -> None:
    async with features() as executor:
        result = await ask(executor, "picture_in_json")

    assert [block for block in result.blocks if isinstance(block, ImageBlock)] == [
        ImageBlock("image/png", PICTURE)
    ]
    assert "a lake" in result.text and len(result.text) < 200
    assert "image/png, about 43,002 bytes: shown as an image" in result.text


async def test_other_base64_data_is_named_by_its_size() -> None:
    async with features() as executor:
        result = await ask(executor, "archive")

    assert "[base64 data, about 9,000 bytes: left out]" in result.text
    assert len(result.text) < 200


async def test_text_and_equal_structured_content_are_told_once() -> None:
    async with features() as executor:
        weather = await ask(executor, "weather", town="Bergen")
        towns = await ask(executor, "towns")

    assert len(weather.blocks) == 1 and weather.text.count("Bergen") == 1
    assert towns.blocks == (TextBlock("Bergen"), TextBlock("Oslo"))
