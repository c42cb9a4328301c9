"""Pairing between two machines, and what the user is told about rights and reach."""

from __future__ import annotations

import asyncio
import os
import pty
import shlex
import tomllib
from pathlib import Path

from evoclaw.cli import exits
from tests.support.command_line import Shell
from tests.support.network_namespaces import (
    HOUSE_ADDRESS,
    other_machine,
    run_in_own_namespace,
)
from tests.support.seat import seat
from tests.support.up_process import SETTINGS


async def test_an_edge_on_another_machine_is_paired_called_cut_off_and_comes_back(
    tmp_path: Path,
) -> None:
    if run_in_own_namespace(f"{__file__}::{_NAME}"):
        return
    with other_machine() as machine:
        async with seat(tmp_path, SETTINGS, "--lan") as place:
            await place.up.wait_for_output(f"edges on other machines: mqtts://{HOUSE_ADDRESS}:")
            invited = await place.type("edges", "invite", "garage", "--qr")
            assert invited.code == exits.OK, invited.err
            assert f"mqtts://{HOUSE_ADDRESS}:" in invited.out
            assert "--ca-fingerprint " in invited.out
            assert "warning" not in invited.err
            link = shlex.split(invited.err.partition("with a link: ")[2].partition("\n")[0])
            assert "&ca=" in link[-1]

            garage = place.new_edge("garage", machine.shell)
            garage.shell.env["EVOCLAW_EDGE_BROKER_KEEP_ALIVE_S"] = "2"
            files = garage.shell.home / "files"
            files.mkdir()
            (files / "note.txt").write_text("the rake is behind the door")
            wrong = [*invited.out.split()[1:-1], "00" * 32]
            refused = await garage.shell.type(*wrong)
            assert "does not show the certificate authority" in refused.err
            assert not garage.config.exists()

            joined = await garage.shell.type(*link[1:], "--folder", str(files), "--rights", "write")
            assert joined.code == exits.OK, joined.err
            assert f"garage: may read and write {files}; tools: " in joined.err
            assert "bash" not in joined.err
            settings = tomllib.loads(garage.config.read_text())
            assert settings["workspace"] == str(files)
            assert settings["capabilities"] == ["file_read", "file_write"]

            await garage.start()
            await place.wait_online("garage")
            models = place.up.models
            models.scripts["what is in note.txt?"] = 'call read {"path": "note.txt"}\nsay Done.'
            ran = await place.type("run", "--on", "garage", "what is in note.txt?")
            assert ran.code == exits.OK, ran.err
            assert "behind the door" in str(models.asked[-1].body["messages"])

            machine.plug(in_=False)
            await place.up.wait_for_output("edge garage: offline")
            (files / "note.txt").write_text("the rake is on the roof")
            waiting = asyncio.create_task(
                place.type("run", "--on", "garage", "what is in note.txt?")
            )
            machine.plug(in_=True)
            ran = await waiting
            assert ran.code == exits.OK, ran.err
            assert "on the roof" in str(models.asked[-1].body["messages"])
            assert "edge garage: online" in place.up.output().partition("garage: offline")[2]


_NAME = test_an_edge_on_another_machine_is_paired_called_cut_off_and_comes_back.__name__


async def typed_at_terminal(shell: Shell, *arguments: str, answers: list[str]) -> str:
    """What a command asks and prints at a terminal, where these lines are typed."""
    master, slave = pty.openpty()
    try:
        os.write(master, "".join(f"{line}\n" for line in answers).encode())
        process = await shell.start(*arguments, stdin=slave, stderr=asyncio.subprocess.PIPE)
        _, err = await process.communicate()
        assert process.returncode == exits.OK, err
        return err.decode()
    finally:
        os.close(master)
        os.close(slave)


async def test_the_setting_broker_host_serves_other_machines(tmp_path: Path) -> None:
    settings = SETTINGS + '\n[broker]\nhost = "house.local"\n'
    async with seat(tmp_path, settings, edge=True) as place:
        client = await place.up.wait_ready()
        await place.up.wait_online(client)  # its own edge connects over TLS, on loopback
        invited = await place.type("edges", "invite", "garage")
        assert "edge join mqtts://house.local:" in invited.out, invited.err
        assert "--ca-fingerprint" in invited.out
        assert "warning" not in invited.err
        for name in ("ca.key", "broker.key"):
            assert (place.up.home / "tls" / name).stat().st_mode & 0o777 == 0o600
        folders = [path for path in place.up.home.rglob("*") if path.is_dir()]
        assert [str(path) for path in folders if path.stat().st_mode & 0o077] == []


async def test_an_invitation_of_a_local_broker_says_that_other_machines_cannot_use_it(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path) as place:
        invited = await place.type("edges", "invite", "garage")
        assert "works only on this machine" in invited.err
        assert "evoclaw up --lan" in invited.err
        client = await place.up.wait_ready()
        made = await client.post("/v1/fleet/invitations", {"agent_id": "garage"})
        assert "evoclaw up --lan" in made.json["warning"]

        edge = place.new_edge("garage")
        asked = await typed_at_terminal(
            edge.shell, *shlex.split(made.json["command"])[1:], answers=["files", "read"]
        )
        assert "Folder that tools may work in" in asked
        assert "Rights of tools there (read, write, run, all)" in asked
        folder = edge.shell.workspace / "files"
        said = " ".join(asked.split())
        assert f"garage: may read {folder}; tools: glob, grep, " in said
        assert "not authorized" not in said, "the broker knew the account before it was shown"
        assert "bash" not in said
        other = tmp_path / "elsewhere"
        other.mkdir()
        (other / "note.txt").write_text("elsewhere")
        log = edge.log.open("ab")
        edge.process = await edge.shell.start(
            "edge", "--folder", str(other), stdout=log.fileno(), stderr=log.fileno()
        )
        log.close()
        await place.wait_online("garage")
        place.up.models.scripts["what is in note.txt?"] = (
            'call read {"path": "note.txt"}\nsay Done.'
        )
        ran = await place.type("run", "--on", "garage", "what is in note.txt?")
        assert ran.code == exits.OK, ran.err
        assert "elsewhere" in str(place.up.models.asked[-1].body["messages"])
