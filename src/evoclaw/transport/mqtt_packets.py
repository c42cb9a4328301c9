"""MQTT packets, version 5 and 3.1.1: encodes those of a client, decodes those of a broker.

Only what a link uses: QoS 1 to the broker, QoS 0 or 1 from it, no topic aliases, no sessions.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from evoclaw.transport.link import MessageProperties, Will

V311, V5 = 4, 5
"""Versions of MQTT, by their protocol level."""
CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP, DISCONNECT = 0x20, 0x30, 0x40, 0x90, 0xD0, 0xE0
"""The packets of a broker, by the upper half of their first byte."""
PING, LEAVE = b"\xc0\x00", b"\xe0\x00"
"""PINGREQ, and DISCONNECT without a will."""
SUBSCRIBE_ID = 1
"""The packet id of the only SUBSCRIBE of a connection, which comes before all messages."""
SERVER_KEEP_ALIVE, RECEIVE_MAXIMUM, MAXIMUM_PACKET_SIZE = 19, 33, 39
"""Properties of a CONNACK."""

_NUMBER_BYTES = {
    **dict.fromkeys((1, 23, 25, 36, 37, 40, 41, 42), 1),
    **dict.fromkeys((SERVER_KEEP_ALIVE, RECEIVE_MAXIMUM, 34, 35), 2),
    **dict.fromkeys((2, 17, 24, MAXIMUM_PACKET_SIZE), 4),
}
"""Properties that are numbers, and their sizes."""
_TEXTS = {**dict.fromkeys((3, 8, 9, 18, 21, 22, 26, 28, 31), 1), 38: 2}
"""Properties that are texts, and how many."""
_CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION_DATA, _USER_PROPERTY = 3, 8, 9, 38
_SUBSCRIPTION_ID = 11
_QOS_BITS = 0x06


class MalformedPacket(ValueError):
    """The bytes are not what a broker sends."""


class ConnAck(Struct, frozen=True):
    """A broker's answer to CONNECT."""

    code: int
    """0 if it accepts the connection."""
    limits: dict[int, int]
    """Its properties that are numbers."""


class Publish(Struct, frozen=True):
    """A message from a broker."""

    topic: str
    payload: bytes
    packet_id: int
    """To be acknowledged; 0 if it is not."""
    retained: bool
    properties: MessageProperties | None = None


def encode_connect(
    client_id: str,
    will: Will | None,
    username: str | None,
    password: str | None,
    *,
    keep_alive: int,
    max_packet_bytes: int,
    version: int,
) -> bytes:
    """A CONNECT with a clean session."""
    flags, properties = 0x02, b""
    if version == V5:
        limit = bytes([MAXIMUM_PACKET_SIZE]) + max_packet_bytes.to_bytes(4, "big")
        properties = _length(len(limit)) + limit
    parts = [properties, _text(client_id.encode())]
    if will is not None:
        flags |= 0x2C  # with a will: QoS 1, retained
        own = encode_properties(will.properties) if version == V5 else b""
        parts += [own, _text(will.topic.encode()), _text(will.payload)]
    if username:
        flags |= 0x80
        parts.append(_text(username.encode()))
        if password:
            flags |= 0x40
            parts.append(_text(password.encode()))
    head = b"\0\4MQTT" + bytes([version, flags]) + keep_alive.to_bytes(2, "big")
    return _packet(0x10, head, *parts)


def encode_subscribe(topics: Sequence[str], qos: int, version: int) -> bytes:
    """A SUBSCRIBE."""
    filters = [_text(topic.encode()) + bytes([qos]) for topic in topics]
    head = SUBSCRIBE_ID.to_bytes(2, "big") + (b"\0" if version == V5 else b"")
    return _packet(0x82, head, *filters)


def encode_publish(
    topic: bytes,
    payload: bytes,
    packet_id: int,
    *,
    retain: bool,
    version: int,
    properties: bytes = b"\0",
) -> bytes:
    """A PUBLISH with QoS 1; `properties` are those of `encode_properties`."""
    head = _text(topic) + packet_id.to_bytes(2, "big")
    own = properties if version == V5 else b""
    return _packet(0x33 if retain else 0x32, head + own, payload)


def encode_properties(properties: MessageProperties | None) -> bytes:
    """The properties of a message, with their length."""
    if properties is None:
        return b"\0"
    parts: list[bytes] = []
    for name, text in (
        (_CONTENT_TYPE, properties.content_type.encode()),
        (_RESPONSE_TOPIC, properties.response_topic.encode()),
        (_CORRELATION_DATA, properties.correlation),
    ):
        if text:
            parts.append(bytes([name]) + _text(text))
    parts += [
        bytes([_USER_PROPERTY]) + _text(name.encode()) + _text(value.encode())
        for name, value in properties.user
    ]
    body = b"".join(parts)
    return _length(len(body)) + body


def encode_puback(packet_id: int) -> bytes:
    """The acknowledgement of a message."""
    return b"\x40\x02" + packet_id.to_bytes(2, "big")


