"""Sends notifications to browsers by Web Push."""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256

import msgspec

from evoclaw.orchestrator.channels.callbacks import Callback
from evoclaw.orchestrator.channels.inbound import Undelivered
from evoclaw.orchestrator.notifications.messages import Notification
from evoclaw.orchestrator.notifications.push_subscriptions import (
    PushSubscription,
    PushSubscriptions,
)
from evoclaw.orchestrator.notifications.settings import NotifySettings
from evoclaw.trust.web_push import encrypt

GONE_STATUSES = frozenset({404, 410})
"""The browser has left its push service: the subscription is deleted."""
_URGENT = frozenset({"approval", "question", "test"})


class WebPushSender:
    """The browsers of one tenant."""

    def __init__(
        self,
        settings: NotifySettings,
        subscriptions: PushSubscriptions,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._subscriptions, self._clock = settings, subscriptions, clock

    async def send(self, notification: Notification, target: str) -> str:
        """Send a message to one browser, or to all of them."""
        found = await self._subscriptions.all(self._settings)
        chosen = {target: found[target]} if target in found else {} if target else found
        if not chosen:
            raise Undelivered(
                "no browser is subscribed: open the dashboard, Settings, Notifications, and turn "
                "on notifications for a device",
                final=True,
            )
        problems: list[Undelivered] = []
        for id_, subscription in chosen.items():
            try:
                await self._send(notification, id_, subscription)
            except Undelivered as problem:
                problems.append(problem)
        if len(problems) == len(chosen):
            raise problems[0]
        return f"{len(chosen) - len(problems)} of {len(chosen)} browsers"

    async def _send(
        self, notification: Notification, id_: str, subscription: PushSubscription
    ) -> None:
        key, settings = await self._subscriptions.key(), self._settings
        message = msgspec.json.encode(
            {
                "id": notification.id,
                "title": notification.title,
                "text": notification.text,
                "link": notification.link,
                "answers": {link.label.lower(): link.url for link in notification.answers},
            }
        )
        topic = urlsafe_b64encode(sha256(notification.id.encode()).digest()[:24]).decode()
        headers = {
            "Authorization": key.authorization(
                subscription.endpoint, settings.webpush.contact, self._clock()
            ),
            "Content-Type": "application/octet-stream",
            "Content-Encoding": "aes128gcm",
            "TTL": str(settings.answer_s if notification.answers else 86_400),
            "Urgency": "high" if notification.reason in _URGENT else "normal",
            # A later message with the same topic replaces one that was not delivered yet.
            "Topic": topic,
        }
        # The URL comes from a browser: it must not lead into the operator's network.
        callback = Callback(
            subscription.endpoint,
            settings.webpush.allow,
            name="the push service",
            setting="the push service",
            loopback=False,
            show_response=True,
        )
        try:
            await callback.post(encrypt(message, subscription.p256dh, subscription.auth), headers)
        except Undelivered as problem:
            if problem.status in GONE_STATUSES:
                await self._subscriptions.forget(settings.tenant, id_)
                raise Undelivered("the browser is no longer subscribed", final=True) from None
            raise
