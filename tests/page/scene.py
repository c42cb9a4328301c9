"""Something worth looking at: people who asked, machines that did it, and a call that waits."""

from __future__ import annotations

import json

from evoclaw.core.messages import JSON
from tests.page.house import SECOND, House
from tests.support.up_process import ok, start_run, wait_for_state

CHART = """<style>
body { font: 15px system-ui; margin: 24px } h1 { font-size: 18px }
.bar { background: #0b6470; color: #fff; padding: 6px 10px; margin: 6px 0; border-radius: 4px }
</style>
<div class="bar" style="width: 61%">local: 61 % of its disk</div>
<div class="bar" style="width: 23%">garden: 23 % of its disk</div>"""


def _on(edge: str, command: str) -> str:
    asked = {"agent_id": edge, "action": "bash", "params": {"command": command}}
    return f"call edge_call {json.dumps(asked)}"


def _call(tool: str, **arguments: JSON) -> str:
    return f"call {tool} {json.dumps(arguments)}"


HOW = "How are my two machines doing?"
WATER = "Water the tomatoes for ten seconds"
NOTES = "Which of my notes mention the pump?"
CHAOS = "Read the log of the greenhouse"
SCRIPTS = {
    HOW: "\n".join(
        (
            " && ".join(
                (
                    _on("local", "sleep 0.8; uptime; df -h / | tail -1"),
                    _on(SECOND, "sleep 1.3; uptime; df -h / | tail -1"),
                    _call("glob", pattern="**/*.md"),
                )
            ),
            _call("canvas", action="show", title="Disks", content=CHART),
            "say Both machines are up. `local` has used 61 % of its disk and `garden` 23 %; "
            "neither is under load. I put a chart beside this. Shall I clean the build folder "
            "on `local`?",
        )
    ),
    WATER: "\n".join(
        (
            _on(SECOND, "echo valve open; sleep 0.2; echo valve shut"),
            "say Done: the valve was open for ten seconds.",
        )
    ),
    NOTES: "\n".join(
        (
            _call("grep", pattern="pump"),
            _call("read", path="notes/pump.md"),
            "say One note does: `notes/pump.md`. It says that the pump needs a new seal.",
        )
    ),
    CHAOS: "\n".join(
        (
            _call("read", path="greenhouse.log"),
            _call("read", path="notes/greenhouse.md"),
            "say There is no such log yet, but your notes say that the greenhouse reports to "
            "`notes/greenhouse.md` at night.",
        )
    ),
}

EVENING = """description = "Check the greenhouse and report what needs attention."
output = "{{ steps.look.output.text }}"

[inputs.place]
description = "where to look"
default = "the greenhouse"

[schedule]
cron = "0 20 * * *"
timezone = "Europe/Berlin"

[[steps]]
name = "look"
kind = "agent"
agent = "evoclaw"
message = "say All is well in {{ inputs.place }}."

[[steps]]
name = "water"
kind = "approval"
message = "Water the tomatoes tonight?"
"""


async def play(house: House) -> dict[str, str]:
    """Have all of it asked; by what was asked, the run's id. The last one waits for a person."""
    house.up.models.scripts.update(SCRIPTS)
    (house.up.home / "workflows").mkdir(exist_ok=True)
    (house.up.home / "workflows" / "evening.toml").write_text(EVENING)
    ok(await house.client.post("/v1/workflows/evening/runs", {"inputs": {}}))
    await house.telegram.write("say The greenhouse is at 18 degrees.")
    await house.telegram.wait_sent(1)
    for workspace in (house.up.workspace, house.second.workspace):
        notes = workspace / "notes"
        notes.mkdir(exist_ok=True)
        (notes / "pump.md").write_text("The pump in the cellar needs a new seal.\n")
        (notes / "greenhouse.md").write_text("Reports are written here at night.\n")
    runs: dict[str, str] = {}
    for asked in (NOTES, CHAOS, HOW):
        runs[asked] = await start_run(house.client, asked, agent="evoclaw")
        await wait_for_state(house.client, runs[asked])
    runs[WATER] = await start_run(house.client, WATER, agent="careful")
    await wait_for_state(house.client, runs[WATER], "waiting")
    return runs


async def session_of(house: House, run_id: str) -> str:
    """The session that a run is in."""
    return str(ok(await house.client.get(f"/v1/runs/{run_id}"))["session_id"])
