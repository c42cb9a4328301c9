"""Joining a fleet: an invitation, as a link or a QR code, and the exchange of its one-time token.

The device sends the token and gets a password of its own.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from msgspec import Struct

from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.messages import JSON
from evoclaw.transport.link import Incoming, Link, LinkDown, Will
from evoclaw.transport.topics import TopicKind, topic
from evoclaw.transport.wire import (
    Report,
    ReportType,
    WireError,
    convert,
    encode,
    read_command,
)

JOIN_TIMEOUT_S = 30.0
"""Timeout of the whole exchange."""
JOIN_RETRY_DELAY_S = 1.0
"""How long an unanswered request waits before it is repeated."""


class JoinFailed(EvoClawError):
    """The fleet refused the device; the message says why."""


class JoinReply(Struct, frozen=True):
    """The orchestrator's reply to a join request."""

    nonce: str
    password: str = ""
    orchestrator_key: str = ""
    done: bool = False
    refused: str = ""


class JoiningEdge:
    """A device that is not a member yet; a link's party."""

    def __init__(self, agent_id: str, token: str, link: Link, *, key: str = "") -> None:
        """`key` is the public key that its receipts will be signed with."""
        self._agent_id, self._token, self._link, self._key = agent_id, token, link, key
        self._nonce = secrets.token_hex(16)
        self._answer: asyncio.Queue[JoinReply] = asyncio.Queue()
        self._up = asyncio.Event()
        self._reason = ""

    async def join(self, keep: Callable[[JoinReply], Awaitable[None]]) -> None:
        """Request a password, store it, and confirm it; `JoinFailed` if that does not work."""
        running = asyncio.create_task(self._link.run(self))
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                await self._up.wait()
                reply = await self._ask(kept=False)
                await keep(reply)
                await self._ask(kept=True)
        except TimeoutError:
            why = (
                self._reason or "no orchestrator answered; check that `evoclaw up` is running there"
            )
            raise JoinFailed(
                f"could not join as {self._agent_id!r}: {why}{self._advice()}"
            ) from None
        finally:
            running.cancel()
            await asyncio.wait([running])

    @property
    def client_id(self) -> str:
        """A new client id for each attempt."""
        return f"{self._agent_id}-{self._nonce}"

    @property
    def subscriptions(self) -> Sequence[str]:
        """The commands to this device."""
        return (topic(self._agent_id, TopicKind.COMMANDS),)

    def will(self) -> Will | None:
        """None."""
        return None

    async def connected(self) -> None:
        """Note that the broker accepted the token."""
        self._up.set()

    def disconnected(self, reason: str) -> None:
        """Remember the reason, for the error."""
        self._reason = reason

    def received(self, message: Incoming) -> None:
        """Handle the reply."""
        try:
            command = read_command(message.payload)
            answer = convert(command.payload, JoinReply) if command.command == "joined" else None
        except WireError:
            return  # ignored: commands before the device is a member
        if answer is not None and answer.nonce == self._nonce:
            self._answer.put_nowait(answer)

    def _advice(self) -> str:
        """What to do if no connection was ever made."""
        if self._up.is_set() or not self._reason:
            return ""
        return (
            ". If the broker is reachable, the token is not valid for this name: it was "
            "used, has expired or was replaced, or another edge has the name. Create a "
            "new one with `evoclaw edges invite NAME`"
        )

    async def _ask(self, *, kept: bool) -> JoinReply:
        request: dict[str, JSON] = {"token": self._token, "nonce": self._nonce, "kept": kept}
        request |= {"key": self._key} if self._key else {}
        report = encode(Report(self._agent_id, "", ReportType.JOIN, request))
        while True:
            try:
                await self._link.publish(topic(self._agent_id, TopicKind.REPORTS), report)
            except LinkDown as down:
                self._reason = self._reason or str(down)
            try:
                async with asyncio.timeout(JOIN_RETRY_DELAY_S):
                    answer = await self._answer.get()
            except TimeoutError:
                continue
            if answer.refused:
                raise JoinFailed(f"could not join: {answer.refused}")
            if answer.done is kept:
                return answer


