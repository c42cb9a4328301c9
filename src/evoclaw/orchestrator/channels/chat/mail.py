"""Talks through a mailbox: mails are read with IMAP, and answered with SMTP."""

from __future__ import annotations

import asyncio
import imaplib
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate
from functools import partial
from hashlib import sha256
from typing import TypeVar

import msgspec
from msgspec import Struct

from evoclaw.core.redaction import Redactor
from evoclaw.orchestrator.channels.chat.attachments import AttachedFile, read_attachments
from evoclaw.orchestrator.channels.chat.mail_text import ReceivedMail, read_mail
from evoclaw.orchestrator.channels.chat.messages import (
    ButtonPress,
    ChatBatch,
    ChatEvent,
    ChatInvitation,
    ConversationMessage,
    OutgoingMessage,
    ServiceError,
)
from evoclaw.orchestrator.channels.chat.settings import MailboxSettings
from evoclaw.orchestrator.channels.smtp_server import SmtpLogin, SmtpServer, tls_context
from evoclaw.orchestrator.sanitizing import one_line

logger = logging.getLogger(__name__)
IMAP_TIMEOUT_S = 30.0
"""For each step of the conversation with the mail server."""
MAX_MAIL_BYTES = 30 * 2**20
"""Of a mail; what is behind is not read."""
MAX_MAILS = 50
"""That are read at once."""
T = TypeVar("T")


class MailThread(Struct, frozen=True):
    """What a reply to a mail needs: stored with the message."""

    message_id: str
    references: tuple[str, ...]
    subject: str


class MailAccount:
    """One mailbox; the connection is polled, because not all servers report new mails."""

    max_chars, has_buttons, answers_strangers, typing_interval_s = 1_000_000, False, False, 0.0

    def __init__(self, settings: MailboxSettings, password: str) -> None:
        self._settings, self._password = settings, password
        self._user = settings.user or settings.address
        self._redactor, self._tls = Redactor((password,)), tls_context(settings.ca_file)
        login = SmtpLogin(
            settings.smtp_server, settings.smtp_port, settings.smtp_security, self._user, password
        )
        self._smtp = SmtpServer(login, settings.ca_file)

    async def check(self) -> str:
        """Log in at both servers."""
        connection = await self._imap(self._open)
        await self._imap(connection.logout)
        await self._smtp.check()
        return self._settings.address

    async def receive(self, cursor: str) -> AsyncGenerator[ChatBatch, None]:
        """Look for new mails; a mail is marked as read once it is stored."""
        connection = await self._imap(self._open)
        try:
            validity, last = await self._imap(partial(_start, connection, cursor))
            # Stored before the first look: what comes from now on is answered, also after a crash.
            yield ChatBatch((), f"{validity}/{last}")
            while True:
                found = await self._imap(partial(_new_mails, connection, last))
                events: list[ChatEvent] = []
                for uid, data in found:
                    event = await self._event(f"{validity}/{uid}", data)
                    if event is not None:
                        events.append(event)
                    last = max(last, uid)
                yield ChatBatch(tuple(events), f"{validity}/{last}")
                if found:
                    uids = ",".join(str(uid) for uid, _ in found)
                    await self._imap(
                        partial(connection.uid, "STORE", uids, "+FLAGS.SILENT", r"(\Seen)")
                    )
                if len(found) < MAX_MAILS:
                    await asyncio.sleep(self._settings.poll_s)
        finally:
            await asyncio.to_thread(_abort, connection)

    async def post(self, message: OutgoingMessage) -> None:
        """Reply to a mail, in its thread."""
        thread = msgspec.json.decode(message.reply_to, type=MailThread)
        mail = EmailMessage()
        mail["From"], mail["To"] = self._settings.address, message.sender
        subject = thread.subject
        is_reply = subject.lower().startswith(("re:", "aw:"))
        mail["Subject"] = subject if is_reply else f"Re: {subject}".strip()
        mail["Date"] = formatdate()
        # The same for each attempt, so that mailboxes recognise a duplicate; the second half finds
        # the conversation of a reply.
        digest = sha256(message.id.encode()).hexdigest()[:32]
        mail["Message-ID"] = f"<{digest}.{message.conversation}@evoclaw>"
        if thread.message_id:
            mail["In-Reply-To"] = thread.message_id
            mail["References"] = " ".join((*thread.references, thread.message_id))
        mail["Auto-Submitted"] = "auto-replied"
        mail.set_content(f"{message.text}\n")
        await self._smtp.send(mail)

    async def show_typing(self, conversation: str) -> None:
        """Mail has no typing indicator."""

    async def acknowledge(self, event: ButtonPress | ChatInvitation) -> None:
        """Mail has no buttons and no invitations."""

    async def aclose(self) -> None:
        """The connection ends with `receive`."""

    async def _event(self, position: str, data: bytes) -> ConversationMessage | None:
        settings = self._settings
        mail = read_mail(data, settings.address, settings.authserv_id)
        if mail is None:
            logger.info("a mail (%s) is not answered: automatic, or not confirmed", position)
            return None
        text, images = await read_attachments(mail.text, _files(mail))
        if not text and not images:
            return None
        thread = MailThread(mail.message_id, mail.references, mail.subject)
        identity = mail.message_id or position
        return ConversationMessage(
            f"mail-{sha256(identity.encode()).hexdigest()}",
            mail.sender,
            mail.conversation if mail.message_id else sha256(position.encode()).hexdigest()[:32],
            text,
            images,
            msgspec.json.encode(thread).decode(),
            is_verified=bool(settings.authserv_id),
        )

    async def _imap(self, work: Callable[[], T]) -> T:
        """Run a step in a thread."""
        try:
            return await asyncio.to_thread(work)
        except (imaplib.IMAP4.error, OSError) as problem:
            reason = one_line(self._redactor.text(str(problem))) or type(problem).__name__
            raise ServiceError(f"the mail server {self._settings.imap_server}: {reason}") from None

    def _open(self) -> imaplib.IMAP4:
        settings = self._settings
        port = settings.imap_port or (993 if settings.imap_security == "tls" else 143)
        if settings.imap_security == "tls":
            connection: imaplib.IMAP4 = imaplib.IMAP4_SSL(
                settings.imap_server, port, ssl_context=self._tls, timeout=IMAP_TIMEOUT_S
            )
        else:
            connection = imaplib.IMAP4(settings.imap_server, port, timeout=IMAP_TIMEOUT_S)
        try:
            if settings.imap_security == "starttls":
                connection.starttls(self._tls)
            try:
                connection.login(self._user, self._password)
            except imaplib.IMAP4.error as problem:
                if isinstance(problem, imaplib.IMAP4.abort):
                    raise
                raise ServiceError(
                    f"the mail server {settings.imap_server} refused the password of "
                    f"{self._user}; many servers need an app password",
                    is_login=True,
                ) from None
            folder = settings.folder.replace("\\", "\\\\").replace('"', '\\"')
            state, _ = connection.select(f'"{folder}"')
            if state != "OK":
                raise ServiceError(f"the mailbox has no folder {settings.folder!r}")
        except BaseException:
            _abort(connection)
            raise
        return connection


