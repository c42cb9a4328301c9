"""Sends notifications as e-mail."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate
from hashlib import sha256

from evoclaw.core.errors import ConfigError
from evoclaw.core.redaction import Redactor
from evoclaw.orchestrator.channels.inbound import Undelivered
from evoclaw.orchestrator.notifications.messages import Notification
from evoclaw.orchestrator.notifications.settings import EmailSettings
from evoclaw.orchestrator.sanitizing import one_line

SMTP_TIMEOUT_S = 30.0
"""For each step of the conversation with the mail server."""
_PORTS = {"tls": 465, "starttls": 587, "none": 25}


class EmailSender:
    """One mail server, and the addresses of the mails."""

    def __init__(self, settings: EmailSettings, password: str) -> None:
        self._settings, self._password = settings, password
        self._redactor = Redactor((password,))
        try:
            ca_file = None if settings.ca_file is None else str(settings.ca_file)
            self._tls = ssl.create_default_context(cafile=ca_file)
        except (OSError, ValueError) as problem:
            raise ConfigError(f"cannot load the CA file {settings.ca_file}: {problem}") from None

    async def send(self, notification: Notification, target: str) -> str:
        """Send one mail to all addresses."""
        mail = self._mail(notification)
        try:
            await asyncio.to_thread(self._send, mail)
        except (smtplib.SMTPException, OSError) as problem:
            reason = one_line(self._redactor.text(str(problem))) or type(problem).__name__
            server = self._settings.server
            raise Undelivered(f"the mail server {server} did not take the mail: {reason}") from None
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

    def _send(self, mail: EmailMessage) -> None:
        settings = self._settings
        host, port = settings.server, settings.port or _PORTS[settings.security]
        if settings.security == "tls":
            with smtplib.SMTP_SSL(host, port, timeout=SMTP_TIMEOUT_S, context=self._tls) as server:
                self._deliver(server, mail)
            return
        with smtplib.SMTP(host, port, timeout=SMTP_TIMEOUT_S) as server:
            if settings.security == "starttls":
                server.starttls(context=self._tls)
            self._deliver(server, mail)

    def _deliver(self, server: smtplib.SMTP, mail: EmailMessage) -> None:
        if self._settings.user:
            server.login(self._settings.user, self._password)
        refused = server.send_message(mail)
        if refused:
            raise smtplib.SMTPException(f"it refused {', '.join(refused)}")
