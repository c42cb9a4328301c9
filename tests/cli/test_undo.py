"""`evoclaw undo`: the file changes of `evoclaw run` are undone, here and over SSH."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from evoclaw.cli import exits
from tests.support.command_line import Shell, reply, shell
from tests.support.sshd import sshd

PATCH = (
    "*** Begin Patch\n*** Delete File: old.sh\n*** Add File: deep/new.txt\n+new\n"
    "*** Update File: note.txt\n@@\n-three\n+four\n*** End Patch"
)
EDIT = ("edit", {"path": "note.txt", "old_string": "two", "new_string": "three"})


def prepare(folder: Path) -> None:
    (folder / "note.txt").write_text("one\ntwo\n")
    (folder / "old.sh").write_text("#!/bin/sh\n")
    (folder / "old.sh").chmod(0o750)


def check_restored(folder: Path) -> None:
    assert (folder / "note.txt").read_text() == "one\ntwo\n"
    assert (folder / "old.sh").read_text() == "#!/bin/sh\n"
    assert (folder / "old.sh").stat().st_mode & 0o777 == 0o750
    assert not (folder / "deep" / "new.txt").exists()


def recordings(where: Shell) -> list[Path]:
    found = (where.home / ".evoclaw" / "runs").glob("*.jsonl")
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


async def test_the_last_run_is_undone_once_and_its_commands_are_named(tmp_path: Path) -> None:
    answers = (
        reply("", EDIT),
        reply("", ("apply_patch", {"patch": PATCH}), ("bash", {"command": "echo x > made.txt"})),
        reply("done"),
    )
    async with shell(tmp_path, *answers) as here:
        prepare(here.workspace)
        ran = await here.type("run", "--yes", "change it")
        assert (here.workspace / "note.txt").read_text() == "one\nfour\n"
        (recording,) = recordings(here)
        assert f"to undo its file changes: evoclaw undo {recording}" in ran.err
        undone = await here.type("undo", "--yes")
        check_restored(here.workspace)
        again = await here.type("undo", "--yes")
        redone = await here.type("undo", "--yes", str(recordings(here)[1]))
    assert undone.code == exits.OK, undone
    assert "undoing" in undone.err and "change it" in undone.err
    assert "undone: note.txt\n" in undone.out
    assert "these calls cannot be undone:\n  bash: echo x > made.txt\n" in undone.out
    assert (here.workspace / "made.txt").exists()
    assert "to bring the changes back: evoclaw undo" in undone.err
    assert again.code == exits.FAILED and "these changes were undone before" in again.out
    assert redone.code == exits.OK, redone
    assert (here.workspace / "note.txt").read_text() == "one\nfour\n"


async def test_undo_works_from_any_folder_and_prints_json(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("", EDIT), reply("done")) as here:
        prepare(here.workspace)
        await here.type("run", "--yes", "change it")
        elsewhere = Shell(here.home, tmp_path, here.env)
        undone = await elsewhere.type("undo", "--yes", "--json")
    assert (undone.code, undone.err) == (exits.OK, undone.err)
    (machine,) = json.loads(undone.out)["machines"]
    assert (machine["state"], machine["restored"]) == ("undone", ["note.txt"])
    check_restored(here.workspace)


async def test_undo_asks_before_it_writes_and_keeps_what_changed_since(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("", EDIT), reply("done")) as here:
        prepare(here.workspace)
        await here.type("run", "--yes", "change it")
        unasked = await here.type("undo")
        assert unasked.code == exits.MISUSED and "add --yes" in unasked.err
        refused = await here.at_terminal("undo", answers=["n"])
        assert refused.code == exits.FAILED
        note = here.workspace / "note.txt"
        assert note.read_text() == "one\nthree\n"
        note.write_text("mine")
        conflict = await here.type("undo", "--yes")
        assert conflict.code == exits.FAILED and "'note.txt' changed after the run" in conflict.out
        assert note.read_text() == "mine"
        note.write_text("one\nthree\n")
        allowed = await here.at_terminal("undo", answers=["y"])
    assert allowed.code == exits.OK, allowed
    check_restored(here.workspace)


async def test_a_run_in_a_session_is_undone_like_any_other(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("", EDIT), reply("done")) as here:
        prepare(here.workspace)
        ran = await here.type("run", "--yes", "--session", "work", "change it")
        assert ran.code == exits.OK, ran
        assert (here.workspace / "note.txt").read_text() == "one\nthree\n"
        undone = await here.type("undo", "--yes")
    assert undone.code == exits.OK, undone
    check_restored(here.workspace)


async def test_what_a_sub_run_changed_is_undone_with_its_run(tmp_path: Path) -> None:
    task = ("task", {"prompt": "change it"})
    answers = (reply("", task), reply("", EDIT), reply("changed"), reply("done"))
    async with shell(tmp_path, *answers) as here:
        prepare(here.workspace)
        ran = await here.type("run", "--yes", "--session", "work", "have it changed")
        assert ran.code == exits.OK, ran
        assert (here.workspace / "note.txt").read_text() == "one\nthree\n"
        undone = await here.type("undo", "--yes")
    assert undone.code == exits.OK and "undone: note.txt" in undone.out, undone
    check_restored(here.workspace)


async def test_without_a_recording_or_hours_nothing_is_kept(tmp_path: Path) -> None:
    async with shell(tmp_path, *[reply("", EDIT), reply("done")] * 2) as here:
        prepare(here.workspace)
        nothing = await here.type("undo", "--yes")
        assert nothing.code == exits.MISUSED and "no run is recorded" in nothing.err
        await here.type("run", "--yes", "--no-record", "change it")
        kept = here.home / ".evoclaw" / "undo"
        assert not kept.exists()
        prepare(here.workspace)
        (here.home / ".evoclaw" / "evoclaw.toml").write_text("[store]\n" + "undo_hours = 0\n")
        ran = await here.type("run", "--yes", "change it")
        undone = await here.type("undo", "--yes")
    assert not kept.exists() and "evoclaw undo" not in ran.err
    assert undone.code == exits.OK and "edit: what the files held before was not kept" in undone.out


async def test_a_file_that_is_too_large_is_named(tmp_path: Path) -> None:
    write = ("write", {"path": "big.txt", "content": "small"})
    async with shell(tmp_path, reply("", EDIT, write), reply("done")) as here:
        prepare(here.workspace)
        (here.workspace / "big.txt").write_text("b" * 101)
        settings = here.home / ".evoclaw" / "evoclaw.toml"
        settings.parent.mkdir()
        settings.write_text("[store]\n" + "undo_bytes = 100\n")
        await here.type("run", "--yes", "change it")
        undone = await here.type("undo", "--yes")
    assert undone.code == exits.FAILED
    assert "not undone: big.txt: it had 101 bytes before, too many to keep" in undone.out
    check_restored(here.workspace)


async def test_changes_over_ssh_are_undone_from_this_machine(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (tmp_path / "sshd").mkdir()
    with sshd(tmp_path / "sshd") as server:
        answers = (reply("", EDIT), reply("", ("apply_patch", {"patch": PATCH})), reply("done"))
        async with shell(tmp_path, *answers) as here:
            keys = here.home / ".ssh"
            keys.mkdir(mode=0o700)
            shutil.copy(server.key, keys / "id_ed25519")
            shutil.copy(server.known_hosts, keys / "known_hosts")
            prepare(there)
            url = f"ssh://{server.user}@127.0.0.1:{server.port}{there}"
            ran = await here.type("run", "--yes", "--on", url, "change it")
            assert ran.code == exits.OK, ran
            assert (there / "note.txt").read_text() == "one\nfour\n"
            assert not (there / "old.sh").exists()
            undone = await here.type("undo", "--yes")
    assert undone.code == exits.OK, undone
    assert undone.out.startswith(f"undone on ssh://{server.user}@127.0.0.1:{server.port}/")
    assert "note.txt" in undone.out
    check_restored(there)
