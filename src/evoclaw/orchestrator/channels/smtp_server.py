"""Sends mails with a mail server."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from email.message import EmailMessage
from pathlib import Path
from typing import Literal

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.redaction import Redactor
from evoclaw.orchestrator.channels.inbound import Undelivered
from evoclaw.orchestrator.sanitizing import one_line

SMTP_TIMEOUT_S = 30.0
"""For each step of the conversation with the mail server."""
_PORTS = {"tls": 465, "starttls": 587, "none": 25}


class SmtpLogin(Struct, frozen=True):
    """Where mails are sent with."""

    server: str
    port: int
    """0 is the usual one."""
    security: Literal["starttls", "tls", "none"]
    user: str
    """Empty: no login."""
    password: str


class SmtpServer:
    """One mail server; each mail is a connection of its own."""

    def __init__(self, login: SmtpLogin, ca_file: Path | None) -> None:
        self._login, self._redactor = login, Redactor((login.password,))
        self._tls = tls_context(ca_file)

    async def send(self, mail: EmailMessage) -> None:
        """Send a mail to all its addresses; raise `Undelivered` if the server did not take it."""
        await self._connect(mail)

    async def check(self) -> None:
        """Log in, and send nothing."""
        await self._connect(None)

    async def _connect(self, mail: EmailMessage | None) -> None:
        try:
            await asyncio.to_thread(self._run, mail)
        except (smtplib.SMTPException, OSError) as problem:
            reason = one_line(self._redactor.text(str(problem))) or type(problem).__name__
            what = "refused the login" if mail is None else "did not take the mail"
            raise Undelivered(f"the mail server {self._login.server} {what}: {reason}") from None

    def _run(self, mail: EmailMessage | None) -> None:
        login = self._login
        port = login.port or _PORTS[login.security]
        if login.security == "tls":
            with smtplib.SMTP_SSL(
                login.server, port, timeout=SMTP_TIMEOUT_S, context=self._tls
            ) as server:
                self._deliver(server, mail)
            return
        with smtplib.SMTP(login.server, port, timeout=SMTP_TIMEOUT_S) as server:
            if login.security == "starttls":
                server.starttls(context=self._tls)
            self._deliver(server, mail)

    def _deliver(self, server: smtplib.SMTP, mail: EmailMessage | None) -> None:
        if self._login.user:
            server.login(self._login.user, self._login.password)
        refused = {} if mail is None else server.send_message(mail)
        if refused:
            raise smtplib.SMTPException(f"it refused {', '.join(refused)}")


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """The TLS context of a mail server; `ConfigError` if the CA file cannot be loaded."""
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ValueError) as problem:
        raise ConfigError(f"cannot load the CA file {ca_file}: {problem}") from None
