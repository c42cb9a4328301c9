"""What calls are judged by, shown and explained over HTTP; nothing of it leaves a trace."""

from __future__ import annotations

import asyncio
from pathlib import Path

from evoclaw.core.chain import Chain
from evoclaw.core.messages import JSON
from evoclaw.core.tools import Call
from evoclaw.governance.rate_limits import ProcessRateWindows, RateLimits
from evoclaw.tools.catalogue import load
from tests.support.service import AGENT, Client, running_service

RULES = """
[[rules]]
name = "no-curl"
then = "deny"
programs = ["curl"]
reason = "curl is not for you. Use webfetch."
for_people = "curl is forbidden here"
denies = ["curl x"]
"""


async def explained(client: Client, tool: str, level: str = "", **arguments: JSON) -> JSON:
    asked = {"tool": tool, "arguments": arguments, "level": level}
    answer = await client.post("/v1/policy/explain", asked)
    assert answer.status == 200, answer.body
    return answer.json


async def test_policy_rules_settings_and_pipelines_are_listed(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        found = (await (await up.client_with("tools:read")).get("/v1/policy")).json
    assert found["level"] == "supervised"
    assert "grounded" in found["presets"]
    names = {one["name"] for one in found["rules"]}
    assert len(names) > 5 and all(one["source"] == "shipped" for one in found["rules"])
    assert all(one["summary"] for one in found["rules"])
    assert found["settings"]["rules"]["unreadable"] == "ask"
    assert found["settings"]["flow"]["preset"] == "grounded"
    assert found["pipelines"].keys() == {"service", "edge"}
    first = next(step for step in found["pipelines"]["edge"] if step["stage"] == "before")
    assert first["name"] == "Stops" and first["does"].startswith("Denies")


async def test_a_verdict_is_explained_with_the_configured_rules(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(RULES)
    (tmp_path / "evoclaw.toml").write_text('[policy]\nrules = "own.toml"\noff = {glob = "broken"}')
    async with running_service(tmp_path) as up:
        root = await up.client_with("tools:read")
        (rule,) = (await root.get("/v1/policy")).json["rules"]
        assert (rule["name"], rule["source"]) == ("no-curl", "own.toml")
        curl = await explained(root, "bash", command="curl http://x/ > out")
        assert (curl["verdict"], curl["code"], curl["by"]) == (
            "deny",
            "rule:no-curl",
            "CommandRules",
        )
        assert curl["reason"] == "curl is forbidden here"
        assert curl["reason_for_model"].startswith("curl is not for you")
        assert curl["effects"]["programs"] and curl["effects"]["writes"] == ["/workspace/out"]
        off = await explained(root, "glob", pattern="*")
        assert (off["verdict"], off["by"], off["code"]) == ("deny", "ToolStatus", "tool_off")
        asked = await explained(root, "bash", command="date")
        assert (asked["verdict"], asked["by"]) == ("ask", "Autonomy")
        free = await explained(root, "bash", "full", command="date")
        assert (free["verdict"], free["by"], free["code"]) == ("allow", "", "")
        never = await explained(root, "bash", "read_only", command="date")
        assert (never["verdict"], never["code"]) == ("deny", "read_only")


async def test_an_explanation_has_every_policy_step_but_rate_limits(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as up:
        found = await explained(await up.client_with("tools:read"), "read", path="a.txt")
    assert [one["policy"] for one in found["steps"]] == [
        "Stops", "ToolStatus", "Recordable", "Autonomy", "Permissions", "CommandRules",
        "NetworkPolicy", "Flow",
    ]  # fmt: skip
    assert found["verdict"] == "allow"


async def test_every_call_of_a_stopped_agent_is_denied(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        root = await up.client_with("*")
        assert (await explained(root, "read", path="a"))["verdict"] == "allow"
        await root.post("/v1/stops", {"kind": "agent", "name": AGENT.name})
        found = await explained(root, "read", path="a")
        assert (found["verdict"], found["by"]) == ("deny", "Stops")


async def test_an_explanation_has_no_side_effects(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        judged = up.house.judged
        (rates,) = [one for one in judged.governance.guards if isinstance(one, RateLimits)]
        windows = rates.windows
        assert isinstance(windows, ProcessRateWindows)
        root = await up.client_with("tools:read")
        for _ in range(30):  # more than a burst
            await explained(root, "bash", command="rm -rf /")
        assert len(windows) == 0
        assert await up.house.approvals.waiting("local") == []
        assert await up.house.ledger.accounts("tenant:local") == []
        await asyncio.to_thread(up.house.audit.flush)
        records = await (await up.client_with("audit:read")).get("/v1/audit")
        assert records.json["items"] == []
        call = Call("1", load(("read",))[0].tool, {"path": "a"}, "r.1.0.1", 1.0)
        await Chain(judged.policies(AGENT)).judge(call)
        assert len(windows) == 1, "the same rates count what runs do"


async def test_only_the_operator_can_read_the_policy(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        far, weak = await up.client_with("*", tenant="acme"), await up.client_with("runs:read")
        for who in (far, weak):
            assert (await who.get("/v1/policy")).status == 403
            assert (await who.post("/v1/policy/explain", {"tool": "bash"})).status == 403
        root = await up.client_with("*")
        asked = [{"tool": "nonsense"}, {"tool": "bash", "agent": "nobody"}]
        assert [(await root.post("/v1/policy/explain", one)).status for one in asked] == [404, 404]
