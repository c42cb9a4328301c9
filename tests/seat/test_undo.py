"""`/undo`, `evoclaw runs undo` and `POST /v1/runs/ID/undo`, with real edges."""

from __future__ import annotations

from pathlib import Path

from evoclaw.cli import exits
from tests.support.seat import seat
from tests.support.terminal import terminal
from tests.support.up_process import SETTINGS, ok, start_run, wait_for_state

SUPERVISED = SETTINGS.replace('autonomy = "full"', 'autonomy = "supervised"')
PATCH = (
    "*** Begin Patch\\n*** Delete File: old.sh\\n*** Add File: deep/new.txt\\n+new\\n"
    "*** Update File: note.txt\\n@@\\n-three\\n+four\\n*** End Patch"
)
CHANGES = (
    'call edit {"path": "note.txt", "old_string": "two", "new_string": "three"}\n'
    f'call apply_patch {{"patch": "{PATCH}"}} && call bash {{"command": "echo x > made.txt"}}\n'
    "say done"
)


async def test_undo_in_a_chat_restores_deletes_and_names_what_stays(tmp_path: Path) -> None:
    async with seat(tmp_path, edge=True) as place:
        await place.wait_online("local")
        work = place.up.workspace
        (work / "note.txt").write_text("one\ntwo\n")
        (work / "old.sh").write_text("#!/bin/sh\n")
        (work / "old.sh").chmod(0o750)
        place.up.models.scripts["change it"] = CHANGES
        async with terminal(place.up.shell, "chat", columns=90) as here:
            await here.until("on local")
            await here.send_line("/undo")
            await here.expect("nothing to undo yet: send a message first")
            await here.send_line("change it")
            await here.expect("done")
            await here.until("ready")
            assert (work / "note.txt").read_text() == "one\nfour\n"
            assert (work / "deep" / "new.txt").exists() and not (work / "old.sh").exists()
            await here.send_line("/undo")
            await here.expect("undone on local: note.txt")
            await here.expect("these calls cannot be undone:\n  bash on local: echo x > made")
            assert (work / "note.txt").read_text() == "one\ntwo\n"
            assert not (work / "deep" / "new.txt").exists()
            assert (work / "old.sh").read_text() == "#!/bin/sh\n"
            assert (work / "old.sh").stat().st_mode & 0o777 == 0o750
            assert (work / "made.txt").exists()
            await here.send_line("/undo")
            await here.expect("were undone before")
            await here.send_line("say next")
            await here.expect("next")
        assert "[The user has undone the file changes" in place.up.models.asked[-1].said


async def test_undo_waits_for_the_approval_that_a_write_needs(tmp_path: Path) -> None:
    async with seat(tmp_path, SUPERVISED, edge=True) as place:
        await place.wait_online("local")
        place.up.models.scripts["write it"] = (
            'call write {"path": "new.txt", "content": "new"}\nsay written'
        )
        async with terminal(place.up.shell, "chat", columns=90) as here:
            await here.until("on local")
            await here.send_line("write it")
            await here.until("Allow?")
            here.type("y")
            await here.expect("written")
            await here.send_line("/undo")
            await here.expect("undo on local wants to run")
            await here.until("Allow?")
            assert (place.up.workspace / "new.txt").exists()
            here.type("y")
            await here.expect("deleted 'new.txt'")
            assert not (place.up.workspace / "new.txt").exists()
            await here.send_line("/undo")
            await here.expect("were undone before")


async def test_undo_on_another_machine_refuses_what_changed_since(tmp_path: Path) -> None:
    async with seat(tmp_path) as place:
        edge = await place.add_edge("pi", toml="[limits]\n" + "undo_bytes = 1000\n")
        client = await place.up.wait_ready()
        note, big = edge.workspace / "note.txt", edge.workspace / "big.txt"
        note.write_text("before\n")
        big.write_text("b" * 1001)
        message = (
            'call write {"path": "note.txt", "content": "after"} && '
            'call write {"path": "big.txt", "content": "small"}\nsay done'
        )
        run_id = await start_run(client, message, on="pi")
        await wait_for_state(client, run_id)
        note.write_text("mine")
        typed = await place.type("runs", "undo", run_id)
        assert typed.code == exits.FAILED
        assert "failed on pi: Nothing was undone: 'note.txt' changed after" in typed.out
        assert (note.read_text(), big.read_text()) == ("mine", "small")
        note.write_text("after")
        answer = ok(await client.post(f"/v1/runs/{run_id}/undo", {}))
        (on_pi,) = answer["machines"]
        assert (on_pi["state"], on_pi["restored"]) == ("undone", ["note.txt"])
        assert "1,001 bytes before, too many to keep" in on_pi["not_restored"]["big.txt"]
        assert (note.read_text(), big.read_text()) == ("before\n", "small")
        assert (await client.post(f"/v1/runs/{run_id}/undo", {})).status == 409
        undone = await client.post(f"/v1/runs/{on_pi['run_id']}/undo", {})
        assert ok(undone)["machines"][0]["restored"] == ["note.txt"]
        assert note.read_text() == "after"
        audit = await place.type("logs", "--filter", "tool")
        assert "undo on pi" in audit.out
        names = [tool["function"]["name"] for tool in place.up.models.asked[0].body["tools"]]
        assert "write" in names and "undo" not in names


async def test_a_run_of_the_command_line_is_undone_on_the_edge_where_it_ran(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, edge=True) as place:
        await place.wait_online("local")
        note = place.up.workspace / "note.txt"
        note.write_text("one\n")
        place.up.models.scripts["change it"] = (
            'call write {"path": "note.txt", "content": "two"}\nsay done'
        )
        ran = await place.type("run", "--yes", "--on", "local", "change it")
        assert ran.code == exits.OK and note.read_text() == "two", ran
        undone = await place.type("undo", "--yes")
        assert undone.code == exits.OK and "undone on local: note.txt" in undone.out, undone
        assert note.read_text() == "one\n"
        assert not (place.up.home / "undo").exists(), "the edge keeps what its files held"
