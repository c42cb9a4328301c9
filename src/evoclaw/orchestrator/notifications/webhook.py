"""Posts notifications as signed JSON to a URL of the operator."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.channels.settings import WebhookSettings
from evoclaw.orchestrator.channels.signatures import MIN_SECRET_BYTES, WebhookSignatures
from evoclaw.orchestrator.notifications.http_post import ServicePost
from evoclaw.orchestrator.notifications.messages import Notification
from evoclaw.orchestrator.notifications.settings import NotifyWebhookSettings


class WebhookSender:
    """One URL; its requests are signed like those of a webhook channel."""

    def __init__(
        self,
        name: str,
        settings: NotifyWebhookSettings,
        secret: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if len(secret.encode()) < MIN_SECRET_BYTES:
            raise ConfigError(
                f"the secret of the notifier {name!r} is too short; it needs at least "
                f"{MIN_SECRET_BYTES} bytes, for example from `openssl rand -hex 32`"
            )
        self._name, self._clock = name, clock
        self._signatures = WebhookSignatures(WebhookSettings(), secret.encode())
        self._post = ServicePost("the URL of the notifier", settings.url, setting="url")

    async def send(self, notification: Notification, target: str) -> str:
        """Post a message with its links."""
        body = msgspec.json.encode(
            {
                "notifier": self._name,
                "id": notification.id,
                "reason": notification.reason,
                "title": notification.title,
                "text": notification.text,
                "link": notification.link,
                "answers": {link.label.lower(): link.url for link in notification.answers},
            }
        )
        await self._post.bytes(body, self._signatures.headers(body, self._clock()))
        return "the URL"
