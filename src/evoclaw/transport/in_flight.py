"""`InFlight`: limits the unacknowledged messages of a connection; the others wait in a queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from evoclaw.transport.link import LinkDown
from evoclaw.transport.mqtt_packets import encode_publish

MAX_IN_FLIGHT_MESSAGES = 64
"""Messages sent and not yet acknowledged."""
MAX_PACKET_ID = 65_535


class _Outgoing(NamedTuple):
    sent: asyncio.Future[None]
    topic: bytes
    payload: bytes
    retain: bool
    properties: bytes


class InFlight:
    """Unacknowledged messages, and messages that wait for a slot."""

    def __init__(self, write: Callable[[bytes], None], version: int) -> None:
        """Send packets of a version of MQTT with a function."""
        self.limit = MAX_IN_FLIGHT_MESSAGES
        self._write, self._version = write, version
        self._last_id = 0
        self._ids: set[int] = set()
        self._queue: deque[_Outgoing] = deque()
        self._drained: asyncio.Event | None = None

    async def publish(
        self, topic: bytes, payload: bytes, retain: bool, properties: bytes = b"\0"
    ) -> None:
        """Send, or wait for a slot behind earlier messages."""
        if len(self._ids) < self.limit:  # then the queue is empty
            self._send(topic, payload, retain, properties)
            return
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = _Outgoing(sent, topic, payload, retain, properties)
        self._queue.append(waiting)
        try:
            await sent
        finally:
            if sent.cancelled() and waiting in self._queue:
                self._queue.remove(waiting)

    @property
    def is_empty(self) -> bool:
        """Whether all messages were sent and acknowledged."""
        return not self._ids and not self._queue

    async def drained(self) -> None:
        """Wait until all messages are acknowledged, or the connection is lost."""
        if not self.is_empty:
            self._drained = asyncio.Event()
            await self._drained.wait()

    def fail(self) -> None:
        """Fail all waiting messages: the connection is lost."""
        if self._drained is not None:
            self._drained.set()
        while self._queue:
            waiting = self._queue.popleft()
            if not waiting.sent.done():
                waiting.sent.set_exception(LinkDown())

    def acknowledged(self, packet_id: int) -> None:
        """Note that a message was acknowledged: its slot goes to the next in the queue."""
        self._ids.discard(packet_id)
        while self._queue and len(self._ids) < self.limit:
            waiting = self._queue.popleft()
            if not waiting.sent.done():
                self._send(waiting.topic, waiting.payload, waiting.retain, waiting.properties)
                waiting.sent.set_result(None)
        if self._drained is not None and self.is_empty:
            self._drained.set()

    def _send(self, topic: bytes, payload: bytes, retain: bool, properties: bytes) -> None:
        packet_id = self._last_id % MAX_PACKET_ID + 1
        while packet_id in self._ids:
            packet_id = packet_id % MAX_PACKET_ID + 1
        self._last_id = packet_id
        self._ids.add(packet_id)
        packet = encode_publish(
            topic, payload, packet_id, retain=retain, version=self._version, properties=properties
        )
        self._write(packet)
