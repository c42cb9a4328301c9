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
from tests.support.parties import Recorder, joined, running


@asynccontextmanager
async def proxied(broker: Broker) -> AsyncGenerator[tuple[FaultProxy, Address]]:
    async with FaultProxy("127.0.0.1", broker.port) as proxy:
        yield proxy, Address(proxy.host, proxy.port)


async def test_a_wrong_password_is_told_and_tried_again() -> None:
    async with mosquitto(users={"me": "right"}) as broker:
        wrong, right = Recorder(), Recorder()
        host, port = "127.0.0.1", broker.port

        async with running(MqttLink(Address(host, port, None, "me", "wrong")), wrong):
            for times in (1, 2, 3):
                reason = await wrong.was_lost(times)
                assert "refused" in reason and "not authorized" in reason
        async with joined(MqttLink(Address(host, port, None, "me", "right")), right):
            pass
        assert (wrong.births, right.reasons) == (0, [])


async def test_a_broker_must_be_vouched_for(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    async with mosquitto(tls=certificates) as broker:
        trusting, stranger, party = Recorder("a"), Recorder(), TlsSettings(str(certificates.ca))
        link = MqttLink(Address("127.0.0.1", broker.port, party))

        async with joined(link, trusting):
            await link.publish("a", b"x" * 100_000)
            assert await trusting.got(1) == [b"x" * 100_000]
        for address in (
            Address("127.0.0.1", broker.port, TlsSettings()),
            Address("localhost", broker.port, party),
        ):
            stranger = Recorder()
            async with running(MqttLink(address), stranger):
                assert "certificate verify failed" in await stranger.was_lost(1)
            assert stranger.births == 0


async def test_a_broker_may_want_a_certificate_of_ours(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    async with mosquitto(tls=made, client_certificates=True) as broker:
        known = TlsSettings(str(made.ca), str(made.client_cert), str(made.client_key))

        async with joined(MqttLink(Address("127.0.0.1", broker.port, known)), Recorder()):
            pass
        unknown = Recorder()
        bare = TlsSettings(str(made.ca))
        async with running(MqttLink(Address("127.0.0.1", broker.port, bare)), unknown):
            assert await unknown.was_lost(1)
        assert unknown.births == 0


async def test_fault_11_a_killed_broker_is_found_again() -> None:
    async with mosquitto() as broker:
        party, link = Recorder("a"), MqttLink(broker.address)

        async with joined(link, party):
            broker.kill()
            await party.was_lost(2)
            assert "cannot be reached" in party.reasons[1]
            await broker.start()
            await party.was_born(2)
            await link.publish("a", b"again")

            assert await party.got(1) == [b"again"]


async def test_fault_12_a_half_open_connection_is_noticed_while_nothing_is_sent() -> None:
    loop = asyncio.get_running_loop()
    async with mosquitto() as broker, proxied(broker) as (proxy, address):
        party = Recorder()

        async with joined(MqttLink(address, keep_alive=1), party):
            # Idle, it stays up for longer than either side would wait for the other.
            with pytest.raises(TimeoutError):
                await party.was_lost(1, seconds=1.8)
            proxy.freeze()
            began = loop.time()
            assert "nothing heard" in await party.was_lost(1)
            # Twice the keep-alive, and something for a busy machine.
            assert loop.time() - began < 3
            proxy.thaw()
            await party.was_born(2)


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


async def test_fault_12_a_half_open_connection_is_noticed_while_much_is_sent() -> None:
    loop = asyncio.get_running_loop()
    async with mosquitto() as broker, proxied(broker) as (proxy, address):
        party, link = Recorder(), MqttLink(address, keep_alive=1)

        left_open: list[int] = []
        party.on_disconnected = lambda: left_open.append(sockets_to(proxy.port))
        async with joined(link, party):
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
            await party.was_lost(1)
            assert left_open == [0]
            proxy.thaw()
            await party.was_born(2)

    # Mosquitto takes 20 at a time, the library one less; the others waited.
    assert [type(result) for result in told] == [type(None)] * 19 + [LinkDown] * 81


async def test_fault_23_what_the_broker_would_not_take_is_refused_before_it_is_sent() -> None:
    async with mosquitto(max_packet_size=65536) as broker:
        party, link = Recorder("a"), MqttLink(broker.address)

        async with joined(link, party):
            assert 64_000 < link.max_payload < 65_536
            with pytest.raises(TooLarge):
                await link.publish("a", bytes(2_000_000))
            with pytest.raises(TooLarge):
                await link.publish("a", bytes(65_536))
            await link.publish("a", b"small")
            await link.publish("a", b"x" * link.max_payload)

            assert await party.got(2) == [b"small", b"x" * link.max_payload]
        assert (party.births, party.reasons) == (1, [])


async def test_a_broker_that_takes_few_at_a_time_gets_all_in_order() -> None:
    async with mosquitto(max_inflight=2) as broker:
        party, link = Recorder("a"), MqttLink(broker.address)
        payloads = [b"%d" % number for number in range(300)]

        async with joined(link, party):
            await asyncio.gather(*(link.publish("a", payload) for payload in payloads))

            assert await party.got(300) == payloads
        assert party.births == 1


async def test_one_who_no_longer_waits_is_not_sent_and_holds_nobody_up() -> None:
    async with mosquitto(max_inflight=2) as broker, proxied(broker) as (proxy, address):
        party, link = Recorder("a"), MqttLink(address)

        async with joined(link, party):
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

            assert await party.got(2) == [b"1", b"3"]


async def test_a_broker_of_the_older_version_is_asked_only_once_for_the_newer() -> None:
    async with nats() as broker, proxied(broker) as (proxy, address):
        party = Recorder()

        async with joined(MqttLink(address), party):
            assert (proxy.accepted, party.reasons) == (2, [])
            proxy.cut()
            await party.was_born(2)
            assert proxy.accepted == 3


@pytest.mark.parametrize("qos", [0, 1])
async def test_nats_keeps_nothing_for_who_wants_messages_unacknowledged(qos: int) -> None:
    async with nats() as broker:
        party, link = Recorder("a"), MqttLink(broker.address, qos=qos)
        async with joined(link, party):
            said = [f"{number}".encode() for number in range(50)]
            for one in said:
                await link.publish("a", one)
            assert await party.got(50) == said
            kept = list((broker.folder / "store").rglob("$MQTT_msgs/obs/*"))
            assert len(kept) == qos


async def test_a_subscription_that_is_refused_is_told_and_tried_again() -> None:
    denied = {"publish": ">", "subscribe": {"deny": ["secret.>"]}}
    users = [{"user": "me", "password": "x", "permissions": denied}]
    async with nats(more={"authorization": {"users": users}}) as broker:
        party = Recorder("open/a", "secret/b")
        address = Address("127.0.0.1", broker.port, None, "me", "x")

        async with running(MqttLink(address), party):
            for times in (1, 2):
                assert await party.was_lost(times) == (
                    "the broker does not let us listen to secret/b"
                )
        assert party.births == 0


async def test_a_message_that_comes_in_many_pieces_arrives_whole() -> None:
    async with mosquitto() as broker, proxied(broker) as (proxy, address):
        party, link = Recorder("a"), MqttLink(address)
        payload = bytes(range(256)) * 800

        async with joined(link, party):
            proxy.throttle(4_000_000)
            await link.publish("a", payload)
            await link.publish("a", b"after")

            assert await party.got(2) == [payload, b"after"]


async def test_what_others_say_too_loudly_is_not_sent_to_us() -> None:
    async with mosquitto() as broker:
        party, link = Recorder("a"), MqttLink(broker.address)

        async with joined(link, party):
            _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(b"\x10\x0e\0\x04MQTT\4\2\0\x1e\0\2me")
            body = b"\0\1a" + bytes(3_000_000)
            writer.write(packet(0x31, body) + packet(0x30, b"\0\1ax") + b"\xe0\0")
            await writer.drain()

            assert await party.got(1) == [b"x"]
            writer.close()
            await writer.wait_closed()
        assert (party.births, party.reasons) == (1, [])


@pytest.mark.parametrize("secure", [False, True])
async def test_a_link_cancelled_while_nobody_answers_leaves_nothing(
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