def _abort(connection: imaplib.IMAP4) -> None:
    """Close a connection, also while another thread reads from it."""
    with suppress(OSError):  # it is closed already
        connection.socket().shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        connection.shutdown()


def _start(connection: imaplib.IMAP4, cursor: str) -> tuple[str, int]:
    """The `UIDVALIDITY` of the folder, and the number of the last mail that was read."""
    validity = _response(connection, "UIDVALIDITY") or "0"
    known, _, last = cursor.partition("/")
    if known == validity:
        return validity, int(last)
    if known:
        # The server numbered its mails again: continue with the first that was not read.
        _, found = connection.uid("SEARCH", "UNSEEN")
        if unread := (found[0] or b"").split() if found else []:
            return validity, min(map(int, unread)) - 1
    following = _response(connection, "UIDNEXT")
    return validity, int(following or 1) - 1


def _response(connection: imaplib.IMAP4, name: str) -> str:
    _, values = connection.response(name)
    first = values[0] if values else None
    return first.decode() if isinstance(first, bytes) else ""


def _new_mails(connection: imaplib.IMAP4, last: int) -> Sequence[tuple[int, bytes]]:
    """The mails after a number, the oldest first, with their numbers."""
    connection.noop()
    _, found = connection.uid("SEARCH", "UID", f"{last + 1}:*")
    numbers = (found[0] or b"").split() if found else []
    # `n:*` always includes the last mail.
    uids = sorted(int(number) for number in numbers if int(number) > last)[:MAX_MAILS]
    mails: list[tuple[int, bytes]] = []
    for uid in uids:
        answer: list[bytes | tuple[bytes, bytes] | None]
        _, answer = connection.uid("FETCH", str(uid), f"(UID BODY.PEEK[]<0.{MAX_MAIL_BYTES}>)")
        content = next((part for part in answer if isinstance(part, tuple)), (b"", b""))
        mails.append((uid, content[1]))  # empty: deleted meanwhile
    return mails


def _files(mail: ReceivedMail) -> Sequence[AttachedFile]:
    async def read(content: bytes, limit: int) -> bytes:
        return content[:limit]

    return [
        AttachedFile(name, media_type, len(content), partial(read, content))
        for name, media_type, content in mail.attachments
    ]
