"""Sends notifications with a Telegram bot."""

from __future__ import annotations

from evoclaw.core.messages import JSON
from evoclaw.orchestrator.notifications.http_post import ServicePost
from evoclaw.orchestrator.notifications.messages import Notification
from evoclaw.orchestrator.notifications.settings import TelegramSettings


class TelegramSender:
    """One chat."""

    def __init__(self, settings: TelegramSettings, token: str) -> None:
        self._chat = settings.chat_id
        url = f"{settings.url.rstrip('/')}/bot{token}/sendMessage"
        self._post = ServicePost("Telegram", url, setting="url", secrets=(token,))

    async def send(self, notification: Notification, target: str) -> str:
        """Send a message, with a button for each link."""
        body: dict[str, JSON] = {
            "chat_id": self._chat,
            "text": f"{notification.title}\n{notification.text}",
            "link_preview_options": {"is_disabled": True},
        }
        if links := notification.links:
            buttons = [{"text": link.label, "url": link.url} for link in links]
            body["reply_markup"] = {"inline_keyboard": [buttons]}
        await self._post.json(body)
        return f"the chat {self._chat}"
