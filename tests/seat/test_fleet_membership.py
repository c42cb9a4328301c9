"""Who is in the fleet: an edge that is revoked, the default edge, and names that are taken."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

from evoclaw.cli import exits
from tests.support.seat import Seat, seat
from tests.support.service import Answer, Client
from tests.support.up_process import PATIENCE, SETTINGS, ok
from tests.support.waiting import until

OTHER_PORTS = '\n[network]\ncommands = ["example.org"]\nports = [8443]\n'


async def run_on(client: Client, edge: str, command: str) -> Answer:
    """Run a command on an edge, without a model."""
    body = {"arguments": {"command": command, "timeout_ms": 60_000}, "on": edge}
    return await client.post("/v1/tools/bash/call", body)


async def test_a_revoked_edge_gets_no_more_calls_and_the_others_stay_connected(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path) as place:
        client = await place.up.wait_ready()
        garage, attic = await place.add_edge("garage"), await place.add_edge("attic")
        no_second_openssl(garage.process)
        before = ok(await run_on(client, "garage", "echo before >> marks"))
        assert before["error"] is None, before
        holding = asyncio.create_task(
            run_on(client, "garage", "touch held; until [ -e go ]; do sleep 0.1; done; echo late")
        )
        await until((garage.workspace / "held").exists, PATIENCE)

        connected = attic.output()
        revoked = await place.type("edges", "revoke", "garage")
        assert revoked.code == exits.OK, revoked.err
        refused = ok(await run_on(client, "garage", "echo after >> marks"))
        assert refused["error"], refused
        assert "revoked" in refused["text"]
        (garage.workspace / "go").touch()
        async with asyncio.timeout(PATIENCE):
            held = ok(await holding)
        assert held["error"] == "unknown", held
        assert "late" not in held["text"]

        await place.wait_for(garage, "not connected: the broker closed the connection")
        still = ok(await run_on(client, "attic", "echo here"))
        assert (still["error"], still["text"].strip()) == (None, "here")
        assert "edge attic: offline" not in place.up.output()
        assert attic.output() == connected, "it reports every lost connection"
        assert (garage.workspace / "marks").read_text() == "before\n"
        listed = await place.type("edges")
        assert "`evoclaw edges invite garage` lets it back in" in listed.out

        await garage.end(signal.SIGKILL)
        garage.config.unlink()
        invited = await place.type("edges", "invite", "garage")
        joined = await garage.shell.type(*invited.out.split()[1:], "--capabilities", "*")
        assert joined.code == exits.OK, joined.err
        await garage.start()
        await place.wait_online("garage")
        again = ok(await run_on(client, "garage", "echo again >> marks"))
        assert again["error"] is None, again


def no_second_openssl(process: asyncio.subprocess.Process | None) -> None:
    """An idle edge has verified the signed welcome by Python's own OpenSSL; only the encryption of
    its journal, with the first call, loads the one of `cryptography`."""
    assert process is not None
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "_rust.abi3" not in maps or "libcrypto" not in maps


async def test_the_default_edge_is_marked_and_a_name_that_is_taken_is_refused(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, edge=True) as place:
        await place.wait_online("local")
        await place.add_edge("garage")
        await the_default_edge_is_marked(place)
        await taken_names_are_refused(place)

        place.up.configure(SETTINGS + OTHER_PORTS)
        place.up.signal(signal.SIGHUP)
        await place.up.wait_for_output(
            "settings reloaded: network; needs a restart: network.commands; "
            "the edge local keeps its copy of network until a restart"
        )

        place.up.signal(signal.SIGTERM)
        await place.up.wait_exit()
        for name, reason in (
            ("garage", "'garage' is the name of an edge that has joined; "),
            ("orchestrator", "'orchestrator' is the name of the orchestrator itself; "),
        ):
            up = await place.type("up", "--api-port", "0", "--name", name)
            assert up.code != exits.OK
            assert reason in up.err
            assert "evoclaw up --name NAME" in up.err


async def the_default_edge_is_marked(place: Seat) -> None:
    listed = {line.split()[0]: line for line in (await place.type("edges")).out.splitlines()}
    assert listed["local"].endswith(" (default)")
    assert "default" not in listed["garage"]
    rows = json.loads((await place.type("edges", "--json")).out)
    assert {row["agent"]: row["default"] for row in rows} == {"garage": False, "local": True}

    status = await place.type("status")
    assert "2 online: garage, local (default)" in status.out
    edges = json.loads((await place.type("status", "--json")).out)["edges"]
    assert (edges["default"], edges["online"]) == ("local", ["garage", "local"])


async def taken_names_are_refused(place: Seat) -> None:
    garage = place.edges["garage"]
    connected = garage.output()
    for name, reason in (
        ("garage", "is the name of an edge that has joined; choose another name"),
        ("local", "is the name of an edge that has joined; choose another name"),
        ("orchestrator", "is the name of the orchestrator itself; choose another name"),
    ):
        for command in ("invite", "account"):
            refused = await place.type("edges", command, name)
            assert refused.code != exits.OK, refused.out
            assert f"'{name}' {reason}" in refused.err
            assert refused.out == ""
        client = await place.up.wait_ready()
        answer = await client.post("/v1/fleet/invitations", {"agent_id": name})
        assert (answer.status, reason in str(answer.json)) == (409, True)
    revoked = await place.type("edges", "revoke", "orchestrator")
    assert "unknown edge 'orchestrator'" in revoked.err

    # A joined edge is not disturbed, and the folder of a running edge is not overwritten.
    invited = await place.type("edges", "invite", "attic")
    words = [word.replace("attic.", "garage.") for word in invited.out.split()[1:]]
    other = garage.shell.workspace / "other.toml"
    refused = await garage.shell.type(*words, "--config", str(other))
    assert "an edge 'garage' already runs on this machine" in refused.err
    assert not other.exists()
    assert garage.output() == connected, "it reports every lost connection"