SCHEME = "evoclaw"
MAX_LINK_CHARS = 2_000
"""Length of a link."""
QR_BORDER_MODULES = 4
"""Light modules around a QR code: cameras need them."""
_FIELDS = ("url", "token", "name")
_AUTHORITY_FIELD = "ca"
"""The SHA-256 of the authority of the broker's certificate, in hex; only with TLS."""
_BLOCKS = {"00": "█", "01": "▀", "10": "▄", "11": " "}
"""Two vertically adjacent modules as one character; light modules are drawn."""


def join_link(url: str, token: str, name: str, ca_sha256: str = "") -> str:
    """Everything that a new edge needs, as a link that works once."""
    fields: dict[str, str] = dict(zip(_FIELDS, (url, token, name), strict=True))
    if ca_sha256:
        fields[_AUTHORITY_FIELD] = ca_sha256
    query = urlencode(fields, quote_via=quote, safe="")
    return f"{SCHEME}://join?{query}"


def join_command(link: str) -> str:
    """The command to run on the new edge."""
    return f"evoclaw edge join {shlex.quote(link)}"


def is_link(text: str) -> bool:
    """Whether a text is an invitation link, and not the address of a broker."""
    return text.strip().lower().startswith(f"{SCHEME}:")


class JoinInvitation(Struct, frozen=True):
    """The content of an invitation link."""

    url: str
    """The address of the broker."""
    token: str
    ca_sha256: str = ""
    """The fingerprint of the authority of its certificate; empty without TLS."""


def read_link(text: str) -> JoinInvitation:
    """Read a link; `ConfigError` if it is incomplete."""
    link = text.strip()
    try:
        if len(link) > MAX_LINK_CHARS or not link.isprintable():
            raise ValueError("too long, or not text")
        parts = urlsplit(link)
        query = parse_qs(parts.query, strict_parsing=True, max_num_fields=len(_FIELDS) + 1)
        (url,), (token,), (name,) = (query.pop(field) for field in _FIELDS)
        (ca_sha256,) = query.pop(_AUTHORITY_FIELD, ("",))
    except (ValueError, KeyError):
        raise _damaged() from None
    if (parts.scheme.lower(), parts.netloc, parts.path) != (SCHEME, "join", ""):
        raise _damaged()
    if query or token.partition(".")[0] != name or not all(map(str.isprintable, (url, token))):
        raise _damaged()
    if ca_sha256 and not is_fingerprint(ca_sha256):
        raise _damaged()
    return JoinInvitation(url, token, ca_sha256)


def is_fingerprint(text: str) -> bool:
    """Whether a text is a SHA-256 in hex."""
    return len(text) == 64 and all(char in "0123456789abcdef" for char in text.lower())


def _damaged() -> ConfigError:
    return ConfigError(
        "this is not a complete invitation; copy all of the link, in quotes, or create a new one"
    )


def qr_rows(text: str) -> tuple[str, ...]:
    """A text as a QR code: a row of `0` (light) and `1` (dark) each, with the light border."""
    try:
        import segno
    except ImportError:
        raise ConfigError("for QR codes, run: pip install 'evoclaw[server]'") from None
    code = segno.make(text, micro=False, error="m", boost_error=False)
    return tuple("".join(map(str, row)) for row in code.matrix_iter(border=QR_BORDER_MODULES))


def qr_lines(rows: Sequence[str]) -> list[str]:
    """The QR code for a terminal with a dark background: two rows per line."""
    even = [*rows, "1" * len(rows[-1])] if len(rows) % 2 else list(rows)
    pairs = zip(even[::2], even[1::2], strict=True)
    return ["".join(_BLOCKS[a + b] for a, b in zip(*pair, strict=True)) for pair in pairs]
