"""`MqttConnection`: one MQTT connection, from open to close: reads, writes, keeps it alive."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from evoclaw.transport import mqtt_packets as packets
from evoclaw.transport.address import Address
from evoclaw.transport.in_flight import MAX_IN_FLIGHT_MESSAGES, InFlight
from evoclaw.transport.link import MAX_PAYLOAD_BYTES, MAX_TOPIC_BYTES, Incoming, Party
from evoclaw.transport.mqtt_packets import ConnAck, MalformedPacket

LEAVE_TIMEOUT_S = 1.0
"""How long a broker may take to close the connection after a DISCONNECT."""
MAX_INCOMING_BYTES = 2 << 20
"""Bytes of an incoming packet: a larger length field is not trusted."""

ACK_DELAY_S = 0.005
"""How long the acknowledgement of a message waits for another packet to be sent with it."""
MAX_HELD_ACKS = 8
"""Acknowledgements that wait: a broker sends only some messages before it wants one."""
READ_BYTES = 32 * 1024
"""Bytes that are read at once."""

_OVERHEAD_BYTES = 10 + MAX_TOPIC_BYTES  # of a PUBLISH, at most: header, lengths, packet id, topic
_NO = 128  # reason codes from here on are refusals
_GARBAGE = "the broker sent data that is not MQTT"
_WRONG_VERSION = (1, 132)
_REFUSALS = {
    1: "unacceptable protocol version",
    2: "identifier rejected",
    3: "broker unavailable",
    4: "bad user name or password",
    5: "not authorized",
    128: "unspecified error",
    129: "malformed packet",
    130: "protocol error",
    131: "implementation specific error",
    132: "unsupported protocol version",
    133: "client identifier not valid",
    134: "bad user name or password",
    135: "not authorized",
    136: "server unavailable",
    137: "server busy",
    138: "banned",
    140: "bad authentication method",
    144: "topic name invalid",
    149: "packet too large",
    151: "quota exceeded",
    153: "payload format invalid",
    154: "retain not supported",
    155: "QoS not supported",
    156: "use another server",
    157: "server moved",
    159: "connection rate exceeded",
}
_DISCONNECT_REASONS = {
    139: "it is shutting down",
    142: "another client connected with the same name",
    149: "too large",
}


class MqttConnection(asyncio.BufferedProtocol):
    """A connection from open to close.

    Buffered: for a plain protocol asyncio allocates 256 KB whenever it reads.
    """

    def __init__(self, party: Party, keep_alive: int, version: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        """Done when the connection has ended or failed; its result is the reason."""
        self.max_payload = MAX_PAYLOAD_BYTES
        self.lived = 0.0
        self._party, self._keep_alive, self._version = party, keep_alive, version
        self.in_flight = InFlight(self.write, version)
        self._transport: asyncio.Transport | None = None
        self._socket: Any = None
        self._closed = asyncio.Event()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._rest, self._wanted = bytearray(), 0
        self._corked: list[bytes] | None = None
        self._acks: list[bytes] = []
        self._ack_timer: asyncio.TimerHandle | None = None
        self._began = self._heard = self._pinged = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._refusal = 0
        self._accepted: asyncio.Future[ConnAck] = self._loop.create_future()
        self._granted: asyncio.Future[bytes] = self._loop.create_future()
        self._held: list[Incoming] | None = []

    @property
    def wrong_version(self) -> bool:
        """Whether the broker refused this version of MQTT."""
        return self._refusal in _WRONG_VERSION

    async def open(self, address: Address, tls: ssl.SSLContext | None) -> None:
        """Connect, and read the broker's limits."""
        will = self._party.will()
        await self._loop.create_connection(lambda: self, address.host, address.port, ssl=tls)
        self.write(
            packets.encode_connect(
                self._party.client_id,
                will,
                address.username,
                address.password,
                keep_alive=self._keep_alive,
                max_packet_bytes=MAX_INCOMING_BYTES,
                version=self._version,
            )
        )
        limits = (await self._accepted).limits
        keep_alive = limits.get(packets.SERVER_KEEP_ALIVE, 0) or self._keep_alive
        self._keep_alive = min(keep_alive, self._keep_alive)
        max_packet = limits.get(packets.MAXIMUM_PACKET_SIZE, MAX_INCOMING_BYTES)
        self.max_payload = max(0, min(MAX_PAYLOAD_BYTES, max_packet - _OVERHEAD_BYTES))
        window = limits.get(packets.RECEIVE_MAXIMUM, MAX_IN_FLIGHT_MESSAGES)
        self.in_flight.limit = max(1, min(MAX_IN_FLIGHT_MESSAGES, window))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast("asyncio.Transport", transport)
        self._socket = transport.get_extra_info("socket")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def write(self, data: bytes) -> None:
        """Send at once if this is the first write in this loop iteration; else batch it."""
        if self._corked is not None:
            self._corked.append(data)
        elif self._transport is not None:
            self._corked = []
            self._loop.call_soon(self._uncork)
            self._send([data])

    def _uncork(self) -> None:
        corked, self._corked = self._corked, None
        if corked:
            self._send(corked)

    def _send(self, data: list[bytes]) -> None:
        acks, self._acks = self._acks, []
        if self._transport is not None and not self.lost.done():
            self._transport.write(b"".join(acks + data))

    def _acknowledge(self, packet_id: int) -> None:
        """Acknowledge a message together with what is sent next, or a moment later."""
        self._acks.append(packets.encode_puback(packet_id))
        if len(self._acks) >= MAX_HELD_ACKS:
            self._send([])
        elif self._ack_timer is None:
            self._ack_timer = self._loop.call_later(ACK_DELAY_S, self._send_acks)

    def _send_acks(self) -> None:
        self._ack_timer = None
        if self._acks:
            self._send([])

    async def subscribe(self, topics: Sequence[str], qos: int) -> None:
        """Subscribe to all of these topics."""
        if not topics or self.lost.done():
            return
        self.write(packets.encode_subscribe(topics, qos, self._version))
        codes = await self._granted
        if len(codes) != len(topics):
            self.lose(_GARBAGE)
        refused = [topic for topic, code in zip(topics, codes, strict=False) if code >= _NO]
        if refused:
            self.lose(f"the broker refused the subscription to {', '.join(refused)}")

    def begin(self) -> None:
        """Deliver messages once the party is connected, and keep the connection alive."""
        self._began = self._heard = self._loop.time()
        self._timer = self._loop.call_later(self._keep_alive / 2, self._look)
        self._loop.call_soon(self._release)

    def lose(self, reason: str) -> None:
        """Abort the connection; the first reason counts."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    async def close(self, *, politely: bool) -> None:
        """Close the connection, with a DISCONNECT (the will is not published) or without.

        Without one if messages are not acknowledged in time: an edge's last is that it leaves.
        """
        try:
            if politely and self._transport is not None and await self._acknowledged():
                self.write(packets.LEAVE)
                self._uncork()
                self._end("left")
                # Let the broker close first: closing with unread data sends a reset, which may
                # overtake the DISCONNECT.
                await self._hung_up()
        finally:
            self.lose("left")
        if self._transport is not None:
            await self._hung_up()

    async def _acknowledged(self) -> bool:
        """Whether the broker has acknowledged all messages, after a short wait."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self.in_flight.drained()
        return self.in_flight.is_empty and not self.lost.done()

    async def _hung_up(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._closed.wait()

    def _end(self, reason: str) -> None:
        if self.lost.done():
            return
        self.lost.set_result(reason)
        self.lived = self._loop.time() - self._began if self._began else 0.0
        self.in_flight.fail()
        for timer in (self._timer, self._ack_timer):
            if timer is not None:
                timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        if self._heard >= self._pinged:
            self.write(packets.PING)
            self._pinged = now
        elif now - self._pinged >= 0.9 * self._keep_alive:
            return self.lose(f"no data from the broker for {now - self._heard:.1f} s")
        self._timer = self._loop.call_later(self._keep_alive / 2, self._look)
        return None

    def _release(self) -> None:
        held, self._held = self._held or [], None
        for message in held:
            # Each separately: a callback that raises must not prevent the others.
            self._loop.call_soon(self._deliver, message)

    def _deliver(self, message: Incoming) -> None:
        if not self.lost.done():
            self._party.received(message)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what arrives."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle complete packets; keep the rest until more data arrives."""
        if self.lost.done():
            return
        data = bytes(self._buffer[:nbytes])
        self._heard = self._loop.time()
        if sys.platform == "linux":
            # The kernel resets this option now and then; without it, a broker that uses Nagle's
            # algorithm sends its next packet 40 ms later.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            data = bytes(self._rest)
            self._rest.clear()
        try:
            self._handle_all(data)
        except MalformedPacket:
            self.lose(_GARBAGE)

    def _handle_all(self, data: bytes) -> None:
        start, size = 0, len(data)
        while start < size and not self.lost.done():
            first, last = packets.packet_bounds(data, start)
            if last - start > MAX_INCOMING_BYTES:
                raise MalformedPacket("too large")
            if last > size:
                self._rest += data[start:]
                self._wanted = last - start
                return
            self._handle(data[start], data[first:last])
            start = last

    def _handle(self, head: int, body: bytes) -> None:
        match head & 0xF0:
            case packets.PUBLISH:
                self._on_publish(head, body)
            case packets.PUBACK:
                self.in_flight.acknowledged(packets.read_puback(body))
            case packets.PINGRESP:
                pass
            case packets.CONNACK if not self._accepted.done():
                self._on_connack(packets.read_connack(body, self._version))
            case packets.SUBACK if not self._granted.done():
                self._granted.set_result(packets.read_suback(body, self._version))
            case packets.DISCONNECT:
                code = body[0] if body else 0
                words = _DISCONNECT_REASONS.get(code, f"code {code}") if body else "no reason given"
                self.lose(f"the broker ended the connection: {words}")
            case _:
                raise MalformedPacket("an unexpected packet")

    def _on_connack(self, connack: ConnAck) -> None:
        self._refusal = connack.code
        if connack.code:
            words = _REFUSALS.get(connack.code, "unknown error")
            self.lose(f"the broker refused the connection: {words} (code {connack.code})")
        else:
            self._accepted.set_result(connack)

    def _on_publish(self, head: int, body: bytes) -> None:
        publish = packets.read_publish(head, body, self._version)
        if publish.packet_id:
            self._acknowledge(publish.packet_id)
        message = Incoming(publish.topic, publish.payload, publish.retained, publish.properties)
        if self._held is not None:
            self._held.append(message)
            return
        try:
            self._party.received(message)
        except Exception as problem:
            text = f"{self._party!r} failed to handle a message"
            self._loop.call_exception_handler({"message": text, "exception": problem})

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._closed.set()
        if exc is not None:
            self.lose(f"the connection was lost: {exc}")
        else:
            self.lose("the broker closed the connection")
