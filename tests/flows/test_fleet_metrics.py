"""Figures through the whole house: calls on a real edge, sub-runs, and the same with nobody up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evoclaw.core.messages import JSON
from tests.support.up_process import SETTINGS, ok, start_run, up_process, wait_for_state

AGENTS = """
[[agents]]
id = "coder"
capabilities = ["*"]
autonomy = "full"
"""
SIDE = 'call read {"path": "nothing.txt"} && call read {"path": "none.txt"}'
WORK = f"""\
{SIDE}
call bash {{"command": "sleep 0.2"}}
call edge_call {{"agent_id": "local", "action": "bash", "params": {{"command": "echo hi"}}}}
call edge_call {{"agent_id": "*", "action": "bash", "params": {{"command": "echo all"}}}}
call task {{"agent": "coder", "prompt": "say hello"}}
say done"""


def by_tool(found: JSON) -> dict[str, Any]:
    return {tool["tool"]: tool for tool in found["tools"]}


@pytest.mark.slow
async def test_fleet_metrics_are_available_while_the_service_is_down(tmp_path: Path) -> None:
    async with up_process(tmp_path) as up:
        up.configure(SETTINGS + AGENTS)
        owner = await up.start(edge=True)
        await up.wait_online(owner)
        await wait_for_state(owner, await start_run(owner, WORK))
        found = ok(await owner.get("/v1/figures"))
        delegated = ok(await owner.get("/v1/fleet/delegations"))["items"]
        await up.stop()
        alone = await up.shell.type("metrics", "--tools", "--json")
        assert alone.code == 0, alone.err
    tools, requests = by_tool(found), found["requests"]
    assert {name: tool["calls"] for name, tool in tools.items()} == {
        "read": 2,
        "edge_call": 2,
        "bash": 1,
        "task": 1,
    }
    assert tools["bash"]["p50_ms"] >= 200 and tools["read"]["errors"] == {"not_found": 2}
    assert (requests["count"], requests["iterations"]["avg"]) == (1, 6)
    assert (requests["failed_calls"], requests["recovery_rate"]) == (2, 1.0)
    assert requests["saved_seconds"] > 0, "two were read side by side"
    assert requests["tokens_in"] == 70, "six replies, and one of the sub-run"
    told = {(one["source"], one["target"], one["kind"]): one for one in delegated}
    assert told["evoclaw", "local", "edge"]["calls"] == 5
    assert told["evoclaw", "local", "edge"]["errors"] == 2
    assert told["evoclaw", "coder", "agent"]["calls"] == 1
    assert len(told) == 2
    later = json.loads(alone.out)
    assert (later["tools"], later["requests"]) == (found["tools"], found["requests"])
