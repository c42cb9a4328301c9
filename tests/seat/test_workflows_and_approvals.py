"""Workflows and approvals, as the person sees them who starts one and approves the other."""

from __future__ import annotations

import json
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evoclaw.cli import exits
from tests.support.seat import Seat, seat
from tests.support.service import Client
from tests.support.terminal import terminal
from tests.support.up_process import SETTINGS
from tests.support.waiting import until

SUPERVISED = """
[server]
requests_per_minute = 100000
burst = 10000
"""
"""The agent that exists without any configuration: it asks before it acts."""
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "workflows.md"


async def test_the_example_of_the_guide_goes_on_by_itself_after_an_approval(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, SUPERVISED, edge=True) as place:
        await place.wait_online("local")
        example = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0]
        assert "timeout_s = 30" in example
        # The person takes longer than the step may: their time does not count.
        add_workflow(place, "disk", example.replace("timeout_s = 30", "timeout_s = 5"))
        started = await place.type("workflows", "start", "disk", "limit=101", "--json")
        assert started.code == exits.OK, started.err
        id_ = json.loads(started.out)["id"]
        approval = await waiting_approval(place)
        await until(lambda: time.time() > approval["asked_at"] + 6, 30)
        done = await place.type("approvals", "approve", approval["id"])
        assert done.code == exits.OK, done.err
        await until_state(place, id_, "succeeded")


FLOW = """
[[steps]]
name = "mark"
kind = "tool"
tool = "bash"
arguments = {{ command = "echo {text} >> mark.txt" }}

[[steps]]
name = "sure"
kind = "approval"
message = "Go on?"
"""


async def test_a_step_is_approved_from_now_on_until_its_definition_changes(tmp_path: Path) -> None:
    async with seat(tmp_path, SUPERVISED, edge=True) as place:
        await place.wait_online("local")
        marks = place.up.workspace / "mark.txt"
        add_workflow(place, "daily", FLOW.format(text="one"))
        first = await start(place, "daily")
        approval = await waiting_approval(place)

        shown = await place.type("workflows", "approve", "daily", "mark")
        assert shown.code == exits.FAILED and "Repeat with --yes" in shown.err
        assert "echo one >> mark.txt" in shown.out and "until its definition changes" in shown.out
        for step in ("mark", "sure"):
            done = await place.type("workflows", "approve", "daily", step, "--yes")
            assert done.code == exits.OK and "approved by" in done.out, done.err
        await until_state(place, first, "succeeded")  # what waited continues, too
        shown = await place.type("approvals", "show", str(approval["id"]))
        assert "used" in shown.out

        second = await start(place, "daily")
        view = await until_state(place, second, "succeeded")
        assert marks.read_text() == "one\none\n"
        assert "approved for all runs" in str(view)

        add_workflow(place, "daily", FLOW.format(text="two"))
        third = await start(place, "daily")
        await waiting_approval(place, "two")
        assert marks.read_text() == "one\none\n"

        # One answer to the waiting call approves the step of the new definition.
        waiting = await waiting_approval(place, "two")
        shown = await place.type("approvals", "show", str(waiting["id"]))
        assert "approve --step would cover step 'mark' of workflow 'daily'" in shown.out
        done = await place.type("approvals", "approve", "--step", str(waiting["id"]))
        assert done.code == exits.OK, done.err
        await until_step(place, third, "sure", "waiting")
        fourth = await start(place, "daily")
        await until_step(place, fourth, "sure", "waiting")
        assert marks.read_text() == "one\none\ntwo\ntwo\n"

        listed = json.loads((await place.type("approvals", "--json")).out)
        standing = [row for row in listed if row["scope"]["tool"] == "bash"]
        assert len(standing) == 2
        for row in standing:
            done = await place.type("approvals", "deny", row["id"])
            assert "withdrawn" in done.out, done.err
        await start(place, "daily")
        await waiting_approval(place, "two")


async def test_looking_asks_nobody_and_always_is_narrow(tmp_path: Path) -> None:
    async with seat(tmp_path, SUPERVISED, edge=True) as place:
        await place.wait_online("local")
        scripts = place.up.models.scripts
        (place.up.workspace / "note.txt").write_text("tea at four")
        read = {"agent_id": "local", "action": "read", "params": {"path": "note.txt"}}
        write = {"agent_id": "local", "action": "write", "params": {"path": "x", "content": "1"}}
        show = {"action": "show", "content": "<b>tea</b>"}
        for said, *calls in (
            ("show it", ("canvas", show), ("nodes", {"action": "list"}), ("edge_call", read)),
            ("write it", ("edge_call", write)),
            ("look", ("bash", {"command": "ls"}), ("bash", {"command": "ls -a"})),
            ("change", ("bash", {"command": "ls; touch x"})),
        ):
            lines = [f"call {tool} {json.dumps(given)}" for tool, given in calls]
            scripts[said] = "\n".join([*lines, "say done"])

        ran = await place.type("chat", stdin=b"show it\n")
        assert ran.code == exits.OK, ran.err
        assert "✔ canvas on orchestrator: " in ran.err
        assert "tea at four" in str(place.up.models.asked[-1].body["messages"])
        ran = await place.type("chat", stdin=b"write it\n")
        assert ran.code == exits.WAITING
        waiting = await waiting_approval(place, "write")
        how = f"edge_call needs an approval: `evoclaw approvals approve {waiting['id']}` or deny"
        assert how in ran.out
        assert "approvals" not in ran.err and "answered" not in ran.err, "it is said once"
        assert "edge_call" in waiting["covers"] and "path `x` only" in waiting["covers"]

        async with terminal(place.up.shell, "chat") as seen:
            await seen.send_line("look")
            assert "commands that start with `ls`" in await seen.until("Allow?")
            seen.type("a")
            await seen.expect("done")  # `ls -a` asks nobody any more
            await seen.send_line("change")
            assert "exactly the command `ls; touch x`" in await seen.until("Allow?")
            seen.type("n")
            await seen.until("Why not?")
            seen.type("no\r")
            await seen.expect("done")
        assert not (place.up.workspace / "x").exists()

        for command in ("chat", "run"):
            binary = await place.type(command, stdin=b"hello\n\xff\xfe\x00\n"[6:])
            assert binary.code == exits.MISUSED, binary
            assert "is not UTF-8 text (byte 1)" in binary.err


