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

MAX_HEAD_BYTES = 32 << 10
"""The limit of the request line and headers together."""
MAX_HEADERS = 100
HEAD_TIMEOUT_S = 15.0
"""How long a client may take to send the request line and headers."""
SINGLE_HEADERS = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"content-type", b"authorization", b"origin"}
)
"""Headers that may occur only once: a second value would be ambiguous."""
HTTP_VERSIONS = (b" HTTP/1.1", b" HTTP/1.0")
_HEAD_END = re.compile(rb"\n\r?\n")


def problem_with(head: bytes) -> str:
    """What is ambiguous or too large in the request line and headers; empty if nothing is.

    Args:
        head: The request line and headers, without the empty line at the end.
    """
    if len(head) > MAX_HEAD_BYTES:
        return "too large"  # h11 limits only a head that is not complete yet
    if b"\0" in head:
        return "NUL"
    if head.count(b"\n") != head.count(b"\r\n") or head.count(b"\r") != head.count(b"\r\n"):
        return "line end"
    first, *lines = head.removesuffix(b"\r\n").split(b"\r\n")
    if not first.endswith(HTTP_VERSIONS):
        return "HTTP version"
    if len(lines) > MAX_HEADERS:
        return "too many headers"
    if any(line[:1] in (b" ", b"\t", b"") for line in lines):
        return "folded header"
    names = Counter(line.partition(b":")[0].lower() for line in lines)
    if any(names[name] > 1 for name in SINGLE_HEADERS):
        return "header given twice"
    if names[b"content-length"] and names[b"transfer-encoding"]:
        return "two lengths"
    return ""


class StrictConnection(h11.Connection):
    """An h11 connection that refuses ambiguous requests."""

    def next_event(self) -> Any:
        """The next event; `RemoteProtocolError` for an ambiguous request."""
        if self.their_state is h11.IDLE:
            waiting, _ = self.trailing_data
            found = _HEAD_END.search(waiting)
            head = bytes(waiting[: found.start() + 1]) if found is not None else b""
            if head.strip(b"\r\n") and (problem := problem_with(head)):
                raise h11.RemoteProtocolError(problem)
        return super().next_event()


class StrictProtocol(H11Protocol):
    """uvicorn's HTTP protocol with the strict parser and a timeout for the headers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn, self.access_log = StrictConnection(h11.SERVER, MAX_HEAD_BYTES), False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore
        """Start the header timeout of a new connection."""
        super().connection_made(transport)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        """Parse data; stop the header timeout once the headers are complete."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel_head_timer()
        elif self._head_timer is None and not self.transport.is_closing():
            self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the header timeout."""
        self._cancel_head_timer()
        super().connection_lost(exc)

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._abort_slow_client)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _abort_slow_client(self) -> None:
        self._head_timer = None
        if self.conn.their_state is h11.IDLE:
            self.transport.abort()
