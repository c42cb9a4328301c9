"""A strict HTTP/1.1 parser, against request smuggling and slow clients.

h11 is lenient where RFC 9112 allows it. A proxy in front may be lenient in another way, and the
difference enables request smuggling. Ambiguous requests, which no honest client sends, are refused
before they are parsed; a client that does not finish its headers in time is disconnected.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_BYTES = 32 << 10
"""The limit of the request line and headers together."""
MOST_HEADERS = 100
OPENING = 15.0
"""How long a client may take to send the request line and headers."""
ONCE = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"content-type", b"authorization", b"origin"}
)
"""Headers that may occur only once: a second value would be ambiguous."""
_END = re.compile(rb"\n\r?\n")


def problem_with(head: bytes) -> str:
    """What is ambiguous in the request line and headers; empty if nothing is.

    Args:
        head: The request line and headers, without the empty line at the end.
    """
    if b"\0" in head:
        return "NUL"
    if head.count(b"\n") != head.count(b"\r\n") or head.count(b"\r") != head.count(b"\r\n"):
        return "line end"
    _, *lines = head.removesuffix(b"\r\n").split(b"\r\n")
    if len(lines) > MOST_HEADERS:
        return "too many headers"
    if any(line[:1] in (b" ", b"\t", b"") for line in lines):
        return "folded header"
    names = Counter(line.partition(b":")[0].lower() for line in lines)
    if any(names[name] > 1 for name in ONCE):
        return "header given twice"
    if names[b"content-length"] and names[b"transfer-encoding"]:
        return "two lengths"
    return ""


class Strict(h11.Connection):
    """An h11 connection that refuses ambiguous requests."""

    def next_event(self) -> Any:
        """The next event; `RemoteProtocolError` for an ambiguous request."""
        if self.their_state is h11.IDLE:
            waiting, _ = self.trailing_data
            found = _END.search(waiting)
            if found is not None and (problem := problem_with(waiting[: found.start() + 1])):
                raise h11.RemoteProtocolError(problem)
        return super().next_event()


class StrictProtocol(H11Protocol):
    """uvicorn's HTTP protocol with the strict parser and a timeout for the headers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn, self.access_log = Strict(h11.SERVER, MOST_BYTES), False
        self._opening: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore
        """Start the header timeout of a new connection."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Parse data; stop the header timeout once the headers are complete."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._opening is None and not self.transport.is_closing():
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the header timeout."""
        self._forget()
        super().connection_lost(exc)

    def _expect(self) -> None:
        self._opening = self.loop.call_later(OPENING, self._give_up)

    def _forget(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

    def _give_up(self) -> None:
        self._opening = None
        if self.conn.their_state is h11.IDLE:
            self.transport.abort()
