"""Home Assistant sees the edges and agents of a real service, over its broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from evoclaw.cli import exits
from evoclaw.core.messages import JSON
from tests.seat.test_fleet_membership import run_on
from tests.support.mosquitto_clients import MosquittoClient, needs_mosquitto_clients
from tests.support.seat import Seat, seat
from tests.support.up_process import PATIENCE, SETTINGS, ok
from tests.support.waiting import until

CHANNEL = '\n[[channels]]\nname = "house"\nkind = "mqtt"\nsenders = ["assist"]\n'
DISCOVERY = '\n[home_assistant]\ndiscovery = true\nprefix = "ha"\naccount = "assist"\n'
CONFIGS, STATES = "ha/device/+/config", "evoclaw/ha/+/state"
EDGE, AGENT = "ha/device/evoclaw-edge-garage/config", "ha/device/evoclaw-agent-evoclaw/config"
STATE = "evoclaw/ha/garage/state"


async def account(place: Seat, name: str, topic: str, *options: str) -> MosquittoClient:
    """A broker account, made with the command line."""
    made = await place.type("channels", "user", name, *options, "--json")
    assert made.code == exits.OK, made.err
    login = json.loads((place.up.home / "orchestrator.json").read_text())
    found = MosquittoClient(login["url"], name, json.loads(made.out)["password"])
    await found.wait_accepted(topic)
    return found


async def retained(client: MosquittoClient, topic: str) -> dict[str, JSON]:
    """The retained messages below a topic that an account gets, by topic."""
    process = await asyncio.create_subprocess_exec(
        "mosquitto_sub", *client.options, "-t", topic, "--retained-only", "-W", "1", "-F", "%t %p",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE):
        lines, _ = await process.communicate()
    pairs = (line.split(" ", 1) for line in lines.decode().splitlines() if "{" in line)
    return {name: json.loads(payload) for name, payload in pairs}


async def wait_state(client: MosquittoClient, key: str, *, value: bool) -> None:
    async def reached() -> bool:
        return (await retained(client, STATES)).get(STATE, {}).get(key) is value

    await until(reached, PATIENCE, f"the state of garage has {key} = {value}")


async def wait_configs(client: MosquittoClient, wanted: set[str]) -> dict[str, JSON]:
    found: dict[str, JSON] = {}

    async def reached() -> bool:
        nonlocal found
        found = await retained(client, CONFIGS)
        return set(found) == wanted

    await until(reached, PATIENCE, f"exactly {wanted} are described")
    return found


@needs_mosquitto_clients
async def test_home_assistant_sees_edges_presses_buttons_and_talks_to_agents(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, SETTINGS + CHANNEL + DISCOVERY) as place:
        client, garage = await place.up.wait_ready(), await place.add_edge("garage")
        place.up.models.scripts["is the gate open?"] = "say The gate is open."
        assist = await account(place, "assist", "ha/status", "--home-assistant")
        configs = await wait_configs(assist, {EDGE, AGENT})
        await wait_state(assist, "online", value=True)

        buttons = configs[EDGE]["components"]
        results = buttons["result"]["state_topic"]
        async with assist.subscribed(results) as events:
            ran = ok(await run_on(client, "garage", "echo a secret"))
            assert ran["error"] is None, ran
            result = await events.wait_for(1)
            assert set(result) == {"event_type", "at"}, "no content of a result leaves"
            assert result["event_type"] == "success"
            ping = buttons["ping"]
            await assist.publish(ping["command_topic"], ping["payload_press"])
            assert (await events.wait_for(2))["event_type"] == "pong"

        message, reply = (configs[AGENT]["components"][key] for key in ("message", "reply"))
        async with assist.subscribed(reply["state_topic"]) as replies:
            await assist.publish(message["command_topic"], '{"message": "is the gate open?"}')
            assert (await replies.wait_for(1))["state"] in reply["event_types"]
            answer = await replies.wait_for(2)
            assert (answer["state"], answer["text"]) == ("answer", "The gate is open.")

        stop = buttons["stop"]
        await assist.publish(stop["command_topic"], stop["payload_press"])
        await wait_state(assist, "stopped", value=True)
        refused = ok(await run_on(client, "garage", "echo after"))
        assert "stopped in Home Assistant" in refused["text"], refused

        await garage.end()
        await wait_state(assist, "online", value=False)


@needs_mosquitto_clients
async def test_descriptions_vanish_when_an_edge_is_revoked_and_when_discovery_is_switched_off(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, SETTINGS + CHANNEL + DISCOVERY) as place:
        await place.add_edge("garage")
        assist = await account(place, "assist", "ha/status", "--home-assistant")
        await wait_configs(assist, {EDGE, AGENT})
        ann = await account(place, "ann", "evoclaw/agents/evoclaw/inbox/ann")
        assert await retained(ann, CONFIGS) == await retained(ann, STATES) == {}
        await ann.publish("evoclaw/ha/garage/command/assist", "stop")

        revoked = await place.type("edges", "revoke", "garage")
        assert revoked.code == exits.OK, revoked.err
        await wait_configs(assist, {AGENT})
        assert await retained(assist, STATES) == {}
        stops = await place.type("stop", "--list")
        assert "garage" not in stops.out, "another account pressed the button"

        await place.up.stop()
        place.up.configure(SETTINGS + CHANNEL)
        await place.up.start()
        login = json.loads((place.up.home / "orchestrator.json").read_text())
        assist = MosquittoClient(login["url"], "assist", assist.password)
        await wait_configs(assist, set())
        assert not (place.up.home / "home_assistant.json").exists()
