"""The bad network does what it was told, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from evoclaw.transport.mqtt import Address, MqttLink
from tests.support.brokers import Broker, mosquitto
from tests.support.fault_proxy import FaultProxy
from tests.support.parties import Recorder, connected_link

Ends = tuple[FaultProxy, MqttLink, Recorder]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker() -> AsyncGenerator[Broker]:
    async with mosquitto() as started:
        yield started


@pytest_asyncio.fixture
async def ends(broker: Broker) -> AsyncIterator[Ends]:
    """A party that hears itself, through the proxy."""
    async with FaultProxy("127.0.0.1", broker.port, seed=1) as proxy:
        link, party = MqttLink(Address(proxy.host, proxy.port)), Recorder("proxy/+")
        async with connected_link(link, party):
            yield proxy, link, party


@asynccontextmanager
async def echoing() -> AsyncGenerator[FaultProxy]:
    """A server that is no broker, behind a proxy."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, FaultProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


async def say(link: MqttLink, *payloads: bytes, topic: str = "proxy/a") -> None:
    for payload in payloads:
        await link.publish(topic, payload)


async def test_a_proxy_without_faults_passes_every_message(ends: Ends) -> None:
    proxy, link, party = ends
    await say(link, b"1", b"2", b"x" * 200_000)

    assert await party.wait_messages(3) == [b"1", b"2", b"x" * 200_000]
    assert (proxy.connections, proxy.accepted) == (1, 1)
    assert proxy.to_broker.counts == proxy.to_client.counts == {"passed": 3}


@pytest.mark.parametrize("way", ["to_broker", "to_client"])
async def test_dropped_messages_are_acknowledged_but_not_delivered(ends: Ends, way: str) -> None:
    proxy, link, party = ends
    direction = proxy.to_broker if way == "to_broker" else proxy.to_client
    direction.drop(next=2, topic=lambda topic: topic == "proxy/a")
    await say(link, b"other", topic="proxy/b")
    # More than may be unacknowledged: had the lost ones kept their places, all would stop.
    await say(link, *(b"%d" % number for number in range(50)))

    assert await party.wait_messages(49) == [b"other", *(b"%d" % number for number in range(2, 50))]
    assert direction.counts["drop"] == 2


async def test_fractional_drops_are_deterministic_for_a_seed(broker: Broker) -> None:
    heard: list[list[bytes]] = []
    for _ in range(2):
        async with FaultProxy("127.0.0.1", broker.port, seed=7) as proxy:
            link, party = MqttLink(Address(proxy.host, proxy.port)), Recorder("proxy/+")
            async with connected_link(link, party):
                proxy.to_broker.drop(fraction=0.3, topic=lambda topic: topic == "proxy/a")
                await say(link, *(b"%d" % number for number in range(100)))
                await say(link, b"end", topic="proxy/end")
                await party.until(lambda party=party: b"end" in party.payloads)
            heard.append(party.payloads)

    assert heard[0] == heard[1]
    assert 50 < len(heard[0]) < 90


async def test_messages_dropped_without_acknowledgement_stay_in_flight(ends: Ends) -> None:
    proxy, link, party = ends
    proxy.to_broker.drop(next=20, ack=False)
    await say(link, *(b"lost" for _ in range(20)))

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(say(link, b"waits"), 0.2)
    proxy.cut()
    await party.wait_connected(2)
    await say(link, b"goes")
    assert await party.wait_messages(1) == [b"goes"]


@pytest.mark.parametrize("way", ["to_broker", "to_client"])
async def test_a_message_can_be_duplicated(ends: Ends, way: str) -> None:
    proxy, link, party = ends
    (proxy.to_broker if way == "to_broker" else proxy.to_client).duplicate(next=1)
    await say(link, b"1", b"2")

    assert await party.wait_messages(3) == [b"1", b"1", b"2"]


@pytest.mark.parametrize("way", ["to_broker", "to_client"])
async def test_messages_can_be_reordered(ends: Ends, way: str) -> None:
    proxy, link, party = ends
    direction = proxy.to_broker if way == "to_broker" else proxy.to_client
    direction.reorder(next=1)
    await say(link, b"1", b"2", b"3")
    assert await party.wait_messages(3) == [b"2", b"1", b"3"]

    direction.reorder(next=1)
    await say(link, b"with none behind it")
    assert len(await party.wait_messages(4)) == 4


async def test_a_delay_applies_both_ways_and_keeps_the_order(ends: Ends) -> None:
    proxy, link, party = ends
    loop = asyncio.get_running_loop()
    proxy.delay(0.1, jitter=0.05)
    began = loop.time()
    await say(link, b"1", b"2", b"3")

    assert await party.wait_messages(3) == [b"1", b"2", b"3"]
    assert loop.time() - began >= 0.2


async def test_a_throttled_connection_is_slow(ends: Ends) -> None:
    proxy, link, party = ends
    loop = asyncio.get_running_loop()
    proxy.throttle(200_000)
    began = loop.time()
    await say(link, b"x" * 30_000)
    await party.wait_messages(1)

    assert loop.time() - began >= 0.25


async def test_a_frozen_connection_delivers_nothing_until_it_thaws(ends: Ends) -> None:
    proxy, link, party = ends
    proxy.freeze()
    await say(link, b"1")

    with pytest.raises(TimeoutError):
        await party.wait_messages(1, seconds=0.2)
    assert (proxy.connections, link.is_up) == (1, True)
    proxy.thaw()
    assert await party.wait_messages(1) == [b"1"]


async def test_cut_resets_connections_and_refuse_rejects_new_ones(ends: Ends) -> None:
    proxy, _, party = ends
    proxy.refuse(True)
    proxy.cut()

    assert "reset" in await party.wait_disconnected(1)
    await party.wait_disconnected(3)
    assert party.births == 1
    proxy.refuse(False)
    await party.wait_connected(2)


async def test_non_mqtt_traffic_passes_unchanged() -> None:
    async with echoing() as proxy, asyncio.timeout(30):
        proxy.to_broker.drop(fraction=1.0)
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
        writer.write(b"\x16\3\1" + b"0" * 1000)

        assert await reader.readexactly(1003) == b"\x16\3\1" + b"0" * 1000
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
