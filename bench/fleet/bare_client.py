"""A bare gmqtt client, the floor of a round trip: QoS 1 both ways, without Nagle's algorithm."""

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
    """A client that stays connected while the block runs."""
    logging.getLogger("gmqtt").setLevel(logging.CRITICAL)
    client = Client(name, clean_session=True)
    await client.connect("127.0.0.1", port, keepalive=60, version=MQTTv311)
    wire = client._connection._transport.get_extra_info("socket")
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        yield client
    finally:
        await client.disconnect()


class BareRoundTrip:
    """Publishes a payload and waits for its echo."""

    def __init__(self, client: Any, body: bytes) -> None:
        self._client, self._body = client, body
        self._pending: dict[bytes, asyncio.Future[None]] = {}
        self._number = 0
        client.on_message = self._on_echo
        client.subscribe(PONG, qos=1)

    def _on_echo(self, _client: object, _topic: str, payload: bytes, _qos: int, _: object) -> int:
        pending = self._pending.pop(payload[:8], None)
        if pending is not None:
            pending.set_result(None)
        return 0

    async def trip(self) -> None:
        """One round trip."""
        self._number += 1
        key = self._number.to_bytes(8, "big")
        pending = self._pending[key] = asyncio.get_running_loop().create_future()
        self._client.publish(PING, key + self._body, qos=1)
        await pending
