"""Brokers that say what they should not: the connection is lost, told, and made again."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress

import pytest

from evoclaw.transport.link import Incoming
from evoclaw.transport.mqtt import MqttLink
from tests.support.bad_brokers import DISCONNECT, SUBACK, WELCOME, Peer, bad_broker, packet
from tests.support.parties import Recorder, connected_link, running_link

QUICK = 20.0
"""Seconds: less than it takes to give up on a broker that says nothing."""

RUBBISH = {
    "an unterminated length": b"\x30\xff\xff\xff\xff\xff",
    "an unterminated length of nothing": b"\x30\x80\x80\x80\x80\x00" + bytes(9),
    "a packet of 200 MB": b"\x30\x80\x80\x80\x64" + bytes(100),
    "a packet that does not exist": b"\x00\x00",
    "another that does not exist": b"\xf0\x00",
    "a message cut short": packet(0x32, b"\0"),
    "a topic longer than its message": packet(0x32, b"\xff\xffa"),
    "a topic that is no text": packet(0x30, b"\0\1\xff\0x"),
    "a property that does not exist": packet(0x30, b"\0\1a\2\x7f\0x"),
    "an acknowledgement of nothing": packet(0x40, b"\0"),
    "a good-bye": packet(0xE0, b"\x8e"),
    "a good-bye without a reason": packet(0xE0, b""),
}


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH)
async def test_malformed_packets_end_the_connection_and_the_link_reconnects(
    rubbish: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    async def behave(peer: Peer) -> None:
        await peer.accept()
        await party.wait_connected(1)
        if not party.reasons:
            await peer.send(rubbish)

    party = Recorder("a")
    async with bad_broker(behave) as address, connected_link(MqttLink(address), party):
        reason = await party.wait_disconnected(1, QUICK)
        await party.wait_connected(2)

    assert reason.startswith(("the broker sent data that is not MQTT", "the broker ended"))
    assert party.messages == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "rubbish",
    [
        *(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n", b"\x15\3\1\0\2\2\x46" + bytes(99)),
        *(b"\x20\x00", b"\x20\x03\0\0\x05", b"\x20\x05\0\0\2\x7f\0", b"\xff" * 10),
    ],
)
async def test_a_server_that_does_not_speak_mqtt_is_reported_and_retried(rubbish: bytes) -> None:
    party, before = Recorder("a"), asyncio.all_tasks()

    async def behave(peer: Peer) -> None:
        await peer.send(rubbish)
        peer.writer.close()

    async with bad_broker(behave) as address, running_link(MqttLink(address), party):
        await party.wait_disconnected(2, QUICK)
    assert party.births == 0
    assert asyncio.all_tasks() == before


async def test_random_bytes_never_end_a_link() -> None:
    chance = random.Random(20_24)
    party = Recorder("a")

    async def behave(peer: Peer) -> None:
        if chance.random() < 0.7:
            await peer.accept()
        await peer.send(chance.randbytes(chance.randrange(1, 3000)))
        peer.writer.close()

    async with bad_broker(behave) as address:
        for _ in range(40):
            # A new link each time, for its first wait is short.
            party = Recorder("a")
            async with running_link(MqttLink(address), party) as task:
                await party.wait_disconnected(1)
                assert not task.done()


async def test_a_connack_may_arrive_byte_by_byte() -> None:
    party = Recorder("a")

    async def behave(peer: Peer) -> None:
        await peer.read()
        for byte in WELCOME:
            await peer.send(bytes([byte]))
        subscribe = await peer.read()
        for byte in packet(SUBACK, subscribe[2:4] + b"\0\1") + packet(0x31, b"\0\1a\0x"):
            await peer.send(bytes([byte]))

    async with bad_broker(behave) as address, connected_link(MqttLink(address), party):
        assert await party.wait_messages(1) == [b"x"]
    assert party.messages[0].retained


async def test_the_brokers_disconnect_reason_is_reported() -> None:
    async def behave(peer: Peer) -> None:
        await peer.accept()
        await peer.send(packet(0xE0, b"\x8e\0"))

    party = Recorder("a")
    async with bad_broker(behave) as address, running_link(MqttLink(address), party):
        reason = await party.wait_disconnected(1, QUICK)

    assert reason == "the broker ended the connection: another client connected with the same name"


@pytest.mark.parametrize(("codes", "word"), [(b"\x87", "subscription to a"), (b"\1\1", "not MQTT")])
async def test_a_subscription_that_is_not_granted_ends_the_connection(
    codes: bytes, word: str
) -> None:
    async def behave(peer: Peer) -> None:
        await peer.accept(codes if not party.reasons else b"\1")

    party = Recorder("a")
    async with bad_broker(behave) as address, connected_link(MqttLink(address), party):
        assert party.births == 1

    assert word in party.reasons[0]


@pytest.mark.parametrize("code", [1, 132])
async def test_a_link_falls_back_to_mqtt_3_1_1(code: int) -> None:
    versions: list[int] = []

    async def behave(peer: Peer) -> None:
        connect = await peer.read()
        versions.append(connect[8])
        if versions[-1] == 5:
            return await peer.send(packet(0x20, bytes([0, code])))
        return await peer.send(packet(0x20, b"\0\0"))

    party = Recorder()
    async with bad_broker(behave) as address, connected_link(MqttLink(address), party):
        assert (versions, party.reasons) == ([5, 4], [])


async def test_keep_alive_and_limits_requested_by_the_broker_are_used() -> None:
    wished = packet(0x20, b"\0\0" + b"\x0b" + b"\x13\0\1" + b"\x21\0\1" + b"\x27\0\0\x10\0")
    began = 0.0

    async def behave(peer: Peer) -> None:
        nonlocal began
        await peer.read()
        await peer.send(wished)
        began = time.monotonic()

    party = Recorder()
    async with bad_broker(behave) as address:
        link = MqttLink(address, keep_alive=600)
        async with connected_link(link, party):
            assert 3000 < link.max_payload < 4096
            assert "no data from the broker" in await party.wait_disconnected(1, QUICK)
            assert time.monotonic() - began < 60


@pytest.mark.parametrize("replies", [True, False])
async def test_a_message_is_acknowledged_with_the_reply_to_it_or_alone(replies: bool) -> None:
    heard: list[bytes] = []

    async def behave(peer: Peer) -> None:
        await peer.accept()
        await peer.send(packet(0x32, b"\0\1a" + b"\0\7" + b"\0" + b"hello"))
        while len(heard) < 1 + replies:
            heard.append(await peer.read())
        peer.writer.close()

    party, tasks = Recorder("a"), list[asyncio.Task[None]]()

    def reply(_: Incoming) -> None:
        tasks.append(asyncio.create_task(link.publish("b", b"reply")))

    party.on_received = reply if replies else None
    async with bad_broker(behave) as address:
        link = MqttLink(address)
        async with connected_link(link, party):
            await party.wait_disconnected(1, QUICK)
    assert [data[0] for data in heard] == [0x40, 0x32][: 1 + replies]
    assert heard[0] == b"\x40\2\0\7"


@pytest.mark.parametrize("acknowledges", [True, False])
async def test_a_link_leaves_with_a_disconnect_once_its_messages_are_acknowledged(
    acknowledges: bool,
) -> None:
    """Without it the broker publishes the will: an edge's last message is that it is offline."""
    heard: list[int] = []

    async def behave(peer: Peer) -> None:
        await peer.accept()
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not heard or heard[-1] != DISCONNECT:
                packet = await peer.read()
                heard.append(packet[0])
                if acknowledges and len(heard) == 3:
                    for number in (1, 2, 3):
                        peer.writer.write(bytes((0x40, 2, 0, number)))
        peer.writer.close()

    party = Recorder("a")
    async with bad_broker(behave) as address:
        link = MqttLink(address)
        async with connected_link(link, party):
            for payload in (b"1", b"2", b"3"):
                await link.publish("a", payload)
    assert heard == [0x32, 0x32, 0x32, *([DISCONNECT] if acknowledges else [])]
