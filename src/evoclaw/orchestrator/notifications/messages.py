"""What a notification says, and the port of everything that sends one."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from evoclaw.orchestrator.notifications.settings import NotificationReason


class NotificationSubject(Struct, frozen=True, omit_defaults=True):
    """What a person should know, as it is stored until it is sent."""

    id: str
    """The same after a restart and in every process: it is reported once."""
    reason: NotificationReason
    tenant: str
    user: str
    """Whose approval, question or run it is."""
    title: str
    text: str
    """One or two sentences, without secrets."""
    run_id: str = ""
    approval_id: str = ""
    """The approval that waits, if one does."""
    sha256: str = ""
    """The digest of the call that waits."""
    covers: int = 1
    """How many notifications it stands for: more than one in a summary."""


class NotificationLink(Struct, frozen=True):
    """A link below a notification."""

    label: str
    url: str


class Notification(Struct, frozen=True):
    """A message to a person."""

    id: str
    reason: str
    """Why it is sent: a `NotificationReason`, or `test`."""
    title: str
    text: str
    link: str = ""
    """The dashboard; empty without a public URL."""
    answers: tuple[NotificationLink, ...] = ()
    """Pages that ask to confirm an answer."""

    @property
    def links(self) -> tuple[NotificationLink, ...]:
        """All links: the answers, then the dashboard."""
        own = (NotificationLink("Open", self.link),) if self.link else ()
        return (*self.answers, *own)

    @property
    def plain_text(self) -> str:
        """The text with its links, for messages without buttons."""
        lines = [f"{link.label}: {link.url}" for link in self.links]
        return "\n".join((self.text, *lines))


class NotificationSender(Protocol):
    """Sends the messages of one notifier."""

    async def send(self, notification: Notification, target: str) -> str:
        """Send a message; return what was reached, in words, or raise `Undelivered`.

        Args:
            notification: The message; it may have been sent before.
            target: One of several receivers; empty for all of them.
        """
        ...
