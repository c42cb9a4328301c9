"""Secrets that tools print are in no file of the data folder in the clear, and runs go on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from evoclaw.cli import exits
from tests.support.command_line import reply, shell
from tests.support.seat import seat

pytestmark = pytest.mark.process
SECRET = "sk-9f27c1Q8fT2m4Zr7Wx0aLp"


def files_with_secret(folder: Path) -> list[str]:
    """The files below a folder that hold the secret."""
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path) for path in found if SECRET.encode() in path.read_bytes()]


def readable_by_others(folder: Path) -> list[str]:
    """The databases, recordings and keys that other users may read."""
    return [
        str(path)
        for path in folder.rglob("*")
        if path.suffix in (".db", ".jsonl", ".key") and path.stat().st_mode & 0o077
    ]


async def test_a_recorded_secret_is_encrypted_and_the_run_is_replayed_and_resumed(
    tmp_path: Path,
) -> None:
    answers = (
        reply("", ("read", {"path": "keys.txt"})),
        reply("done"),
        reply("", ("read", {"path": "keys.txt"})),
        reply("and done"),
        reply("forked"),
    )
    async with shell(tmp_path, *answers) as here:
        (here.workspace / "keys.txt").write_text(f"door: {SECRET}\n")
        assert (await here.type("run", "look at the keys")).out == "done\n"
        assert (await here.type("run", "--session", "s", "and again")).out == "and done\n"
        home = here.home / ".evoclaw"
        first, second = sorted((home / "runs").glob("*.jsonl"))
        assert files_with_secret(home) == []
        assert readable_by_others(home) == []

        for path in (first, second):
            replayed = await here.type("replay", "--json", str(path))
            assert SECRET in replayed.out, replayed.err
            assert "byte for byte the same" in replayed.err
        assert (await here.type("diff", str(first), str(first))).code == exits.OK
        forked = await here.type("fork", str(first), "--at", "2", "--message", "go on")
        assert "forked from run" in forked.err, forked.err
        assert files_with_secret(home) == []
        shutil.rmtree(here.home / ".config" / "evoclaw")
        lost = await here.type("replay", str(first))
        assert lost.code == exits.MISUSED and "key" in lost.err and "Traceback" not in lost.err


async def test_the_store_of_a_service_holds_no_secret_in_the_clear_after_a_restart(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, edge=True) as here:
        (here.up.workspace / "keys.txt").write_text(f"door: {SECRET}\n")
        await here.wait_online("local")
        here.up.models.scripts["the keys?"] = 'call read {"path": "keys.txt"}\nsay looked'
        asked = await here.type("chat", stdin=b"the keys?\n")
        assert "looked" in asked.out, asked.err
        client = await here.up.wait_ready()
        (run,) = (await client.get("/v1/runs")).json["items"]
        await here.up.stop()
        assert files_with_secret(here.up.home) == []
        assert readable_by_others(here.up.home) == []

        client = await here.up.start(edge=True)
        events = await client.get(f"/v1/runs/{run['run_id']}/events")
        assert SECRET.encode() in events.body
        replay = await client.post(f"/v1/runs/{run['run_id']}/replay")
        assert replay.status < 300, replay.body
