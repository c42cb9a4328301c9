"""`InFlight`: limits the unacknowledged messages of a connection; the others wait in a queue."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple

from evoclaw.transport.link import LinkDown

MAX_IN_FLIGHT_MESSAGES = 64
"""Messages sent and not yet acknowledged."""


class _Outgoing(NamedTuple):
    sent: asyncio.Future[None]
    topic: bytes
    payload: bytes
    retain: bool


class InFlight:
    """Unacknowledged messages, and messages that wait for a slot; gmqtt's "storage"."""

    def __init__(self, client: Any) -> None:
        self.limit = MAX_IN_FLIGHT_MESSAGES
        self._client = client
        self._ids: set[int] = set()
        self._queue: deque[_Outgoing] = deque()

    async def publish(self, topic: bytes, payload: bytes, retain: bool) -> None:
        """Send, or wait for a slot behind earlier messages."""
        if len(self._ids) < self.limit:  # then the queue is empty
            self._client.publish(topic, payload, qos=1, retain=retain)
            return
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = _Outgoing(sent, topic, payload, retain)
        self._queue.append(waiting)
        try:
            await sent
        finally:
            if sent.cancelled() and waiting in self._queue:
                self._queue.remove(waiting)

    def fail(self) -> None:
        """Fail all waiting messages: the connection is lost."""
        while self._queue:
            waiting = self._queue.popleft()
            if not waiting.sent.done():
                waiting.sent.set_exception(LinkDown())

    def push_message(self, mid: int, _packet: bytes) -> None:
        """Note that a message was sent."""
        self._ids.add(mid)

    def remove_message_by_mid(self, mid: int) -> None:
        """Note that a message was acknowledged: its slot goes to the next in the queue."""
        self._ids.discard(mid)
        while self._queue and len(self._ids) < self.limit:
            waiting = self._queue.popleft()
            if not waiting.sent.done():
                self._client.publish(waiting.topic, waiting.payload, qos=1, retain=waiting.retain)
                waiting.sent.set_result(None)

    def clear(self) -> None:
        """Nothing is kept from an earlier connection."""

    async def wait_empty(self) -> None:
        """Nothing is sent again."""
