"""A small IMAP server over TLS (RFC 3501), with as many commands as reading a mailbox needs."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage

from tests.support.certificates import Certificates
from tests.support.mail_server import PASSWORD, USER

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')


@dataclass
class FakeImap:
    """One mailbox."""

    port: int = 0
    uid_validity: int = 1
    mails: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """By their number."""
    seen: set[int] = field(default_factory=set[int])
    sessions: int = 0
    """Connections that logged in."""
    polls: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])

    def deliver(
        self, text: str, sender: str = "ann@home.test", *, subject: str = "Eggs", **headers: str
    ) -> EmailMessage:
        """A mail arrives; `_` in the name of a header is `-`."""
        mail = EmailMessage()
        number = max(self.mails, default=0) + 1
        mail["From"], mail["To"], mail["Subject"] = sender, "cook@home.test", subject
        for name, value in ({"Message_ID": f"<m{number}@home.test>"} | headers).items():
            mail[name.replace("_", "-")] = value
        mail.set_content(text)
        self.receive(mail)
        return mail

    def receive(self, mail: EmailMessage) -> None:
        """Put a mail into the mailbox."""
        self.mails[max(self.mails, default=0) + 1] = bytes(mail).replace(b"\n", b"\r\n")

    def disconnect(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self._writers.add(writer)
        try:
            writer.write(b"* OK IMAP4rev1 ready\r\n")
            while line := await reader.readline():
                tag, _, command = line.decode().strip().partition(" ")
                writer.write(self._answer(tag, command))
                await writer.drain()
        except (ConnectionError, ssl.SSLError):
            pass  # the client left
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, tag: str, command: str) -> bytes:
        words = [quoted or plain for quoted, plain in _WORD.findall(command)]
        match [words[0].upper(), *words[1:]]:
            case ["CAPABILITY"]:
                return b"* CAPABILITY IMAP4rev1\r\n" + _ok(tag)
            case ["LOGIN", user, password]:
                if (user, password) != (USER, PASSWORD):
                    return f"{tag} NO [AUTHENTICATIONFAILED] wrong password\r\n".encode()
                self.sessions += 1
                return _ok(tag)
            case ["SELECT", "INBOX"]:
                following = max(self.mails, default=0) + 1
                return (
                    f"* {len(self.mails)} EXISTS\r\n* OK [UIDVALIDITY {self.uid_validity}] ok\r\n"
                    f"* OK [UIDNEXT {following}] ok\r\n"
                ).encode() + _ok(tag)
            case ["SELECT", _]:
                return f"{tag} NO no such folder\r\n".encode()
            case ["NOOP"]:
                self.polls += 1
                return f"* {len(self.mails)} EXISTS\r\n".encode() + _ok(tag)
            case ["LOGOUT"]:
                return b"* BYE see you\r\n" + _ok(tag)
            case ["UID", verb, *rest]:
                return self._uid(tag, verb.upper(), rest)
            case _:
                return f"{tag} BAD unknown command\r\n".encode()

    def _uid(self, tag: str, verb: str, rest: list[str]) -> bytes:
        match verb, rest:
            case "SEARCH", ["UNSEEN"]:
                found = [uid for uid in self.mails if uid not in self.seen]
            case "SEARCH", ["UID", span]:
                start = int(span.partition(":")[0])
                # `*` is the last mail, also if its number is smaller.
                found = [uid for uid in self.mails if uid >= start] or [*self.mails][-1:]
            case "FETCH", [uid, *_]:
                data = self.mails.get(int(uid))
                if data is None:
                    return _ok(tag)
                head = f"* {uid} FETCH (UID {uid} BODY[]<0> {{{len(data)}}}\r\n".encode()
                return head + data + b")\r\n" + _ok(tag)
            case "STORE", [uids, *_]:
                self.seen.update(int(uid) for uid in uids.split(","))
                return _ok(tag)
            case _:
                return f"{tag} BAD unknown command\r\n".encode()
        return f"* SEARCH {' '.join(map(str, found))}\r\n".encode() + _ok(tag)


def _ok(tag: str) -> bytes:
    return f"{tag} OK done\r\n".encode()


@asynccontextmanager
async def fake_imap(certificates: Certificates) -> AsyncGenerator[FakeImap]:
    """The server, until the block ends."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates.server_cert, certificates.server_key)
    fake = FakeImap()
    listening = await asyncio.start_server(fake.serve, "127.0.0.1", 0, ssl=tls)
    fake.port = listening.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        fake.disconnect()
        listening.close()
        await listening.wait_closed()
