"""Sends notifications to an incoming webhook of Slack."""

from __future__ import annotations

from evoclaw.core.messages import JSON
from evoclaw.orchestrator.notifications.http_post import ServicePost
from evoclaw.orchestrator.notifications.messages import Notification, NotificationLink

_STYLES = {"Approve": "primary", "Deny": "danger"}


class SlackSender:
    """One webhook, which posts to one channel."""

    def __init__(self, url: str) -> None:
        self._post = ServicePost("Slack", url, setting="url")

    async def send(self, notification: Notification, target: str) -> str:
        """Post a message, with a button for each link."""
        text = f"{notification.title}\n{notification.text}"
        # As plain text: what an agent wrote is neither a mention nor a link.
        section = {"type": "section", "text": {"type": "plain_text", "text": text, "emoji": False}}
        blocks: list[JSON] = [section]
        if links := notification.links:
            blocks.append({"type": "actions", "elements": [_button(link) for link in links]})
        await self._post.json({"text": notification.title, "blocks": blocks})
        return "the channel of the webhook"


def _button(link: NotificationLink) -> JSON:
    style = {"style": _STYLES[link.label]} if link.label in _STYLES else {}
    return {
        "type": "button",
        "text": {"type": "plain_text", "text": link.label},
        "url": link.url,
        "action_id": f"open-{link.label.lower()}",
        **style,
    }
