"""Publishes notifications to a topic of an MQTT broker of the operator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from secrets import token_hex

import msgspec

from evoclaw.orchestrator.channels.inbound import Undelivered
from evoclaw.orchestrator.notifications.messages import Notification
from evoclaw.orchestrator.notifications.settings import NotifyMqttSettings
from evoclaw.transport.address import Address, TlsSettings, parse_url
from evoclaw.transport.link import Incoming, Link, TooLarge, Will

PUBLISH_TIMEOUT_S = 20.0
"""For the connection, the message, and leaving the broker."""


class MqttSender:
    """One topic; a connection is opened for each message."""

    def __init__(self, settings: NotifyMqttSettings, password: str) -> None:
        ca_file = None if settings.ca_file is None else str(settings.ca_file)
        tls = None if ca_file is None else TlsSettings(ca_file)
        self._address: Address = parse_url(settings.url, password=password, tls=tls)
        self._topic = settings.topic

    async def send(self, notification: Notification, target: str) -> str:
        """Publish a message as JSON."""
        from evoclaw.transport.mqtt import MqttLink

        payload = msgspec.json.encode(
            {
                "id": notification.id,
                "reason": notification.reason,
                "title": notification.title,
                "text": notification.text,
                "link": notification.link,
                "answers": {link.label.lower(): link.url for link in notification.answers},
            }
        )
        publisher = _Publisher(MqttLink(self._address), self._topic, payload)
        running = asyncio.create_task(publisher.link.run(publisher))
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                await publisher.published
        except TimeoutError:
            raise Undelivered("the broker did not take the message in time") from None
        finally:
            # Leaves cleanly: the broker has read the message when it closes the connection.
            running.cancel()
            await asyncio.wait([running])
        return f"the topic {self._topic!r}"


class _Publisher:
    """Publishes one message as soon as it is connected."""

    def __init__(self, link: Link, topic: str, payload: bytes) -> None:
        self.link, self._topic, self._payload = link, topic, payload
        self.client_id = f"evoclaw-notify-{token_hex(8)}"
        self.subscriptions: Sequence[str] = ()
        self.published: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def will(self) -> Will | None:
        return None

    async def connected(self) -> None:
        try:
            await self.link.publish(self._topic, self._payload)
        except TooLarge as problem:
            self._fail(str(problem), final=True)
        if not self.published.done():
            self.published.set_result(None)

    def disconnected(self, reason: str) -> None:
        if reason:
            self._fail(f"the broker cannot be used: {reason}")

    def received(self, message: Incoming) -> None:
        """Nothing is subscribed."""

    def _fail(self, reason: str, *, final: bool = False) -> None:
        if not self.published.done():
            self.published.set_exception(Undelivered(reason, final=final))
