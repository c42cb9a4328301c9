"""A small SMTP server with STARTTLS and a login, which keeps the mails that it takes."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage

from tests.support.certificates import Certificates

USER, PASSWORD = "ann", "correct horse battery staple"


@dataclass
class MailServer:
    """What was sent."""

    tls: ssl.SSLContext
    port: int = 0
    mails: list[EmailMessage] = field(default_factory=list[EmailMessage])
    encrypted: list[bool] = field(default_factory=list[bool])
    """Whether the connection of each mail was encrypted."""
    recipients: list[list[str]] = field(default_factory=list[list[str]])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _Conversation(self, reader, writer).run()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()


class _Conversation:
    def __init__(
        self, server: MailServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.server, self.reader, self.writer = server, reader, writer
        self.encrypted = writer.get_extra_info("ssl_object") is not None
        self.logged_in = False
        self.to: list[str] = []

    async def say(self, line: str) -> None:
        self.writer.write(f"{line}\r\n".encode())
        await self.writer.drain()

    async def run(self) -> None:
        await self.say("220 mail.test ESMTP")
        while line := (await self.reader.readline()).decode().strip():
            verb, _, rest = line.partition(" ")
            if verb.upper() == "QUIT":
                await self.say("221 bye")
                return
            await self.obey(verb.upper(), rest)

    async def obey(self, verb: str, rest: str) -> None:
        match verb:
            case "EHLO":
                more = "AUTH PLAIN" if self.encrypted else "STARTTLS"
                await self.say(f"250-mail.test\r\n250 {more}")
            case "STARTTLS":
                await self.say("220 go ahead")
                await self.writer.start_tls(self.server.tls)
                self.encrypted = True
            case "AUTH":
                _, user, password = b64decode(rest.split()[1]).decode().split("\0")
                self.logged_in = (user, password) == (USER, PASSWORD)
                await self.say("235 welcome" if self.logged_in else "535 wrong password")
            case "MAIL" if not self.logged_in:
                await self.say("530 login first")
            case "RCPT":
                self.to.append(rest.partition("<")[2].rstrip(">"))
                await self.say("250 ok")
            case "DATA":
                await self.say("354 end with a dot")
                data = await self.reader.readuntil(b"\r\n.\r\n")
                mail = message_from_bytes(data[:-5], policy=policy.default)
                assert isinstance(mail, EmailMessage)
                self.server.mails.append(mail)
                self.server.encrypted.append(self.encrypted)
                self.server.recipients.append(self.to)
                self.to = []
                await self.say("250 taken")
            case _:
                await self.say("250 ok")


@asynccontextmanager
async def mail_server(
    certificates: Certificates, *, encrypted: bool = False
) -> AsyncGenerator[MailServer]:
    """A mail server on this machine, until the block ends; encrypted from the start or later."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates.server_cert, certificates.server_key)
    made = MailServer(tls)
    listening = await asyncio.start_server(
        made.serve, "127.0.0.1", 0, ssl=tls if encrypted else None
    )
    made.port = listening.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        listening.close()
        await listening.wait_closed()
