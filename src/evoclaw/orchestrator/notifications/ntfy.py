"""Sends notifications to a topic of an ntfy server."""

from __future__ import annotations

from evoclaw.core.messages import JSON
from evoclaw.orchestrator.notifications.http_post import ServicePost
from evoclaw.orchestrator.notifications.messages import Notification
from evoclaw.orchestrator.notifications.settings import NtfySettings

MAX_ACTIONS = 3
"""Buttons of an ntfy message."""
_PRIORITIES = {"approval": 4, "question": 4, "failed": 4}
"""Of 1 to 5; others get the default, 3."""
_TAGS = {"approval": "raised_hand", "question": "question", "failed": "warning"}


class NtfySender:
    """One topic."""

    def __init__(self, settings: NtfySettings, token: str) -> None:
        self._topic, self._token = settings.topic, token
        self._post = ServicePost("the ntfy server", settings.url, setting="url", secrets=(token,))

    async def send(self, notification: Notification, target: str) -> str:
        """Publish a message, with buttons that open its links."""
        body: dict[str, JSON] = {
            "topic": self._topic,
            "title": notification.title,
            "message": notification.text,
            "priority": _PRIORITIES.get(notification.reason, 3),
            "tags": [_TAGS.get(notification.reason, "robot")],
        }
        if notification.link:
            body["click"] = notification.link
        if actions := [
            {"action": "view", "label": link.label, "url": link.url, "clear": True}
            for link in notification.links[:MAX_ACTIONS]
        ]:
            body["actions"] = actions
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        await self._post.json(body, headers)
        return f"the topic {self._topic!r}"
