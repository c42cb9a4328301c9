"""MQTT packets, byte by byte, as the standard writes them."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from evoclaw.transport import mqtt_packets as packets
from evoclaw.transport.link import MessageProperties, Will
from evoclaw.transport.mqtt_packets import V5, V311, MalformedPacket
from tests.support.bad_brokers import packet
from tests.support.properties import examples


def connect(version: int, **more: str) -> bytes:
    return packets.encode_connect(
        "pi",
        Will("t", b"off") if more.get("will") else None,
        more.get("username"),
        more.get("password"),
        keep_alive=30,
        max_packet_bytes=1 << 20,
        version=version,
    )


def test_a_connect_has_the_fields_of_its_version() -> None:
    head = b"\0\4MQTT"
    assert connect(V311) == packet(0x10, head + b"\4\x02\0\x1e" + b"\0\2pi")
    limit = b"\5\x27\0\x10\0\0"
    assert connect(V5) == packet(0x10, head + b"\5\x02\0\x1e" + limit + b"\0\2pi")


def test_a_connect_with_a_will_and_credentials_says_so_in_its_flags() -> None:
    found = connect(V5, will="yes", username="me", password="secret")
    assert found[9] == 0x80 | 0x40 | 0x20 | 0x08 | 0x04 | 0x02
    assert found.endswith(b"\0\2pi" + b"\0" + b"\0\1t\0\3off" + b"\0\2me" + b"\0\6secret")
    assert connect(V311, will="yes").endswith(b"\0\2pi" + b"\0\1t\0\3off")


def test_a_subscribe_names_each_topic_with_its_qos() -> None:
    assert packets.encode_subscribe(["a", "b/+"], 1, V311) == packet(
        0x82, b"\0\1" + b"\0\1a\1" + b"\0\3b/+\1"
    )
    assert packets.encode_subscribe(["a"], 0, V5) == packet(0x82, b"\0\1\0" + b"\0\1a\0")


@pytest.mark.parametrize("version", [V311, V5])
@settings(max_examples=examples(200))
@given(
    topic=st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40),
    payload=st.binary(max_size=300) | st.just(bytes(20_000)) | st.just(bytes(200_000)),
    packet_id=st.integers(1, 65_535),
    retain=st.booleans(),
)
def test_a_message_is_read_as_it_was_written(
    version: int, topic: str, payload: bytes, packet_id: int, retain: bool
) -> None:
    sent = packets.encode_publish(
        topic.encode(), payload, packet_id, retain=retain, version=version
    )
    first, last = packets.packet_bounds(b"before" + sent, 6)
    body = (b"before" + sent)[first:last]
    assert last == 6 + len(sent)
    assert packets.read_publish(sent[0], body, version) == packets.Publish(
        topic, payload, packet_id, retain
    )


def test_the_properties_of_a_message_are_read() -> None:
    properties = b"\x0f" + b"\1\1" + b"\2\0\0\0\x05" + b"\x0b\x81\1" + b"\x26\0\0\0\0"
    body = b"\0\1a" + b"\0\7" + properties + b"text"
    found = MessageProperties(user=(("", ""),))
    assert packets.read_publish(0x32, body, V5) == packets.Publish("a", b"text", 7, False, found)


def test_a_property_that_is_no_text_does_not_end_the_connection() -> None:
    body = b"\0\1a" + b"\0\7" + b"\x05\x08\0\2\xff\xfe" + b"text"
    found = packets.read_publish(0x32, body, V5)
    assert (found.payload, found.properties) == (b"text", MessageProperties("\ufffd\ufffd"))


@given(
    st.text(max_size=20),
    st.binary(max_size=300),
    st.lists(st.tuples(st.text(max_size=20), st.text(max_size=200)), max_size=4),
)
@settings(max_examples=examples(200))
def test_what_is_encoded_as_properties_is_read_again(
    response_topic: str, correlation: bytes, user: list[tuple[str, str]]
) -> None:
    sent = MessageProperties(response_topic, correlation, "application/json", tuple(user))
    own = packets.encode_properties(sent)
    packet = packets.encode_publish(b"a", b"x", 7, retain=False, version=V5, properties=own)
    first, last = packets.packet_bounds(packet, 0)
    assert packets.read_publish(packet[0], packet[first:last], V5).properties == sent
    old = packets.encode_publish(b"a", b"x", 7, retain=False, version=V311, properties=own)
    first, last = packets.packet_bounds(old, 0)
    assert packets.read_publish(old[0], old[first:last], V311).properties is None


def test_the_limits_of_a_broker_are_read_from_its_connack() -> None:
    properties = b"\x13\0\x14" + b"\x21\0\x0a" + b"\x27\0\0\x10\0" + b"\x12\0\2id"
    found = packets.read_connack(b"\0\0" + bytes([len(properties)]) + properties, V5)
    assert (found.code, found.limits) == (0, {19: 20, 33: 10, 39: 4096})
    assert packets.read_connack(b"\0\x87", V5).code == 0x87
    assert packets.read_connack(b"\0\0", V311) == packets.ConnAck(0, {})


def test_an_incomplete_packet_ends_beyond_the_data() -> None:
    whole = packet(0x30, bytes(500))
    for size in range(1, len(whole)):
        assert packets.packet_bounds(whole[:size], 0)[1] > size
    assert packets.packet_bounds(whole, 0) == (3, 503)


@settings(max_examples=examples(2000))
@given(
    head=st.sampled_from([0x20, 0x30, 0x31, 0x32, 0x34, 0x36, 0x40, 0x90]),
    body=st.binary(max_size=40),
    version=st.sampled_from([V311, V5]),
)
def test_random_bytes_are_read_or_refused(head: int, body: bytes, version: int) -> None:
    readers = {
        0x20: lambda: packets.read_connack(body, version),
        0x40: lambda: packets.read_puback(body),
        0x90: lambda: packets.read_suback(body, version),
    }
    try:
        readers.get(head, lambda: packets.read_publish(head, body, version))()
        packets.packet_bounds(body, 0)
    except MalformedPacket:
        pass
