"""Sends notifications to a webhook of a Discord channel."""

from __future__ import annotations

from evoclaw.core.messages import JSON
from evoclaw.orchestrator.notifications.http_post import ServicePost
from evoclaw.orchestrator.notifications.messages import Notification

_ACTION_ROW, _BUTTON, _LINK_STYLE = 1, 2, 5
"""Types of components, and the style of a button that opens a URL."""
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\*_~`|>#[]()-"})


class DiscordSender:
    """One webhook, which posts to one channel."""

    def __init__(self, url: str) -> None:
        # Without this parameter, Discord leaves out the buttons.
        extended = f"{url}{'&' if '?' in url else '?'}with_components=true"
        self._post = ServicePost("Discord", extended, setting="url", secrets=(url,))

    async def send(self, notification: Notification, target: str) -> str:
        """Post a message, with a button for each link; it mentions no user."""
        title, text = (
            part.translate(_MARKDOWN) for part in (notification.title, notification.text)
        )
        body: dict[str, JSON] = {
            "content": f"**{title}**\n{text}",
            "allowed_mentions": {"parse": []},
        }
        if links := notification.links:
            buttons = [
                {"type": _BUTTON, "style": _LINK_STYLE, "label": link.label, "url": link.url}
                for link in links
            ]
            body["components"] = [{"type": _ACTION_ROW, "components": buttons}]
        await self._post.json(body)
        return "the channel of the webhook"
