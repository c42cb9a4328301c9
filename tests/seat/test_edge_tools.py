"""Tools that an `agent.toml` gives to an edge: found, approved, called by a run, run there."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from evoclaw.cli import exits
from evoclaw.core.events import CallFinished, Record
from evoclaw.core.messages import ToolResult
from tests.seat.test_raspberry_pi import HOSTNAME
from tests.support import mcp_servers
from tests.support.seat import Seat, SeatEdge, seat
from tests.support.up_process import PATIENCE, SETTINGS, ok, start_run, wait_for_state
from tests.support.waiting import until

THREE_LINES = """#!/bin/sh
# Called as: bin/hello -- NAME
echo "Hello, $2, from $(basename "$EVOCLAW_SKILL")"
"""
MANIFEST = """
[[tools]]
name = "hello"
binary = "bin/hello"
description = "Greet a person."
args = { who = "positional" }

[tools.parameters]
required = ["who"]

[tools.parameters.properties.who]
type = "string"
"""
DICE = '''
from evoclaw import tool


@tool("device", effect="read")
async def dice(sides: int = 6) -> str:
    """Roll a dice."""
    return f"rolled one of {sides}"
'''


ISOLATED = '''
from evoclaw import tool


@tool("device", effect="read", isolated=True)
def reveal(path: str) -> str:
    """Read a file."""
    with open(path) as file:
        return file.read()
'''


def write_skill(folder: Path, program: str = THREE_LINES) -> None:
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "skill.toml").write_text(MANIFEST)
    (folder / "bin" / "hello").write_text(program)
    (folder / "bin" / "hello").chmod(0o755)


async def offered(place: Seat, edge: SeatEdge) -> set[str]:
    """The tools of an edge that the service may use."""
    client = await place.up.wait_ready()
    found = ok(await client.get(f"/v1/fleet/{edge.name}"))
    return set(found["tools"])


async def wait_offered(place: Seat, edge: SeatEdge, name: str, *, is_offered: bool = True) -> None:
    async def so() -> bool:
        return (name in await offered(place, edge)) is is_offered

    await until(so, PATIENCE, f"{name} is {'' if is_offered else 'not '}offered by {edge.name}")


async def call(place: Seat, tool: str, arguments: str) -> ToolResult:
    """Let a run of the service call a tool; its result."""
    said = f"please use {tool} with {arguments}"
    place.up.models.scripts[said] = f"call {tool} {arguments}\nsay done"
    client = await place.up.wait_ready()
    run_id = await start_run(client, said)
    await wait_for_state(client, run_id)
    lines = (await client.get(f"/v1/runs/{run_id}/records")).body.splitlines()
    events = [msgspec.json.decode(line, type=Record).event for line in lines]
    (finished,) = [event for event in events if isinstance(event, CallFinished)]
    return finished.result


@pytest.mark.slow
async def test_an_edge_offers_the_skills_own_tools_and_mcp_servers_of_its_agent_toml(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path) as place:
        command = str(list(mcp_servers.command("plain", tmp_path))).replace("'", '"')
        garage = await place.join(
            "garage",
            toml=f"""
[tools]
skills_path = "~/.evoclaw/skills"
tools_path = "~/.evoclaw/tools"