async def test_a_restart_keeps_people_logged_in_and_an_open_chat_shows_the_rest(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, SETTINGS) as place:
        up = place.up
        owner = await up.wait_ready()
        token_file = up.home / "api.token"
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        up.models.scripts["count for me"] = "wait gate 8"
        async with terminal(up.shell, "chat") as seen:
            await seen.send_line("count for me")
            await seen.until("word3")
            await up.kill()
            await seen.expect("the service does not answer; reconnecting …")
            up.models.gates["gate"].set()
            await up.start()
            await seen.expect("word7")
            await seen.send_line("/quit")
            assert await seen.wait_exit() == exits.OK
        again = Client(owner.http, (await up.wait_ready()).url, owner.token)
        assert (await again.get("/v1/me")).status == 200, "the token from before is still valid"

        # A file that others could read is not trusted any more.
        await up.stop()
        token_file.chmod(0o644)
        fresh = await up.start()
        assert fresh.token != owner.token
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        assert (await Client(owner.http, fresh.url, owner.token).get("/v1/me")).status == 401

        wrong = await place.type("stop", "--agent", "evoclw")
        assert wrong.code == exits.MISUSED and "did you mean 'evoclaw'?" in wrong.err
        done = await place.type("stop", "--all", "--reason", "smoke in the lab")
        assert done.code == exits.OK, done.err
        notice = "EMERGENCY STOP: everything, by "
        for shown in (
            (await place.type("status")).out,
            (await place.type("chat", stdin=b"say hi\n")).err,
        ):
            first = shown.splitlines()[0]
            assert first.startswith(notice) and "smoke in the lab" in first, shown
            assert "`evoclaw stop --release --all`" in first
        before = len(up.output())
        await up.stop()
        assert (await place.type("status")).out.startswith(notice)
        await up.start()
        assert up.output()[before:].removeprefix("stopped\n").startswith(notice)
        assert (await place.type("stop", "--release", "--all")).code == exits.OK

        # The service has counted nothing since it started, but the run is stored.
        stored, started, live = (await place.type("metrics")).out.partition("since it started")
        assert started and "1 completed" in stored and "completed" not in live
        assert notice not in (await place.type("status")).out


async def start(place: Seat, name: str) -> str:
    started = await place.type("workflows", "start", name, "--json")
    assert started.code == exits.OK, started.err
    return json.loads(started.out)["id"]


def add_workflow(place: Seat, name: str, text: str) -> None:
    folder = place.up.home / "workflows"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.toml").write_text(text)


async def waiting_approval(place: Seat, text: str = "") -> dict[str, Any]:
    """The first call that waits for an approval, and has a text in its arguments."""
    found: list[dict[str, Any]] = []

    async def is_asked() -> bool:
        listed = json.loads((await place.type("approvals", "--json")).out)
        waiting = [row for row in listed if row["standing"] == "waiting"]
        found[:] = [row for row in waiting if text in str(row["arguments"])]
        return bool(found)

    await until(is_asked, 30, "a call waits for an approval")
    return found[0]


async def until_step(place: Seat, id_: str, name: str, state: str) -> None:
    """Wait until a step of a workflow is in a state."""
    await until_state(
        place,
        id_,
        f"{name} {state}",
        lambda seen: [name, state] in [[step["name"], step["state"]] for step in seen["steps"]],
    )


async def until_state(
    place: Seat, id_: str, state: str, fits: Callable[[dict[str, Any]], bool] | None = None
) -> dict[str, Any]:
    """Wait until a workflow is in a state; well before the next poll of a waiting step."""
    seen: dict[str, Any] = {}

    async def is_so() -> bool:
        seen.update(json.loads((await place.type("workflows", "show", id_, "--json")).out))
        return fits(seen) if fits else seen["state"] == state

    try:
        await until(is_so, 30)
    except AssertionError:
        raise AssertionError(f"the workflow is not {state}: {seen}") from None
    return seen
