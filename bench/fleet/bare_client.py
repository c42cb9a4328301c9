"""A bare gmqtt client, the floor of a round trip: QoS 1 both ways, no delay, nothing else."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from gmqtt import Client
from gmqtt.mqtt.constants import MQTTv311

PING, PONG = "bench/ping", "bench/pong"


@asynccontextmanager
async def connected(name: str, port: int) -> AsyncGenerator[Any]:
    """A client that is connected while the block runs."""
    logging.getLogger("gmqtt").setLevel(logging.CRITICAL)
    client = Client(name, clean_session=True)
    await client.connect("127.0.0.1", port, keepalive=60, version=MQTTv311)
    wire = client._connection._transport.get_extra_info("socket")
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        yield client
    finally:
        await client.disconnect()


class Bare:
    """Sends, and waits until the same comes back."""

    def __init__(self, client: Any, body: bytes) -> None:
        self._client, self._body = client, body
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._number = 0
        client.on_message = self._back
        client.subscribe(PONG, qos=1)

    def _back(self, _client: object, _topic: str, payload: bytes, _qos: int, _: object) -> int:
        waiting = self._waiting.pop(payload[:8], None)
        if waiting is not None:
            waiting.set_result(None)
        return 0

    async def trip(self) -> None:
        """One round trip."""
        self._number += 1
        key = self._number.to_bytes(8, "big")
        waiting = self._waiting[key] = asyncio.get_running_loop().create_future()
        self._client.publish(PING, key + self._body, qos=1)
        await waiting