def packet_bounds(data: bytes | bytearray, start: int) -> tuple[int, int]:
    """Where the body of the packet at `start` begins and ends; it may not be complete yet.

    Both are beyond the data while even the length of the packet is incomplete.
    """
    size = 0
    for index, byte in enumerate(data[start + 1 : start + 5]):
        size |= (byte & 127) << (7 * index)
        if byte < 128:
            first = start + index + 2
            return first, first + size
    if len(data) - start >= 5:
        raise MalformedPacket("an unterminated length")
    return len(data) + 1, len(data) + 1


def read_connack(body: bytes, version: int) -> ConnAck:
    """Decode a CONNACK."""
    if len(body) < 2:
        raise MalformedPacket("a CONNACK without a code")
    accepted = body[1] == 0 and len(body) > 2 and version == V5
    return ConnAck(body[1], _read_properties(body, 2)[0] if accepted else {})


def read_suback(body: bytes, version: int) -> bytes:
    """Decode a SUBACK: the codes of the subscriptions, in order."""
    if int.from_bytes(body[:2], "big") != SUBSCRIBE_ID:
        raise MalformedPacket("the answer to another SUBSCRIBE")
    return body[_read_properties(body, 2)[1] if version == V5 else 2 :]


def read_puback(body: bytes) -> int:
    """Decode a PUBACK: the packet id of the message."""
    if len(body) < 2:
        raise MalformedPacket("a PUBACK without a packet id")
    return int.from_bytes(body[:2], "big")


def read_publish(head: int, body: bytes, version: int) -> Publish:
    """Decode a PUBLISH."""
    end = 2 + int.from_bytes(body[:2], "big")
    packet_id, at = 0, end
    if head & _QOS_BITS:
        packet_id, at = int.from_bytes(body[end : end + 2], "big"), end + 2
        if head & _QOS_BITS != 0x02 or not packet_id:
            raise MalformedPacket("an unexpected QoS, or no packet id")
    if end == 2 or at > len(body):
        raise MalformedPacket("no topic, or a topic that is longer than its message")
    properties = None
    try:
        if version == V5 and body[at : at + 1] != b"\0":
            start, at = at, _read_properties(body, at)[1]
            properties = _message_properties(body, start, at)
        elif version == V5:
            at += 1
        return Publish(body[2:end].decode(), body[at:], packet_id, bool(head & 1), properties)
    except UnicodeDecodeError:
        raise MalformedPacket("a topic that is not text") from None


def _message_properties(body: bytes, start: int, end: int) -> MessageProperties:
    """The properties of a message, which were found to be well formed."""
    _, at = _read_length(body, start)
    texts: dict[int, bytes] = {}
    user: list[tuple[str, str]] = []
    while at < end:
        name, at = body[at], at + 1
        if name in _NUMBER_BYTES:
            at += _NUMBER_BYTES[name]
        elif name == _SUBSCRIPTION_ID:
            _, at = _read_length(body, at)
        else:
            found: list[bytes] = []
            for _ in range(_TEXTS[name]):
                first = at + 2
                at = first + int.from_bytes(body[at:first], "big")
                found.append(body[first:at])
            if name == _USER_PROPERTY:
                user.append((_lenient(found[0]), _lenient(found[1])))
            else:
                texts[name] = found[0]
    return MessageProperties(
        _lenient(texts.get(_RESPONSE_TOPIC, b"")),
        texts.get(_CORRELATION_DATA, b""),
        _lenient(texts.get(_CONTENT_TYPE, b"")),
        tuple(user),
    )


def _lenient(text: bytes) -> str:
    """A text of the sender's: a bad one must not end the connection of the receiver."""
    return text.decode(errors="replace")


def _packet(head: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes([head]) + _length(len(body)) + body


def _text(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def _length(size: int) -> bytes:
    if size < 128:
        return bytes([size])
    digits = bytearray()
    while size > 127:
        digits.append(size & 127 | 128)
        size >>= 7
    return bytes([*digits, size])


def _read_length(body: bytes, start: int) -> tuple[int, int]:
    size = 0
    for index, byte in enumerate(body[start : start + 4]):
        size |= (byte & 127) << (7 * index)
        if byte < 128:
            return size, start + index + 1
    raise MalformedPacket("an unterminated length")


def _read_properties(body: bytes, start: int) -> tuple[dict[int, int], int]:
    """The properties that are numbers, and where all of them end."""
    size, at = _read_length(body, start)
    end, numbers = at + size, dict[int, int]()
    while at < min(end, len(body)):
        name, at = body[at], at + 1
        if name in _NUMBER_BYTES:
            last = at + _NUMBER_BYTES[name]
            numbers[name], at = int.from_bytes(body[at:last], "big"), last
        elif name == _SUBSCRIPTION_ID:
            _, at = _read_length(body, at)
        elif name in _TEXTS:
            for _ in range(_TEXTS[name]):
                at += 2 + int.from_bytes(body[at : at + 2], "big")
        else:
            raise MalformedPacket(f"property {name} does not exist")
    if at != end or end > len(body):
        raise MalformedPacket("properties that are longer than their packet")
    return numbers, end
