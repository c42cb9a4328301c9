"""What is special about MQTT, against real brokers."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.transport.link import LinkDown, TooLarge, Will
from evoclaw.transport.mqtt import Address, MqttLink, TlsSettings
from tests.support.bad_brokers import packet
from tests.support.brokers import Broker, mosquitto, nats
from tests.support.certificates import make_certificates
from tests.support.fault_proxy import FaultProxy
from tests.support.parties import Recorder, connected_link, running_link


@asynccontextmanager
async def proxied(broker: Broker) -> AsyncGenerator[tuple[FaultProxy, Address]]:
    async with FaultProxy("127.0.0.1", broker.port) as proxy:
        yield proxy, Address(proxy.host, proxy.port)


async def test_a_wrong_password_is_reported_and_the_connection_retried() -> None:
    async with mosquitto(users={"me": "right"}) as broker:
        wrong, right = Recorder(), Recorder()
        host, port = "127.0.0.1", broker.port

        async with running_link(MqttLink(Address(host, port, None, "me", "wrong")), wrong):
            for times in (1, 2, 3):
                reason = await wrong.wait_disconnected(times)
                assert "refused" in reason and "not authorized" in reason
        async with connected_link(MqttLink(Address(host, port, None, "me", "right")), right):
            pass
        assert (wrong.births, right.reasons) == (0, [])


async def test_the_brokers_certificate_is_verified(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    async with mosquitto(tls=certificates) as broker:
        trusting, stranger, party = Recorder("a"), Recorder(), TlsSettings(str(certificates.ca))
        link = MqttLink(Address("127.0.0.1", broker.port, party))

        async with connected_link(link, trusting):
            await link.publish("a", b"x" * 100_000)
            assert await trusting.wait_messages(1) == [b"x" * 100_000]
        for address in (
            Address("127.0.0.1", broker.port, TlsSettings()),
            Address("localhost", broker.port, party),
        ):
            stranger = Recorder()
            async with running_link(MqttLink(address), stranger):
                assert "certificate verify failed" in await stranger.wait_disconnected(1)
            assert stranger.births == 0


async def test_a_client_certificate_is_sent_when_the_broker_requires_it(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    async with mosquitto(tls=made, client_certificates=True) as broker:
        known = TlsSettings(str(made.ca), str(made.client_cert), str(made.client_key))

        async with connected_link(MqttLink(Address("127.0.0.1", broker.port, known)), Recorder()):
            pass
        unknown = Recorder()
        bare = TlsSettings(str(made.ca))
        async with running_link(MqttLink(Address("127.0.0.1", broker.port, bare)), unknown):
            assert await unknown.wait_disconnected(1)
        assert unknown.births == 0


async def test_fault_11_a_link_reconnects_after_a_killed_broker_restarts() -> None:
    async with mosquitto() as broker:
        party, link = Recorder("a"), MqttLink(broker.address)

        async with connected_link(link, party):
            broker.kill()
            await party.wait_disconnected(2)
            assert "cannot be reached" in party.reasons[1]
            await broker.start()
            await party.wait_connected(2)
            await link.publish("a", b"again")

            assert await party.wait_messages(1) == [b"again"]


async def test_fault_12_a_half_open_connection_is_detected_while_idle() -> None:
    loop = asyncio.get_running_loop()
    async with mosquitto() as broker, proxied(broker) as (proxy, address):
        party = Recorder()

        async with connected_link(MqttLink(address, keep_alive=1), party):
            # Idle, it stays up for longer than either side would wait for the other.
            with pytest.raises(TimeoutError):
                await party.wait_disconnected(1, seconds=1.8)
            proxy.freeze()
            began = loop.time()
            assert "no data from the broker" in await party.wait_disconnected(1)
            # Twice the keep-alive, and something for a busy machine.
            assert loop.time() - began < 3
            proxy.thaw()
            await party.wait_connected(2)


def sockets_to(port: int) -> int:
    """How many sockets of this process are connected to that port."""
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        try:
            with socket.socket(fileno=os.dup(int(file.name))) as copy:
                count += copy.getpeername()[1:2] == (port,)
        except OSError:
            continue  # No socket, or not connected.
    return count


async def test_fault_12_a_half_open_connection_is_detected_under_load() -> None:
    loop = asyncio.get_running_loop()
    async with mosquitto() as broker, proxied(broker) as (proxy, address):
        party, link = Recorder(), MqttLink(address, keep_alive=1)

        left_open: list[int] = []
        party.on_disconnected = lambda: left_open.append(sockets_to(proxy.port))
        async with connected_link(link, party):
            assert sockets_to(proxy.port) == 1
            proxy.freeze()
            began = loop.time()
            # More than all buffers take: to close in an orderly way would never end.
            async with asyncio.timeout(20):
                told = await asyncio.gather(
                    *(link.publish("a", bytes(250_000)) for _ in range(100)),
                    return_exceptions=True,
                )
            assert loop.time() - began < 3
            await party.wait_disconnected(1)
            assert left_open == [0]
            proxy.thaw()
            await party.wait_connected(2)

    # Mosquitto takes 20 at a time; the others waited.
    assert [type(result) for result in told] == [type(None)] * 20 + [LinkDown] * 80


async def test_fault_23_a_message_over_the_brokers_limit_is_refused_before_it_is_sent() -> None:
    async with mosquitto(max_packet_size=65536) as broker:
        party, link = Recorder("a"), MqttLink(broker.address)

        async with connected_link(link, party):
            assert 64_000 < link.max_payload < 65_536
            with pytest.raises(TooLarge):
                await link.publish("a", bytes(2_000_000))
            with pytest.raises(TooLarge):
                await link.publish("a", bytes(65_536))
            await link.publish("a", b"small")
            await link.publish("a", b"x" * link.max_payload)

            assert await party.wait_messages(2) == [b"small", b"x" * link.max_payload]
        assert (party.births, party.reasons) == (1, [])


async def test_a_broker_with_few_inflight_messages_gets_all_in_order() -> None:
    async with mosquitto(max_inflight=2) as broker:
        party, link = Recorder("a"), MqttLink(broker.address)
        payloads = [b"%d" % number for number in range(300)]

        async with connected_link(link, party):
            await asyncio.gather(*(link.publish("a", payload) for payload in payloads))

            assert await party.wait_messages(300) == payloads
        assert party.births == 1


async def test_a_cancelled_publish_is_not_sent_and_does_not_delay_others() -> None:
    async with mosquitto(max_inflight=1) as broker, proxied(broker) as (proxy, address):
        party, link = Recorder("a"), MqttLink(address)

        async with connected_link(link, party):
            proxy.freeze()
            unsent = bytes(1000)
            references = sys.getrefcount(unsent)
            first, given_up, last = (
                asyncio.create_task(link.publish("a", payload)) for payload in (b"1", unsent, b"3")
            )
            await first
            given_up.cancel()
            await asyncio.wait((given_up,))
            assert given_up.cancelled()
            del given_up
            assert sys.getrefcount(unsent) == references
            proxy.thaw()
            await last

            assert await party.wait_messages(2) == [b"1", b"3"]


async def test_mqtt_5_is_tried_only_once_on_a_broker_without_it() -> None:
    async with nats() as broker, proxied(broker) as (proxy, address):
        party = Recorder()

        async with connected_link(MqttLink(address), party):
            assert (proxy.accepted, party.reasons) == (2, [])
            proxy.cut()
            await party.wait_connected(2)
            assert proxy.accepted == 3


@pytest.mark.parametrize("qos", [0, 1])
async def test_nats_creates_no_consumer_for_a_qos_0_subscription(qos: int) -> None:
    async with nats() as broker:
        party, link = Recorder("a"), MqttLink(broker.address, qos=qos)
        async with connected_link(link, party):
            said = [f"{number}".encode() for number in range(50)]
            for one in said:
                await link.publish("a", one)
            assert await party.wait_messages(50) == said
            kept = list((broker.folder / "store").rglob("$MQTT_msgs/obs/*"))
            assert len(kept) == qos


async def test_a_refused_subscription_is_reported_and_retried() -> None:
    denied = {"publish": ">", "subscribe": {"deny": ["secret.>"]}}
    users = [{"user": "me", "password": "x", "permissions": denied}]
    async with nats(more={"authorization": {"users": users}}) as broker:
        party = Recorder("open/a", "secret/b")
        address = Address("127.0.0.1", broker.port, None, "me", "x")

        async with running_link(MqttLink(address), party):
            for times in (1, 2):
                assert await party.wait_disconnected(times) == (
                    "the broker refused the subscription to secret/b"
                )
        assert party.births == 0


async def test_a_message_received_in_many_pieces_arrives_whole() -> None:
    async with mosquitto() as broker, proxied(broker) as (proxy, address):
        party, link = Recorder("a"), MqttLink(address)
        payload = bytes(range(256)) * 800

        async with connected_link(link, party):
            proxy.throttle(4_000_000)
            await link.publish("a", payload)
            await link.publish("a", b"after")

            assert await party.wait_messages(2) == [payload, b"after"]


async def test_messages_over_the_maximum_packet_size_are_not_received() -> None:
    async with mosquitto() as broker:
        party, link = Recorder("a"), MqttLink(broker.address)

        async with connected_link(link, party):
            _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(b"\x10\x0e\0\x04MQTT\4\2\0\x1e\0\2me")
            body = b"\0\1a" + bytes(3_000_000)
            writer.write(packet(0x31, body) + packet(0x30, b"\0\1ax") + b"\xe0\0")
            await writer.drain()

            assert await party.wait_messages(1) == [b"x"]
            writer.close()
            await writer.wait_closed()
        assert (party.births, party.reasons) == (1, [])


@pytest.mark.parametrize("secure", [False, True])
async def test_a_link_cancelled_while_connecting_leaves_no_tasks(
    secure: bool, tmp_path: Path
) -> None:
    certificates = make_certificates(tmp_path)
    tls = TlsSettings(str(certificates.ca)) if secure else None
    before = asyncio.all_tasks()
    async with FaultProxy("127.0.0.1", 9) as proxy:
        proxy.freeze()
        link = MqttLink(Address(proxy.host, proxy.port, tls))
        task = asyncio.create_task(link.run(Recorder(will=Will("a", b"gone"))))
        async with asyncio.timeout(30):
            await proxy.until_accepted(1)
            task.cancel()
            await asyncio.wait((task,))
        assert task.cancelled()
    gc.collect()

    assert asyncio.all_tasks() - before == set()
