"""The tool list and the rates of an agent hold for the tools of edges behind `edge_call`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.seat import Seat, seat
from tests.support.up_process import SETTINGS, start_run, wait_for_state

AGENTS = """
[[agents]]
id = "reader"
capabilities = ["*"]
autonomy = "supervised"
tools = ["edge_call", "nodes", "read"]

[[agents]]
id = "lead"
capabilities = ["*"]
autonomy = "full"
tools = ["edge_call", "task"]

[[agents]]
id = "caller"
capabilities = ["*"]
autonomy = "full"

[rates.tools.bash]
per_minute = 1
"""


def on_garage(action: str, **params: str) -> str:
    arguments = {"agent_id": "garage", "action": action, "params": params}
    return f"call edge_call {json.dumps(arguments)}\n"


async def outcome(place: Seat, agent: str, text: str, script: str) -> list[str]:
    """What the model was told of each of its calls, in a run that nobody approves anything in."""
    place.up.models.scripts[text] = f"{script}say Done."
    client = await place.up.wait_ready()
    run_id = await start_run(client, text, agent=agent)
    await wait_for_state(client, run_id)
    return told_of_calls(place, text)


def told_of_calls(place: Seat, text: str) -> list[str]:
    """The results that the model saw in the run with this message."""
    *_, last = (asked for asked in place.up.models.asked if asked.said == text)
    messages = last.body["messages"]
    return [str(message["content"]) for message in messages if message["role"] == "tool"]


async def test_tool_lists_and_rates_see_the_tool_behind_edge_call(tmp_path: Path) -> None:
    async with seat(tmp_path, SETTINGS + AGENTS, edge=True) as place:
        garage = await place.add_edge("garage")
        (garage.workspace / "note.txt").write_text("the garage")
        run_bash = on_garage("bash", command="touch made")

        told = await outcome(place, "reader", "r1", on_garage("read", path="note.txt"))
        assert told == ["the garage"]
        (refused,) = await outcome(place, "reader", "r2", run_bash)
        assert "the tool 'bash' is not in the tool list of this agent" in refused
        what = {"action": "run", "node": "garage", "what": "bash", "params": {"command": "ls"}}
        (refused,) = await outcome(place, "reader", "r3", f"call nodes {json.dumps(what)}\n")
        assert "the tool 'bash' is not in the tool list" in refused
        (refused,) = await outcome(place, "reader", "r4", on_garage("no_such_tool"))
        assert "the tool 'no_such_tool' is not in the tool list" in refused

        # A sub-run of an agent without a list has the list of the run that started it.
        place.up.models.scripts["help"] = f"{run_bash}say I may not."
        brief = json.dumps({"agent": "caller", "prompt": "help"})
        await outcome(place, "lead", "l1", f"call task {brief}\n")
        (refused,) = told_of_calls(place, "help")
        assert "the tool 'bash' is not in the tool list" in refused
        assert not (garage.workspace / "made").exists()

        # Without a list, every tool of the edges; their rates count.
        told = await outcome(place, "caller", "c1", run_bash + run_bash)
        assert (garage.workspace / "made").exists()
        assert "bash was called too often (1 a minute)" in told[1]
