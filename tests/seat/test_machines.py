"""Which machine acts, and that the user is told."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from evoclaw.cli import exits
from tests.support.command_line import Typed
from tests.support.processes import alive_by_pid
from tests.support.seat import Seat, SeatEdge, seat
from tests.support.terminal import terminal
from tests.support.up_process import PATIENCE, SETTINGS, ok, start_run, wait_for_state
from tests.support.waiting import until

READ_NOTE = 'call read {"path": "note.txt"}\nsay I read it.'
WORK_FOR_LONG = 'call bash {"command": "touch started; sleep 600", "timeout_ms": 60000}\nsay Done.'
SUPERVISED = SETTINGS.replace('autonomy = "full"', 'autonomy = "supervised"')
"""An agent that asks before it writes."""


HUMIDITY = '''
from evoclaw import tool


@tool("device", effect="read")
async def humidity() -> str:
    """Measure the humidity."""
    return "42 percent"
'''


def put_own_tool(edge: SeatEdge) -> None:
    """Give an edge a tool that no other edge has."""
    folder = edge.shell.home / ".evoclaw" / "tools"
    folder.mkdir()
    (folder / "humidity.py").write_text(HUMIDITY)
    (folder / "humidity.py").chmod(0o600)


def note_seen(place: Seat) -> str:
    """The last result that the model was shown."""
    messages = place.up.models.asked[-1].body["messages"]
    return str([message for message in messages if message["role"] == "tool"][-1]["content"])


def break_own_edge(place: Seat) -> None:
    """Kill the edge of `evoclaw up`, and damage its settings: it cannot be started again."""
    config = place.up.home / "edge" / "local" / "agent.toml"
    config.write_text("damaged")
    for pid in alive_by_pid(str(config)):
        os.kill(pid, signal.SIGKILL)


async def chat(place: Seat, text: str, *options: str) -> Typed:
    done = await place.type("chat", *options, stdin=f"{text}\n".encode())
    assert done.code == exits.OK, done.err
    return done


async def test_a_session_works_in_the_folder_of_up_unless_the_user_names_another_edge(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, edge=True) as place:
        client = await place.up.wait_ready()
        await place.wait_online("local")
        garage = await place.join("garage", toml='\n[tools]\ntools_path = "~/.evoclaw/tools"\n')
        put_own_tool(garage)
        await garage.start()
        await place.wait_online("garage")
        (garage.workspace / "note.txt").write_text("the garage")
        (place.up.workspace / "note.txt").write_text("the house")
        scripts = place.up.models.scripts
        scripts["what is in note.txt?"] = READ_NOTE
        scripts["write a file"] = 'call write {"path": "new.txt", "content": "hello"}\nsay Done.'
        scripts["measure and read"] = (
            'call humidity {} && call read {"path": "note.txt"}\nsay Done.'
        )
        scripts["look in the garage"] = (
            'call edge_call {"agent_id": "garage", "action": "read", '
            '"params": {"path": "note.txt"}}\nsay I read it.'
        )

        read = await chat(place, "what is in note.txt?")
        assert note_seen(place) == "the house"
        assert "▶ read on local path=" in read.err
        assert "✔ read on local: " in read.err
        wrote = await chat(place, "write a file")
        assert "▶ write on local " in wrote.err
        assert (place.up.workspace / "new.txt").read_text() == "hello"
        assert not (garage.workspace / "new.txt").exists()
        run_id = await start_run(client, "what is in note.txt?")
        await wait_for_state(client, run_id)
        assert note_seen(place) == "the house"

        # A tool that the default edge lacks runs elsewhere, and both sides are told.
        both = await chat(place, "measure and read")
        assert "▶ humidity on garage" in both.err and "✔ humidity on garage: " in both.err
        assert "✔ read on local: " in both.err
        shown = str(place.up.models.asked[-1].body["messages"])
        assert "42 percent" in shown
        assert "[This ran on garage, because local has no tool 'humidity'.]" in shown
        assert note_seen(place) == "the house", "the session did not move"

        asked = await chat(place, "look in the garage")
        assert note_seen(place) == "the garage"
        assert "▶ edge_call on garage " in asked.err
        moved = await chat(place, "what is in note.txt?", "--on", "garage", "--session", "there")
        assert note_seen(place) == "the garage"
        assert "▶ read on garage " in moved.err
        again = await chat(place, "what is in note.txt?", "--session", "there")
        assert "▶ read on garage " in again.err, "the session stays on the chosen edge"
        nowhere = await place.type("chat", "--on", "attic", stdin=b"what is in note.txt?\n")
        assert nowhere.code == exits.FAILED
        assert "'attic'" in nowhere.err
        assert "known edges: garage, local" in nowhere.err

        assert f"sessions work on local, in {place.up.workspace}" in place.up.output()
        shown = await place.type("runs", "show", run_id)
        assert "  read on local: ok" in shown.out
        logged = await place.type("logs", "--run", run_id)
        assert "read on local {" in logged.out
        audited = await place.type("logs")
        assert "read on local" in audited.out
        assert "edge_call on garage" in audited.out
        audit = ok(await client.get("/v1/audit?limit=1000"))["items"]
        assert {row["device"] for row in audit if row.get("tool") == "read"} == {"local", "garage"}
        receipts = await place.type("receipts")
        assert "local" in receipts.out
        assert "garage" in receipts.out


async def test_approvals_name_the_machine_and_a_dead_machine_is_waited_for_and_announced(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, SUPERVISED, edge=True) as place:
        await place.wait_online("local")
        garage = await place.add_edge("garage")
        (garage.workspace / "note.txt").write_text("the garage")
        (place.up.workspace / "note.txt").write_text("the house")
        scripts = place.up.models.scripts
        scripts["what is in note.txt?"] = READ_NOTE
        scripts["write a file"] = 'call write {"path": "new.txt", "content": "hello"}\nsay Done.'
        scripts["work for long"] = WORK_FOR_LONG
        async with terminal(place.up.shell, "chat") as user:
            await user.expect("tools run on local;")
            await user.send_line("write a file")
            assert "─ write on local wants to run ─" in await user.until("Allow?")
            user.type("a")
            await user.expect("completed")
            assert (place.up.workspace / "new.txt").exists()
            await user.send_line("/on garage")
            await user.expect("tools of this session now run on garage")
            await user.send_line("write a file")
            assert "─ write on garage wants to run ─" in await user.until("Allow?")
            waiting = await place.type("approvals")
            assert "write on garage" in waiting.out
            user.type("y")
            await user.expect("completed")
            assert (garage.workspace / "new.txt").exists()

            await user.send_line("work for long")
            assert "─ bash on garage wants to run ─" in await user.until("Allow?")
            user.type("y")
            await until((garage.workspace / "started").exists, PATIENCE, "the command runs")
            await garage.end(signal.SIGKILL)
            await user.expect("garage went offline; the call waits until ")
            await user.expect("Ctrl-C to give up")
            await user.interrupt("cancelled · ")

            await garage.start()
            await place.wait_online("garage")
            break_own_edge(place)
            await place.wait_offline("local")
            await user.send_line("/on default")
            await user.send_line("what is in note.txt?")
            await user.expect("▶ read on local ")
            await user.expect("local went offline; the call waits until ")
            await user.interrupt("cancelled · ")
            assert "▶ read on garage" not in user.seen


async def test_a_run_on_a_named_edge_reads_that_machines_file_and_says_when_it_dies(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path) as place:
        garage = await place.add_edge("garage")
        (garage.workspace / "note.txt").write_text("the garage")
        place.up.models.scripts["what is in note.txt?"] = READ_NOTE
        place.up.models.scripts["work for long"] = WORK_FOR_LONG
        ran = await place.type("run", "--on", "garage", "what is in note.txt?")
        assert ran.code == exits.OK, ran.err
        assert note_seen(place) == "the garage"
        assert "▶ read on garage " in ran.err
        async with terminal(
            place.up.shell, "run", "--yes", "--on", "garage", "work for long"
        ) as user:
            await until((garage.workspace / "started").exists, PATIENCE, "the command runs")
            assert garage.process is not None
            garage.process.send_signal(signal.SIGSTOP)  # as a power cut: the broker hears nothing
            await user.expect("garage went offline; the call waits until ")
            garage.process.send_signal(signal.SIGCONT)
            await user.expect("garage is online again")
            await garage.end(signal.SIGKILL)
            await user.expect("garage went offline; the call waits until ")
            await user.expect(" · Ctrl-C to give up")
            await user.interrupt("cancelled · ")