[[mcp]]
name = "plain"
command = {command}
""",
        )
        home = garage.shell.home / ".evoclaw"
        write_skill(home / "skills" / "hello")
        (home / "tools").mkdir()
        for name, text in (("dice.py", DICE), ("reveal.py", ISOLATED)):
            (home / "tools" / name).write_text(text)
            (home / "tools" / name).chmod(0o600)
        await garage.start()
        await place.wait_online("garage")
        for name in ("hello", "dice", "reveal", "bash"):
            await wait_offered(place, garage, name)

        # A skill of three lines of shell: run on the edge, in its sandbox, with a receipt.
        said = await call(place, "hello", '{"who": "Ada"}')
        assert said.text == "Hello, Ada, from hello"
        assert said.details["isolation"] != "none"
        assert said.details["receipt"]["state"] == "valid", said.details
        said = await call(place, "dice", '{"sides": 20}')
        assert said.text == "rolled one of 20"

        # An own tool with isolated=True: in a sandbox, which does not show the edge's settings.
        (garage.workspace / "note.txt").write_text("on the garage's disk")
        assert (await call(place, "reveal", '{"path": "note.txt"}')).text == "on the garage's disk"
        said = await call(place, "reveal", json.dumps({"path": str(garage.config)}))
        assert "No such file" in said.text
        assert said.details["isolation"] not in ("none", "pid-namespace")

        # The tools of a server: approved on the edge first, then in the service.
        assert "plain__echo" not in await offered(place, garage)
        await place.wait_for(garage, "approve with `evoclaw mcp approve garage/plain`")
        approved = await garage.shell.type("mcp", "approve", "garage/plain")
        assert approved.code == exits.OK, approved.err
        client = await place.up.wait_ready()

        async def is_pending() -> bool:
            found = ok(await client.get("/v1/fleet/garage"))
            return "plain__echo" in str(found.get("problem"))

        await until(is_pending, PATIENCE, "the service asks for an approval")
        status = await place.type("status")
        assert "new tools wait for `evoclaw edges approve garage`" in status.out, status.err
        assert (await place.type("edges", "approve", "garage")).code == exits.OK
        await wait_offered(place, garage, "plain__echo")
        assert "over there" in (await call(place, "plain__echo", '{"text": "over there"}')).text

        # An approved skill runs as it was approved, or not at all.
        added = await garage.shell.type("skills", "add", str(home / "skills" / "hello"))
        assert added.code == exits.OK, added.err
        write_skill(home / "skills" / "hello", THREE_LINES.replace("Hello", "Goodbye"))
        await wait_offered(place, garage, "hello", is_offered=False)
        await place.wait_for(garage, "it was changed after it was approved")
        assert "dice" in await offered(place, garage)


@pytest.mark.slow
async def test_the_programs_of_tools_paths_bin_run_the_tools_that_their_skill_declares(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path) as place:
        shed = await place.join(
            "shed", toml='\n[tools.paths]\nbin = "~/.evoclaw/skills/desktop-tools/bin"\n'
        )
        await shed.start()
        await place.wait_for(shed, "[tools.paths] bin")  # it says what is missing, and ends
        assert shed.process is not None
        assert await shed.process.wait() != exits.OK
        added = await shed.shell.type("skills", "add", "desktop-tools")
        assert added.code == exits.OK, added.err
        await shed.start()
        await place.wait_online("shed")
        names = await offered(place, shed)
        assert {"read", "bash", "git_status", "device"} <= names
        assert not {"question", "sessions_list", "canvas"} & names, "these need the orchestrator"
        (shed.workspace / ".git").mkdir()
        told = await call(place, "git_status", "{}")
        assert "stdout_bytes" not in told.details, "a tool that needs git settings stays built in"
        (shed.workspace / ".git").rmdir()

        command = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo made > made.txt"
        said = await call(place, "bash", json.dumps({"command": command}))
        assert "desktop-tools/bin/dt-bash" in said.text, said
        assert said.details["isolation"] != "none"
        assert said.details["receipt"]["state"] == "valid"
        assert (shed.workspace / "made.txt").read_text() == "made\n"
        assert "made" in (await call(place, "read", '{"path": "made.txt"}')).text
        told = await call(place, "read", '{"path": "/etc/hostname"}')
        assert HOSTNAME in told.text, told
        denied = await call(place, "read", '{"path": "../../device.key"}')
        assert denied.error, denied


FLEET_SETTINGS = (
    SETTINGS
    + """
[flow]
preset = "off"

[budget]
lines = 3
"""
)
MODEL = '\n[model]\nname = "vllm/qwen3-scripted"\n'


@pytest.mark.slow
async def test_the_model_of_an_edge_calls_other_edges_through_the_orchestrator(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, FLEET_SETTINGS) as place:
        for name in ("garage", "shed"):
            edge = await place.join(name, toml=MODEL)
            edge.shell.env.update(place.up.models.env)
            (edge.workspace / "note.txt").write_text(f"the note of the {name}")
            await edge.start()
            await place.wait_online(name)
        shed = place.edges["shed"]
        scripts = place.up.models.scripts

        def ask(agent_id: str, query: str) -> str:
            return json.dumps({"agent_id": agent_id, "query": query})

        def use(agent_id: str, action: str, **params: str) -> str:
            return json.dumps({"agent_id": agent_id, "action": action, "params": params})

        scripts["read it there"] = (
            f"call edge_call {use('shed', 'read', path='note.txt')}\nsay I had it read."
        )
        result = await call(place, "edge_call", ask("garage", "read it there"))
        assert result.text == "I had it read."
        (made,) = result.details["calls"]
        assert (made["agent"], made["outcome"], made["path"]) == ("shed", "ok", ["garage"])
        assert made["receipt"]["state"] == "valid"
        told = [asked for asked in place.up.models.asked if asked.said == "read it there"]
        assert "the note of the shed" in str(told[-1].body["messages"])

        # The same from a run outside the service.
        scripts["ask the garage"] = f"call edge_call {ask('garage', 'read it there')}\nsay Read."
        ran = await place.type("run", "--on", "*", "--yes", "ask the garage")
        assert ran.code == exits.OK, ran.err
        assert len([asked for asked in place.up.models.asked if asked.said == "read it there"]) == 4

        # One budget: three lines for the whole run, whoever writes them.
        scripts["write it there"] = (
            f"call edge_call {use('shed', 'write', path='a.txt', content=chr(10) * 2)}\n"
            f"call edge_call {use('shed', 'write', path='b.txt', content=chr(10) * 2)}\nsay Done."
        )
        result = await call(place, "edge_call", ask("garage", "write it there"))
        outcomes = [made["outcome"] for made in result.details["calls"]]
        assert outcomes == ["ok", "permission_denied"], result
        assert (shed.workspace / "a.txt").exists()
        assert not (shed.workspace / "b.txt").exists()

        # No edge twice on one path.
        scripts["pass it on"] = f"call edge_call {ask('shed', 'pass it back')}\nsay Passed on."
        scripts["pass it back"] = f"call edge_call {ask('garage', 'say hello')}\nsay No way."
        result = await call(place, "edge_call", ask("garage", "pass it on"))
        assert result.text == "Passed on."
        (made,) = result.details["calls"]
        assert (made["agent"], made["path"]) == ("shed", ["garage"])
        assert not any(asked.said == "say hello" for asked in place.up.models.asked)
