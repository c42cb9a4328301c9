"""A tenant finds nothing of another tenant, and no path of the host, on any GET route."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from evoclaw.cli import exits
from evoclaw.core.messages import JSON
from tests.support.seat import Seat, seat
from tests.support.service import Client
from tests.support.up_process import ENDED, SETTINGS, ok, start_run, wait_for_state

pytestmark = pytest.mark.process
MARK = "zebra-of-tenant-a"
"""In everything that the operator's tenant stores."""
SUPERVISED = (
    SETTINGS
    + """
[[agents]]
id = "careful"
capabilities = ["*"]
autonomy = "supervised"
"""
)
WORKFLOW = """
[[steps]]
name = "sure"
kind = "approval"
message = "Go on?"
"""
SKILL = """---
name: packing
description: Packs boxes.
---
Use tape.
"""
STREAMS = ("/v1/events",)


async def test_no_get_route_shows_the_data_of_another_tenant_or_a_path_of_the_host(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, SUPERVISED) as here:
        ours = await here.up.wait_ready()
        garage = await here.add_edge("garage")
        skills = here.up.home / "skills"
        workflows = here.up.home / "workflows"
        workflows.mkdir(exist_ok=True)
        (workflows / "daily.toml").write_text(WORKFLOW)
        (skills / "packing").mkdir(parents=True)
        (skills / "packing" / "SKILL.md").write_text(SKILL)
        (skills / f"broken-{MARK}").mkdir()
        (skills / f"broken-{MARK}" / "SKILL.md").write_text("no front matter")
        ids = await _fill_tenant_a(here, ours)
        theirs = await _client_of_tenant_b(here, ours)
        assert MARK in (await ours.get("/v1/skills")).body.decode(), "the operator sees the problem"
        shown = ok(await theirs.get("/v1/skills"))
        assert [skill["name"] for skill in shown["items"]] == ["packing"], "its agents may read it"
        assert shown["items"][0]["digest"] == "" and shown["problems"] == []

        paths = ok(await ours.get("/openapi.json"))["paths"]
        walked = [path for path, methods in paths.items() if "get" in methods]
        assert len(walked) >= 35
        # Lists first: the audit of tenant B names the ids that it asked for itself.
        for path in sorted(walked, key=lambda path: "{" in path):
            names = re.findall(r"{(\w+)}", path)
            assert not set(names) - set(ids), f"give an id of tenant A for {path}"
            if path in STREAMS:
                continue
            real = path.format(**ids) + ("?query=zebra" if path == "/v1/memory" else "")
            answer = await theirs.get(real)
            # An answer may repeat what was asked for, as an unknown id.
            body = answer.body.decode(errors="replace")
            # Tenants share edges: the tool `edge_call` names them.
            edge = [] if path.startswith("/v1/tools") else ["garage"]
            for secret in (MARK, *edge, str(tmp_path), str(here.up.home), "/home/", "/root"):
                found = body.find(secret)
                assert found < 0, (real, answer.status, body[max(0, found - 500) : found + 300])
        await _watch_events_of_tenant_b(theirs, ours)
        await garage.end()


async def _fill_tenant_a(here: Seat, ours: Client) -> dict[str, str]:
    """One of everything; the ids for the parameters of paths."""
    scripts = here.up.models.scripts
    show = f'call canvas {{"action": "show", "content": "{MARK}"}}'
    scripts[f"look {MARK}"] = f'call bash {{"command": "echo {MARK}"}}\n{show}\nsay {MARK}'
    run = await start_run(ours, f"look {MARK}", title=MARK)
    ended = await wait_for_state(ours, run, ENDED)
    scripts[f"ask {MARK}"] = f'call bash {{"command": "touch {MARK}"}}\nsay done'
    waiting = await start_run(ours, f"ask {MARK}", agent="careful")
    await wait_for_state(ours, waiting, "waiting")
    (approval,) = ok(await ours.get("/v1/approvals"))["items"]
    started = await here.type("workflows", "start", "daily", "--json")
    assert started.code == exits.OK, started.err
    body = {"model": "careful", "input": f"say {MARK}"}
    response = ok(await ours.post("/v1/responses", body))
    stopped = await here.type("stop", "--tool", "image", "--reason", MARK)
    assert stopped.code == exits.OK, stopped.err
    return {
        "run_id": run,
        "response_id": response["id"],
        "other": waiting,
        "session_id": str(ended["session_id"]),
        "approval_id": str(approval["id"]),
        "workflow_id": str(json.loads(started.out)["id"]),
        "agent_id": "garage",
        "name": "packing",
        # Of genomes; only the operator's tenant has any.
        "number": "1",
        "id": "1",
        "rollout_id": "1",
    }


async def _client_of_tenant_b(here: Seat, ours: Client) -> Client:
    made = await here.type("token", "new", "--scope", "*", "--tenant", "b", "--user", "bob")
    assert made.code == exits.OK, made.err
    return Client(ours.http, ours.url, made.out.split()[-1])


async def _watch_events_of_tenant_b(theirs: Client, ours: Client) -> None:
    """Read the stream of tenant B until its own run shows; nothing of tenant A came before."""
    headers = {"Authorization": f"Bearer {theirs.token}"}
    seen = ""
    async with theirs.http.get(f"{theirs.url}/v1/events", headers=headers) as stream:
        assert stream.status == 200
        await start_run(ours, f"look {MARK}")
        mine: JSON = await start_run(theirs, "hello")
        async for line in stream.content:
            seen += line.decode()
            if mine in seen:
                break
    assert mine in seen and MARK not in seen and "garage" not in seen, seen
