"""Reads mails: who wrote them, in which thread, and what is new in their text."""

from __future__ import annotations

import re
from email import message_from_bytes, policy
from email.errors import MessageError
from email.message import EmailMessage
from email.utils import getaddresses
from hashlib import sha256
from html.parser import HTMLParser

from msgspec import Struct

MAX_TEXT_CHARS = 64 * 1024
MAX_REFERENCES = 20
_MESSAGE_ID = re.compile(r"<[^<>\s]{1,500}>")
_OWN_ID = re.compile(r"<[0-9a-f]{32}\.([0-9a-f]{32})@evoclaw>")
_ATTRIBUTION = re.compile(r"(On\b.*\bwrote|Am\b.*\bschrieb\b.*|Le\b.*\ba écrit\s?):\s*", re.DOTALL)
_BULK = ("bulk", "list", "junk")


class ReceivedMail(Struct, frozen=True):
    """A mail that a person wrote."""

    sender: str
    """The address, in lower case."""
    message_id: str
    """Empty if it has none."""
    references: tuple[str, ...]
    """The ids of the mails before it, the oldest first."""
    subject: str
    text: str
    attachments: tuple[tuple[str, str, bytes], ...] = ()
    """Name, media type and content."""

    @property
    def conversation(self) -> str:
        """The same for all mails of a thread."""
        for id_ in reversed(self.references):
            if (own := _OWN_ID.fullmatch(id_)) is not None:
                return own[1]
        root = next(iter(self.references), self.message_id)
        return sha256(root.encode()).hexdigest()[:32]


def read_mail(data: bytes, own_address: str, authserv_id: str) -> ReceivedMail | None:
    """The mail in these bytes; None if it is not to be answered.

    Mails of programs, of mailing lists and of ourselves are not, nor are those whose sender the
    mail server did not confirm.

    Args:
        data: The mail as it was received.
        own_address: The address of the mailbox.
        authserv_id: The mail server whose `Authentication-Results` count; empty: none are needed.
    """
    mail = message_from_bytes(data, policy=policy.default)
    try:
        senders = [
            address.lower()
            for _, address in getaddresses([str(v) for v in mail.get_all("From", ())])
        ]
        if len(senders) != 1 or "@" not in senders[0] or senders[0] == own_address.lower():
            return None
        if _is_automatic(mail) or (authserv_id and not _is_confirmed(mail, authserv_id)):
            return None
        references = _MESSAGE_ID.findall(f"{mail.get('References', '')}")
        parents: list[str] = _MESSAGE_ID.findall(f"{mail.get('In-Reply-To', '')}")
        references += [id_ for id_ in parents if id_ not in references]
        found = _MESSAGE_ID.search(f"{mail.get('Message-ID', '')}")
        return ReceivedMail(
            senders[0],
            found[0] if found else "",
            (*references[:1], *references[1:][-MAX_REFERENCES:]),
            " ".join(f"{mail.get('Subject', '')}".split()),
            new_text(_body(mail))[:MAX_TEXT_CHARS],
            tuple(_attachments(mail)),
        )
    except (MessageError, ValueError, LookupError, AttributeError, TypeError):
        # The parser of the standard library fails in many ways on malformed mails.
        return None


def _is_automatic(mail: EmailMessage) -> bool:
    submitted = f"{mail.get('Auto-Submitted', 'no')}".strip().lower()
    precedence = f"{mail.get('Precedence', '')}".strip().lower()
    return (
        not submitted.startswith("no")
        or precedence in _BULK
        or "List-Id" in mail
        or f"{mail.get('Return-Path', '')}".strip() == "<>"
    )


def _is_confirmed(mail: EmailMessage, authserv_id: str) -> bool:
    """Whether our mail server found that the sender's domain confirms the mail (DMARC)."""
    for value in mail.get_all("Authentication-Results", ()):
        server, _, results = str(value).partition(";")
        if server.split()[:1] == [authserv_id]:
            # The first is the one that our server added last; one below it may be forged.
            return re.search(r"(^|[\s;])dmarc=pass\b", results) is not None
    return False


def _body(mail: EmailMessage) -> str:
    part = mail.get_body(("plain", "html"))
    if part is None:
        return ""
    text = str(part.get_content())
    return html_text(text) if part.get_content_type() == "text/html" else text


def _attachments(mail: EmailMessage) -> list[tuple[str, str, bytes]]:
    found: list[tuple[str, str, bytes]] = []
    for part in mail.iter_attachments():
        content = part.get_payload(decode=True)
        if isinstance(content, bytes):
            found.append((part.get_filename() or "", part.get_content_type(), content))
    return found


def new_text(text: str) -> str:
    """The text without the quoted mail below it and without the signature."""
    lines = text.replace("\r\n", "\n").split("\n")
    for number, line in enumerate(lines):
        if line == "-- ":
            lines = lines[:number]
            break
    while lines and (not lines[-1].strip() or lines[-1].startswith(">")):
        lines.pop()
    # The attribution before the quote may be wrapped over two lines.
    for count in (1, 2):
        if len(lines) >= count and _ATTRIBUTION.fullmatch("\n".join(lines[-count:])):
            lines = lines[:-count]
            break
    return "\n".join(lines).strip()


class _TextOfHtml(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("style", "script", "head", "blockquote"):
            self._hidden += 1
        elif tag in ("br", "p", "div", "li", "tr"):
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("style", "script", "head", "blockquote") and self._hidden:
            self._hidden -= 1

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(data)


def html_text(html: str) -> str:
    """The text of a mail in HTML, without quoted mails."""
    parser = _TextOfHtml()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.pieces).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
