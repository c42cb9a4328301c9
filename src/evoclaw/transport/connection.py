"""`MqttConnection`: one MQTT connection. The only file that uses gmqtt.

gmqtt encodes and decodes the packets. This module reads the socket, keeps the connection alive and
limits the messages in flight: gmqtt stops reading at a malformed length without closing the
connection, waits forever to close a dead connection with unsent data, and refuses a publish when
the broker's receive window is full.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gmqtt import (  # pyright: ignore[reportMissingTypeStubs]
    Client,
    Message,
    MQTTConnectError,
    Subscription,
)

from evoclaw.transport.address import Address
from evoclaw.transport.in_flight import MAX_IN_FLIGHT_MESSAGES, InFlight
from evoclaw.transport.link import MAX_PAYLOAD_BYTES, MAX_TOPIC_BYTES, Incoming, Party

V311, V5 = 4, 5
"""Versions of MQTT, by their protocol level."""
LEAVE_TIMEOUT_S = 1.0
"""How long a broker may take to close the connection after a DISCONNECT."""
MAX_INCOMING_BYTES = 2 << 20
"""Bytes of an incoming packet: a larger length field is not trusted."""

_OVERHEAD_BYTES = 10 + MAX_TOPIC_BYTES  # of a PUBLISH, at most: header, lengths, packet id, topic
_NO = 128  # reason codes from here on are refusals
_PINGREQ = 0xC0
_WRONG_VERSION = (1, 132)
_GARBAGE = "the broker sent what is not MQTT"
_DISCONNECT_REASONS = {
    139: "it is shutting down",
    142: "another party of this name came",
    149: "too large",
}


class MqttConnection(asyncio.Protocol):
    """A connection from open to close; sits between the socket and gmqtt."""

    def __init__(self, party: Party, keep_alive: int, version: int) -> None:
        # gmqtt prints warnings on stderr that `Party.disconnected` already receives.
        log = logging.getLogger("gmqtt")
        if log.level == logging.NOTSET:
            log.setLevel(logging.CRITICAL)
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        """Done when the connection has ended or failed; its result is the reason."""
        self.max_payload = MAX_PAYLOAD_BYTES
        self.lived = 0.0
        self._party, self._keep_alive, self._version = party, keep_alive, version
        self._client: Any = _Gmqtt(self, party)
        self.in_flight = InFlight(self._client)
        self._client._persistent_storage = self.in_flight
        self._gmqtt: Any = None  # gmqtt's object for this connection
        self._transport: asyncio.Transport | None = None
        self._socket: Any = None
        self._closed = asyncio.Event()
        self._rest, self._wanted = bytearray(), 0
        self._corked: list[bytes] | None = None
        self._began = self._heard = self._pinged = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._granted: asyncio.Future[Sequence[int]] = self._loop.create_future()
        self._held: list[Incoming] | None = []
        self._in_party = False

    @property
    def wrong_version(self) -> bool:
        """Whether the broker refused this version of MQTT."""
        # When the version is refused, gmqtt lowers it for its own retry; the link retries instead.
        if self._client._connection_state.protocol_version != self._version:
            return True
        refused = self._client._package_handler._error
        return refused is not None and refused._code in _WRONG_VERSION

    async def open(self, address: Address, tls: ssl.SSLContext | None) -> None:
        """Connect, and read the broker's limits."""
        client = self._client
        if address.username:
            client.set_auth_credentials(address.username, address.password or None)
        try:
            await client.connect(
                address.host,
                address.port,
                ssl=tls or False,
                keepalive=self._keep_alive,
                version=self._version,
            )
        except MQTTConnectError as problem:
            return self.lose(_refusal(problem))
        properties: dict[str, list[int]] = client._package_handler._connack_properties
        keep_alive = properties.get("server_keep_alive", [0])[0] or self._keep_alive
        self._keep_alive = min(keep_alive, self._keep_alive)
        max_packet = properties.get("maximum_packet_size", [MAX_INCOMING_BYTES])[0]
        self.max_payload = max(0, min(MAX_PAYLOAD_BYTES, max_packet - _OVERHEAD_BYTES))
        # One less than the broker allows, to match the way gmqtt counts.
        window = properties.get("receive_maximum", [65535])[0] - 1
        self.in_flight.limit = max(1, min(MAX_IN_FLIGHT_MESSAGES, window))
        return None

    def take(self, made: Any) -> None:
        """Insert this object between gmqtt and the socket it has just opened."""
        transport: asyncio.Transport = made._transport
        self._gmqtt, self._transport = made, transport
        self._socket = transport.get_extra_info("socket")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stop_looking()
        made._protocol._read_loop_future.cancel()
        made._protocol._transport = self
        transport.set_protocol(self)

    def write(self, data: bytes) -> None:
        """Send at once if this is the first write in this loop iteration; else batch it."""
        if self._corked is not None:
            self._corked.append(data)
        elif self._transport is not None:
            self._cork()
            self._transport.write(data)

    def _cork(self) -> None:
        self._corked = []
        self._loop.call_soon(self._uncork)

    def _uncork(self) -> None:
        corked, self._corked = self._corked, None
        if corked and self._transport is not None and not self.lost.done():
            self._transport.write(b"".join(corked))

    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.lost.done()

    async def subscribe(self, topics: Sequence[str], qos: int) -> None:
        """Subscribe to all of these topics."""
        if not topics or self.lost.done():
            return
        self._client.subscribe([Subscription(topic, qos=qos) for topic in topics])
        codes = await self._granted
        if len(codes) != len(topics):
            self.lose(_GARBAGE)
        refused = [topic for topic, code in zip(topics, codes, strict=False) if code >= _NO]
        if refused:
            self.lose(f"the broker does not let us listen to {', '.join(refused)}")

    def begin(self) -> None:
        """Deliver messages once the party is connected, and keep the connection alive."""
        self._began = self._heard = self._loop.time()
        self._stop_looking()
        self._timer = self._loop.call_later(self._keep_alive / 2, self._look)
        self._loop.call_soon(self._release)

    def lose(self, reason: str) -> None:
        """Abort the connection; the first reason counts."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    async def close(self, *, politely: bool) -> None:
        """Close the connection, with a DISCONNECT (the will is not published) or without."""
        try:
            if politely and self._transport is not None and not self.lost.done():
                self._gmqtt.send_disconnect()
                self._uncork()
                self._end("left")
                # Let the broker close first: closing with unread data sends a reset, which may
                # overtake the DISCONNECT.
                await self._hung_up()
        finally:
            self.lose("left")
        if self._transport is not None:
            await self._hung_up()

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
        self._stop_looking()

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._gmqtt is not None:
            # gmqtt's own timer, restarted when the broker sets another keep-alive.
            self._gmqtt._keep_connection_callback.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        if self._heard >= self._pinged:
            self._gmqtt.send_simple_command(_PINGREQ)
            self._pinged = now
        elif now - self._pinged >= 0.9 * self._keep_alive:
            return self.lose(f"nothing heard from the broker for {now - self._heard:.1f} s")
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

    def data_received(self, data: bytes) -> None:
        """Pass complete packets to gmqtt; keep the rest until more data arrives."""
        if self.lost.done():
            return
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
        waiting, self._corked = self._corked, []
        try:
            used: int = self._gmqtt._protocol._read_packet(data)
        finally:
            if waiting is not None:
                self._corked = waiting + self._corked
            elif self._corked:
                # After the callbacks that these packets scheduled, so that replies and acks share a
                # write.
                self._loop.call_soon(self._uncork)
            else:
                self._corked = None
        if 0 <= used < len(data):
            self._rest += data[used:]
            self._wanted = _packet_size(self._rest)
        if used < 0 or self._wanted > MAX_INCOMING_BYTES:
            self.lose(_GARBAGE)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._closed.set()
        refused = self._client._package_handler._error
        if refused is not None:
            self.lose(_refusal(refused))
        elif exc is not None:
            self.lose(f"the connection broke: {exc}")
        else:
            self.lose("the broker closed the connection")

    def on_message(
        self, _client: Any, topic: str | bytes, payload: bytes, _qos: int, about: dict[str, Any]
    ) -> None:
        """Called by gmqtt with a message."""
        if self.lost.done():
            return None
        if isinstance(topic, bytes):
            return self.lose(_GARBAGE)
        message = Incoming(topic, payload, about["retain"] == 1)
        if self._held is not None:
            return self._held.append(message)
        self._in_party = True
        self._party.received(message)
        self._in_party = False
        return None

    def on_subscribe(self, _client: Any, _id: int, codes: Sequence[int], _about: object) -> None:
        """Called by gmqtt with a SUBACK."""
        if not self._granted.done():
            self._granted.set_result(codes)

    def on_disconnect(self, _client: Any, packet: bytes) -> None:
        """Called by gmqtt with a DISCONNECT."""
        if self.lost.done():
            return
        why = (
            _DISCONNECT_REASONS.get(packet[0], f"code {packet[0]}") if packet else "no reason given"
        )
        self.lose(f"the broker ended the connection: {why}")

    def swallowed(self) -> None:
        """Handle an exception that gmqtt caught while it handled a packet."""
        problem = sys.exc_info()[1]
        if not self._in_party:
            return self.lose(_GARBAGE)
        self._in_party = False
        context = {"message": f"{self._party!r} failed to take a message", "exception": problem}
        return self._loop.call_exception_handler(context)


class _Gmqtt(Client):
    """gmqtt's client for a single connection, without its reconnect and keep-alive."""

    def __init__(self, connection: MqttConnection, party: Party) -> None:
        will = party.will()
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            party.client_id,
            clean_session=True,
            will_message=will and Message(will.topic, will.payload, qos=1, retain=True),
            logger=_GmqttLogger(connection),
            maximum_packet_size=MAX_INCOMING_BYTES,
        )
        self._ours = connection
        self.on_message = connection.on_message
        self.on_subscribe = connection.on_subscribe
        self.on_disconnect = connection.on_disconnect

    async def _create_connection(self, *args: Any, **named: Any) -> Any:
        made: Any = await super()._create_connection(  # pyright: ignore[reportUnknownMemberType]
            *args, **named
        )
        self._ours.take(made)
        return made

    async def reconnect(self, delay: bool = False) -> None:
        """Do nothing: gmqtt calls it when the connection is lost; the link reconnects."""
        if self._ours.wrong_version:
            self._ours.lose("the broker speaks another version of MQTT")

    async def disconnect(self, reason_code: int = 0, **properties: Any) -> None:
        """Do nothing: gmqtt calls it for an unreadable CONNACK; this module then disconnects."""


class _GmqttLogger:
    """Replaces gmqtt's logger: logs nothing, but notes exceptions that gmqtt caught."""

    def __init__(self, connection: MqttConnection) -> None:
        self._connection = connection

    def debug(self, *_text: object, **_more: object) -> None:
        """Ignored."""

    info = warning = error = debug

    def critical(self, *_text: object) -> None:
        """Called when a packet could not be read and was skipped."""
        self._connection.lose(_GARBAGE)

    def exception(self, *_text: object) -> None:
        """Called when a packet could not be read, or the party failed to handle its message."""
        self._connection.swallowed()


def _packet_size(head: bytearray) -> int:
    """The size of the packet with this start; 0 if the length field is incomplete."""
    size = 0
    for index, byte in enumerate(head[1:5]):
        size += (byte & 127) << (7 * index)
        if byte < _NO:
            return size + index + 2
    return 0 if len(head) < 5 else sys.maxsize


def _refusal(problem: Any) -> str:
    words = problem.message.removeprefix("Connection Refused: ").lower()
    return f"the broker refused us: {words} (code {problem._code})"
