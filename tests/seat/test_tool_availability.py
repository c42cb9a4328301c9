"""The table "where each tool can be used" of the reference, against what each surface offers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from evoclaw.cli import exits
from evoclaw.tools.availability import (
    MCP_TOOLS,
    OWN_TOOLS,
    SKILL_TOOLS,
    YES,
    Surface,
    availability,
)
from evoclaw.tools.catalogue import CATALOGUE
from tests.support import mcp_servers
from tests.support.seat import Seat, seat
from tests.support.service import Client
from tests.support.skills import write_tool_skill
from tests.support.up_process import PATIENCE, SETTINGS, ok, start_run, wait_for_state
from tests.support.waiting import until

WORKFLOW = """
[[steps]]
name = "only"
kind = "agent"
agent = "evoclaw"
message = "say workflow"
"""
MESSAGES = (
    {
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list"},
)


OWN = """
from evoclaw import tool


@tool("device", effect="read")
async def dice() -> int:
    '''Roll a dice.'''
    return 4
"""
ADDED = {SKILL_TOOLS: "weather", OWN_TOOLS: "dice", MCP_TOOLS: "plain__echo"}
"""One tool of each kind that users add."""


def names_shown(place: Seat, said: str) -> set[str]:
    """The tools that the model was shown with a message."""
    asked = [asked for asked in place.up.models.asked if asked.said == said]
    return {tool["function"]["name"] for tool in asked[-1].body.get("tools", ())}


async def names_over_mcp(place: Seat) -> set[str]:
    """The tools that an MCP client is offered."""
    serving = await place.up.shell.start("mcp", "serve", "--yes", stdin=asyncio.subprocess.PIPE)
    assert serving.stdin is not None
    assert serving.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            for message in MESSAGES:
                serving.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            seen = b""
            while not (answers := [line for line in seen.split(b"\n")[:-1] if b'"id":2' in line]):
                seen += await serving.stdout.read(1 << 16)
            serving.stdin.close()
            await serving.wait()
    finally:
        if serving.returncode is None:
            serving.kill()
    return {tool["name"] for tool in json.loads(answers[0])["result"]["tools"]}


def differences(surface: Surface, shown: set[str]) -> list[str]:
    """Where the table is wrong about a surface; conditions are not checked."""
    found: list[str] = []
    for row in (*CATALOGUE, *ADDED):
        name, says = ADDED.get(row, row), availability(row)
        on_edge = says[surface] == "yes, on an edge" and says[Surface.EDGE] == YES
        if says[surface].startswith("no:") and name in shown:
            found.append(f"{surface}: {name} is offered, the table says {says[surface]!r}")
        if (says[surface] == YES or on_edge) and name not in shown:
            found.append(f"{surface}: {name} is not offered, the table says {says[surface]!r}")
    return found


async def _is_offered(client: Client, names: set[str]) -> bool:
    return names <= {tool["name"] for tool in ok(await client.get("/v1/tools"))["items"]}


@pytest.mark.slow
async def test_every_surface_offers_the_tools_that_the_table_says(tmp_path: Path) -> None:
    command = json.dumps(mcp_servers.command("plain", tmp_path))
    settings = f'{SETTINGS}\n[[mcp]]\nname = "plain"\ncommand = {command}\n'
    async with seat(tmp_path, settings, edge=True) as place:
        for folder in ("workflows", "tools"):
            (place.up.home / folder).mkdir(mode=0o700)
        (place.up.home / "workflows" / "flow.toml").write_text(WORKFLOW)
        write_tool_skill(place.up.home / "skills", "one", "weather")
        (place.up.home / "tools" / "dice.py").write_text(OWN)
        (place.up.home / "tools" / "dice.py").chmod(0o600)
        client = await place.up.wait_ready()
        await place.up.wait_online(client)
        assert (await place.type("mcp", "approve", "plain")).code == exits.OK
        await until(lambda: _is_offered(client, set(ADDED.values())), PATIENCE, "all are offered")
        shown: dict[Surface, set[str]] = {}

        assert (await place.type("run", "--yes", "say run")).code == exits.OK
        shown[Surface.RUN] = names_shown(place, "say run")
        await wait_for_state(client, await start_run(client, "say service"))
        shown[Surface.SERVICE] = names_shown(place, "say service")
        shown[Surface.EDGE] = set(ok(await client.get("/v1/fleet/local"))["tools"])
        messages = [{"role": "user", "content": "say openai"}]
        ok(await client.post("/v1/chat/completions", {"model": "evoclaw", "messages": messages}))
        shown[Surface.OPENAI] = names_shown(place, "say openai")
        started = await place.type("workflows", "start", "flow")
        assert started.code == exits.OK, started.err
        await until(lambda: place.up.models.count("say workflow"), PATIENCE, "the step runs")
        shown[Surface.WORKFLOW] = names_shown(place, "say workflow")
        shown[Surface.MCP] = await names_over_mcp(place)

        assert not [
            problem for surface in Surface for problem in differences(surface, shown[surface])
        ]
