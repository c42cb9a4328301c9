"""Sends notifications as e-mail."""

from __future__ import annotations

from email.message import EmailMessage
from email.utils import formatdate
from hashlib import sha256

from evoclaw.orchestrator.channels.smtp_server import SmtpLogin, SmtpServer
from evoclaw.orchestrator.notifications.messages import Notification
from evoclaw.orchestrator.notifications.settings import EmailSettings


class EmailSender:
    """One mail server, and the addresses of the mails."""

    def __init__(self, settings: EmailSettings, password: str) -> None:
        self._settings = settings
        login = SmtpLogin(
            settings.server, settings.port, settings.security, settings.user, password
        )
        self._smtp = SmtpServer(login, settings.ca_file)

    async def send(self, notification: Notification, target: str) -> str:
        """Send one mail to all addresses."""
        await self._smtp.send(self._mail(notification))
        return ", ".join(self._settings.to)

    def _mail(self, notification: Notification) -> EmailMessage:
        mail, settings = EmailMessage(), self._settings
        mail["From"], mail["To"] = settings.sender, ", ".join(settings.to)
        mail["Subject"] = f"EvoClaw: {notification.title}"
        mail["Date"] = formatdate()
        # The same for each attempt, so that mailboxes recognise a duplicate.
        digest = sha256(notification.id.encode()).hexdigest()[:32]
        mail["Message-ID"] = f"<{digest}@evoclaw>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(f"{notification.plain_text}\n")
        return mail
