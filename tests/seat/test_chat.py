"""`evoclaw chat` at a real terminal, against a real service with a scripted model."""

from __future__ import annotations

import base64
from pathlib import Path

from evoclaw.cli import exits
from tests.support.seat import seat
from tests.support.terminal import terminal
from tests.support.up_process import SETTINGS, ok

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""One pixel."""
SUPERVISED = SETTINGS.replace('autonomy = "full"', 'autonomy = "supervised"')


async def test_a_person_works_reviews_an_edit_and_judges_the_answer(tmp_path: Path) -> None:
    async with seat(tmp_path, SUPERVISED, edge=True) as place:
        await place.wait_online("local")
        note = place.up.workspace / "note.txt"
        note.write_text("one\ntwo\n")
        place.up.models.scripts["change it"] = (
            'call edit {"path": "note.txt", "old_string": "two", "new_string": "three"}\n'
            "say **Changed** the note."
        )
        async with terminal(place.up.shell, "chat", "--session", "Notes", columns=72) as here:
            await here.until("on local")
            await here.send_line("change it")
            card = await here.until("Allow?")
            assert "─ edit on local wants to run ─" in card
            assert "-two" in card and "+three" in card
            assert note.read_text() == "one\ntwo\n"
            here.type("y")
            await here.expect("✔ edit on local")
            await here.expect("Changed the note.\n")
            assert note.read_text() == "one\nthree\n"
            await here.send_line("/cost")
            await here.expect("this session: 1 runs, 30 tokens")
            await here.send_line("/bad it should be four")
            await here.expect("rated the last answer as bad: it should be four")
            await here.send_line("/quit")
            assert await here.wait_exit() == exits.OK
        client = await place.up.wait_ready()
        (run,) = ok(await client.get("/v1/runs"))["items"]
        told = ok(await client.get(f"/v1/runs/{run['run_id']}/rating"))
        assert (told["verdict"], told["reason"]) == ("bad", "it should be four")
        async with terminal(place.up.shell, "chat", "--session", "Notes", columns=40) as here:
            screen = await here.until("ready")
            assert "> change it\nChanged the note.\n" in screen
            await here.until("ready · evoclaw")


async def test_a_person_edits_a_call_before_it_runs(tmp_path: Path) -> None:
    async with seat(tmp_path, SUPERVISED, edge=True) as place:
        await place.wait_online("local")
        work = place.up.workspace
        place.up.models.scripts["make it"] = 'call bash {"command": "touch first"}\nsay made it'
        place.up.models.scripts["read a key"] = 'call bash {"command": "touch x"}\nsay tried'
        async with terminal(place.up.shell, "chat", columns=90) as here:
            await here.until("on local")
            await here.send_line("make it")
            await here.until("[e]dit")
            here.type("e")
            await here.until("> touch first")
            here.type(" second\r")
            await here.expect("with the arguments that the user edited")
            await here.expect("made it")
            assert (work / "second").exists()
            await here.send_line("read a key")
            await here.until("[e]dit")
            here.type("e")
            await here.until("> touch x")
            here.type(" && cat ~/.ssh/id_rsa\r")
            await here.expect("denied")
            await here.expect("tried")
            assert not (work / "x").exists()
        told = str(place.up.models.asked[1].body["messages"])
        assert "The user edited this call before it ran" in told and "touch first second" in told
        audit = await place.type("logs", "--json")
        assert '"edited": true' in audit.out.replace('":true', '": true')


async def test_compact_continues_with_a_summary_and_keeps_the_whole_conversation(
    tmp_path: Path,
) -> None:
    long = "word " * 300 + "end"
    async with seat(tmp_path) as place:
        scripts = place.up.models.scripts
        scripts["tell me all"] = f"say {long}"
        scripts[f"user: tell me all\nassistant: {long}"] = "say they told each other all"
        async with terminal(place.up.shell, "chat", columns=90) as here:
            await here.send_line("/compact")
            await here.expect("this session has no messages yet")
            await here.send_line("tell me all")
            await here.expect("completed")
            await here.send_line("/compact")
            await here.expect("there is nothing to summarise yet")
            await here.send_line("say short")
            await here.expect("completed")
            await here.send_line("/compact")
            await here.expect("summarised: from about ")
            before = await here.expect(" to ")
            after = await here.expect(" tokens")
            assert int(after) < int(before.replace(",", "")) / 2
            await here.expect("the full conversation is still in")
            await here.send_line("say next")
            await here.expect("completed")
        client = await place.up.wait_ready()
        messages = place.up.models.asked[-1].body["messages"]
        said = [str(message["content"]) for message in messages if message["role"] != "system"]
        # A note about the last run may be stored by now.
        texts = [text for text in said if not text.startswith("From memory")]
        summary = "[Earlier turns, summarised]\nthey told each other all"
        assert texts == [summary, "say short", "short", "say next"]
        sessions = ok(await client.get("/v1/sessions"))["items"]
        assert {session["title"] for session in sessions} == {"tell me all", "summary of a session"}


async def test_a_person_attaches_a_picture_names_a_file_and_chooses_model_and_edge(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, edge=True) as place:
        await place.wait_online("local")
        (place.up.workspace / "dot.png").write_bytes(PNG)
        async with terminal(place.up.shell, "chat", columns=100) as here:
            await here.until("on local")
            await here.send_line("/attach dot.png")
            await here.expect("attached to your next message: dot.png")
            await here.until("1 attached")
            await here.send_line("/attach")
            await here.expect("nothing is attached")
            await here.send_line("/attach missing.png")
            await here.expect("missing.png")
            await here.send_line("/model")
            await here.expect("the agent's own model")
            await here.send_line("/on")
            await here.expect("* local  online")
            await here.send_line("/on locl")
            await here.expect("did you mean 'local'?")
            await here.send_line("/udno")
            await here.expect("did you mean '/undo'?")
            here.type("say see @do\t\r")
            await here.expect("see @dot.png")
            await here.expect("completed")
            await here.send_line("/session sya")
            await here.expect("there is no session 'sya'")
        typed = await place.type("sessions", "show", "say see @dot.pn")
        assert typed.code == exits.MISUSED
        assert "did you mean 'say see @dot.png'?" in typed.err
