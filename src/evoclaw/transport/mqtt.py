"""The MQTT link to a broker; reconnects."""

from __future__ import annotations

import asyncio
import logging

from evoclaw.core.errors import ConfigError
from evoclaw.transport.address import Address, TlsSettings, parse_url
from evoclaw.transport.connection import MqttConnection
from evoclaw.transport.link import (
    MAX_PAYLOAD_BYTES,
    Backoff,
    LinkDown,
    MessageProperties,
    Party,
    TooLarge,
    topic_bytes,
    until_lost,
)
from evoclaw.transport.mqtt_packets import V5, V311, encode_properties

__all__ = ["Address", "MqttLink", "TlsSettings", "parse_url"]

logger = logging.getLogger(__name__)
CONNECT_TIMEOUT_S = 10.0
"""For the whole connect: TCP, TLS, CONNACK and SUBACK."""
SILENCE_NOTICE_S = 3.0
"""Seconds after which a broker that does not answer is reported."""


class MqttLink:
    """A link over MQTT 5, or 3.1.1 if the broker supports only that.

    The broker keeps only retained messages between connections: what must not be lost is in a
    store, and published again.
    """

    def __init__(self, address: Address, *, keep_alive: int = 30, qos: int = 1) -> None:
        """Choose the broker.

        Args:
            address: The address of the broker.
            keep_alive: Seconds; after 1.5 times that without data the connection is lost.
            qos: The QoS of subscriptions; messages are published with QoS 1.
        """
        if not 0 < keep_alive <= 65535:
            raise ConfigError(f"a keep-alive of {keep_alive} s is not between 1 and 65535")
        self._address, self._keep_alive, self._qos = address, keep_alive, qos
        self._tls = None if address.tls is None else address.tls.context()
        self._version = V5
        self._max_payload = MAX_PAYLOAD_BYTES
        self._connection: MqttConnection | None = None
        self._problem = ""
        """Why there is no connection, as it was logged; empty while there is one."""

    @property
    def is_up(self) -> bool:
        """Whether the link is connected."""
        return self._connection is not None and not self._connection.lost.done()

    @property
    def speaks_mqtt5(self) -> bool:
        """Whether the broker speaks MQTT 5, as far as is known: messages have properties then."""
        return self._version == V5

    @property
    def max_payload(self) -> int:
        """The maximum bytes of a message, by the broker's last CONNACK."""
        return self._max_payload

    async def run(self, party: Party) -> None:
        """Keep the party connected until cancelled; then leave cleanly, without its will."""
        backoff = Backoff()
        while True:
            connection = MqttConnection(party, self._keep_alive, self._version)
            reason = ""
            try:
                reason = await until_lost(self._open(connection, party), connection.lost)
            finally:
                self._connection = None
                await connection.close(politely=not reason)
            if connection.wrong_version:
                newest = self._version == V5
                self._version = V311 if newest else V5
                if newest:
                    continue
            party.disconnected(reason)
            self._report_problem(reason)
            await asyncio.sleep(backoff.wait(connection.lived))

    def _report_problem(self, reason: str) -> None:
        """Log why there is no connection, once until there is one again."""
        if reason and not self._problem:
            self._problem = reason
            where = f"{self._address.host}:{self._address.port}"
            logger.warning(
                "broker %s: not connected: %s; trying again until it answers", where, reason
            )

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        properties: MessageProperties | None = None,
    ) -> None:
        """Publish a message; wait while too many are in flight."""
        name = topic_bytes(topic)
        connection = self._connection
        if connection is None or connection.lost.done():
            raise LinkDown
        own = encode_properties(properties)
        size = len(payload) + len(own) - 1
        if size > self._max_payload:
            raise TooLarge(size, self._max_payload)
        await connection.in_flight.publish(name, payload, retain, own)

    async def _open(self, connection: MqttConnection, party: Party) -> None:
        where = f"{self._address.host}:{self._address.port}"
        loop, silence = asyncio.get_running_loop(), f"no answer from {where} yet"
        notice = loop.call_later(SILENCE_NOTICE_S, self._report_problem, silence)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connection.open(self._address, self._tls)
                await connection.subscribe(party.subscriptions, self._qos)
        except TimeoutError:
            connection.lose(f"no answer from {where} within {CONNECT_TIMEOUT_S:g} s")
        except OSError as problem:
            connection.lose(f"{where} cannot be reached: {problem}")
        finally:
            notice.cancel()
        if connection.lost.done():
            return
        self._max_payload = connection.max_payload
        self._connection = connection
        if self._problem:
            logger.warning("broker %s: connected", where)
            self._problem = ""
        connection.begin()
        await party.connected()
