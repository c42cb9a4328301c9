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
    """What was sent and is not acknowledged, and what waits for a place; gmqtt's "storage"."""

    def __init__(self, client: Any) -> None:
        self.limit = MAX_IN_FLIGHT_MESSAGES
        self._client = client
        self._ids: set[int] = set()
        self._queue: deque[_Outgoing] = deque()

    async def publish(self, topic: bytes, payload: bytes, retain: bool) -> None:
        """Send, or wait for a place behind those who came before."""
        if len(self._ids) < self.limit:  # then nobody waits
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
        """Tell all who wait that the connection is gone."""
        while self._queue:
            waiting = self._queue.popleft()
            if not waiting.sent.done():
                waiting.sent.set_exception(LinkDown())

    def push_message(self, mid: int, _packet: bytes) -> None:
        """A message was sent."""
        self._ids.add(mid)

    def remove_message_by_mid(self, mid: int) -> None:
        """It was acknowledged: its place goes to the next who waits."""
        self._ids.discard(mid)
        while self._queue and len(self._ids) < self.limit:
            waiting = self._queue.popleft()
            if not waiting.sent.done():
                self._client.publish(waiting.topic, waiting.payload, qos=1, retain=waiting.retain)
                waiting.sent.set_result(None)

    def clear(self) -> None:
        """Nothing is left over from an earlier connection."""

    async def wait_empty(self) -> None:
        """Nor is anything sent again."""
