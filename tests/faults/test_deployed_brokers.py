"""The brokers of `examples/deploy` really start, carry messages, and hold rights."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.support.deployed_brokers import (
    BrokerAccess,
    accounts,
    mosquitto_with_plugin,
    nats_cluster,
)
from tests.support.parties import Recorder, running_link
from tests.transport.test_broker import Mqtt

REFUSED = 128
PATIENCE = 60.0
"""Seconds in which two nodes know that the third is gone."""
CONTROL = "$CONTROL/dynamic-security/v1"
KINDS = ("reports", "status", "capabilities")
Start = Callable[[Path], AbstractAsyncContextManager[BrokerAccess]]


@pytest.fixture(params=[nats_cluster, mosquitto_with_plugin])
async def door(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[BrokerAccess]:
    start: Start = request.param
    accounts("add", tmp_path / "accounts", "brain", "--role", "orchestrator")
    accounts("add", tmp_path / "accounts", "garage", "attic")
    async with start(tmp_path) as found:
        yield found


async def listening_brain(door: BrokerAccess, node: int = 0) -> Mqtt:
    brain = await door.connect("brain", node)
    for kind in KINDS:
        assert await brain.subscribe(f"evoclaw/agents/+/{kind}") == 1
    return brain


async def test_an_agent_and_an_orchestrator_on_different_nodes_exchange_messages(
    door: BrokerAccess,
) -> None:
    brain = await listening_brain(door)
    garage = await door.connect("garage", len(door.ports) - 1)
    assert await garage.subscribe("evoclaw/agents/garage/commands") == 1
    assert await garage.subscribe("evoclaw/broadcast") == 1

    for kind in KINDS:
        await garage.publish(f"evoclaw/agents/garage/{kind}", kind.encode())
        assert await brain.next() == (f"evoclaw/agents/garage/{kind}", kind.encode())
    await brain.publish("evoclaw/agents/garage/commands", b"do")
    await brain.publish("evoclaw/broadcast", b"all")

    assert {await garage.next(), await garage.next()} == {
        ("evoclaw/agents/garage/commands", b"do"),
        ("evoclaw/broadcast", b"all"),
    }


async def test_an_agent_cannot_publish_or_subscribe_outside_its_own_topics(
    door: BrokerAccess,
) -> None:
    brain = await listening_brain(door)
    attic = await door.connect("attic", len(door.ports) - 1)
    assert await attic.subscribe("evoclaw/agents/attic/commands") == 1
    garage = await door.connect("garage", len(door.ports) - 1)

    others = ("attic/commands", "attic/reports", "+/commands", "+/reports", "garage/reports", "#")
    for name in (*(f"evoclaw/agents/{other}" for other in others), "#", "$CONTROL/#"):
        assert await garage.subscribe(name) == REFUSED, name
    for kind in (*KINDS, "commands"):
        await garage.publish(f"evoclaw/agents/attic/{kind}", b"forged", retain=True)
    await garage.publish("evoclaw/agents/garage/commands", b"forged")
    await garage.publish("evoclaw/broadcast", b"forged")

    # What was allowed comes after what was not: had that been passed on, it were here first.
    await garage.publish("evoclaw/agents/garage/reports", b"true")
    assert await brain.next() == ("evoclaw/agents/garage/reports", b"true")
    await brain.publish("evoclaw/agents/attic/commands", b"do")
    assert await attic.next() == ("evoclaw/agents/attic/commands", b"do")


async def test_a_nats_cluster_works_after_one_of_three_nodes_was_killed(tmp_path: Path) -> None:
    accounts("add", tmp_path / "accounts", "brain", "--role", "orchestrator")
    accounts("add", tmp_path / "accounts", "garage")
    async with nats_cluster(tmp_path) as door:
        await (await door.connect("garage", 2)).leave()

        door.nodes[2].kill()

        # While they choose who leads them they refuse things; our own links come again until not.
        brain = Recorder("evoclaw/agents/+/reports")
        garage = Recorder("evoclaw/agents/garage/commands")
        up, down = door.link("brain", 0), door.link("garage", 1)
        async with running_link(up, brain), running_link(down, garage):
            await brain.wait_connected(1, PATIENCE)
            await garage.wait_connected(1, PATIENCE)
            await up.publish("evoclaw/agents/garage/commands", b"do")
            assert await garage.wait_messages(1) == [b"do"]
            await down.publish("evoclaw/agents/garage/reports", b"done")
            assert await brain.wait_messages(1) == [b"done"]


async def test_an_account_is_added_while_mosquitto_runs(tmp_path: Path) -> None:
    folder = tmp_path / "accounts"
    accounts("add", folder, "brain", "--role", "orchestrator")
    async with mosquitto_with_plugin(tmp_path) as door:
        brain = await listening_brain(door)
        accounts("add", folder, "garage", "attic")
        admin = await door.connect("_admin")
        assert await admin.subscribe(f"{CONTROL}/response") == 1

        await admin.publish(CONTROL, accounts("commands", folder, "garage", "attic").encode())

        answer = await admin.next()
        assert answer is not None and b"error" not in answer[1]
        garage = await door.connect("garage")
        assert await garage.subscribe("evoclaw/agents/garage/commands") == 1
        assert await garage.subscribe("evoclaw/agents/attic/commands") == REFUSED
        await garage.publish("evoclaw/agents/garage/reports", b"true")
        assert await brain.next() == ("evoclaw/agents/garage/reports", b"true")
