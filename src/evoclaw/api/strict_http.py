"""A strict HTTP/1.1 protocol, against request smuggling and slow clients.

A parser is lenient where RFC 9112 allows it. A proxy in front may be lenient in another way, and
the difference enables request smuggling. So the head of every request (request line and headers)
is checked before the parser gets it: ambiguous requests, which no honest client sends, are refused.
One request is parsed at a time; a client that does not finish its head in time is disconnected.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 32 << 10
"""The limit of the request line and headers together."""
MAX_HEADERS = 100
HEAD_TIMEOUT_S = 15.0
"""How long a client may take to send the request line and headers."""
SINGLE_HEADERS = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"content-type", b"authorization", b"origin"}
)
"""Headers that may occur only once: a second value would be ambiguous."""
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ ([!-~]+) HTTP/1\.[01]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")
_HEAD_END = re.compile(rb"\n\r?\n")


def problem_with(head: bytes) -> str:
    """What is ambiguous or too large in the request line and headers; empty if nothing is.

    Args:
        head: The request line and headers, without the empty line at the end.
    """
    if len(head) > MAX_HEAD_BYTES:
        return "too large"
    if b"\0" in head:
        return "NUL"
    if head.count(b"\n") != head.count(b"\r\n") or head.count(b"\r") != head.count(b"\r\n"):
        return "line end"
    first, *lines = head.removesuffix(b"\r\n").split(b"\r\n")
    if problem := _request_line_problem(first):
        return problem
    if len(lines) > MAX_HEADERS:
        return "too many headers"
    if any(line[:1] in (b" ", b"\t", b"") for line in lines):
        return "folded header"
    found = [_HEADER.fullmatch(line) for line in lines]
    if not all(found):
        return "header"
    pairs = [(header[1].lower(), header[2].rstrip(b" \t")) for header in found if header]
    return _headers_problem(pairs, is_1_1=first.endswith(b"1"))


def _request_line_problem(line: bytes) -> str:
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        return "request line or HTTP version"
    # Other forms name a host a second time, or ask for a tunnel; a fragment is never sent.
    return "" if found[1].startswith(b"/") and b"#" not in found[1] else "request target"


def _headers_problem(headers: list[tuple[bytes, bytes]], *, is_1_1: bool) -> str:
    names = Counter(name for name, _ in headers)
    if any(names[name] > 1 for name in SINGLE_HEADERS):
        return "header given twice"
    if names[b"content-length"] and names[b"transfer-encoding"]:
        return "two lengths"
    values = dict(headers)
    if not values.get(b"content-length", b"0").isdigit():
        return "length"
    encoding = values.get(b"transfer-encoding")
    if encoding is not None and (encoding.lower() != b"chunked" or not is_1_1):
        return "transfer encoding"
    return "no host" if is_1_1 and not names[b"host"] else ""


class StrictProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol behind the check of each head, with a timeout for the head.

    The data of a connection is cut into heads and bodies here, and each head is checked before it
    is parsed. Only the parser knows where a chunked body ends: no request may follow one in the
    same data, and the connection is closed after its response.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.access_log = False
        self._waiting = bytearray()
        """Data that is not parsed yet: an incomplete head, or the next request."""
        self._body_left: int | None = 0
        """Bytes of the body that are missing; None: a chunked body."""
        self._scanned = 0
        """How much of it certainly contains no end of a head."""
        self._head_is_checked = self._is_done = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore
        """Start the head timeout of a new connection."""
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the head timeout."""
        self._cancel_head_timer()
        self._is_done = True
        self._waiting.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what is complete; the rest waits for more data, or for the end of the response."""
        if not self._is_done:
            self._unset_keepalive_if_required()
            self._waiting += data
            self._parse_waiting()

    def on_message_begin(self) -> None:
        """Called by the parser for each request: only for a head that was checked."""
        if not self._head_is_checked:
            raise httptools.HttpParserError("a request follows a chunked body")
        self._head_is_checked = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser: note how long the body is."""
        super().on_headers_complete()
        headers = dict(self.headers)
        if b"transfer-encoding" in headers:
            self._body_left, self.cycle.keep_alive = None, False
        else:
            self._body_left = int(headers.get(b"content-length", b"0"))

    def on_message_complete(self) -> None:
        """Called by the parser at the end of the request."""
        self._body_left = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Continue with the next request, unless the body of this one was not read to its end."""
        super().on_response_complete()
        if self._is_reading_body:
            self._is_done = True
            self.transport.close()
        elif self._waiting and not self.transport.is_closing():
            self.loop.call_soon(self.data_received, b"")

    @property
    def _is_reading_body(self) -> bool:
        return self._body_left != 0

    @property
    def _active_cycle(self) -> RequestResponseCycle | None:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return None if cycle is None or cycle.response_complete else cycle

    def _parse_waiting(self) -> None:
        while self._waiting and not self._is_done:
            if self._is_reading_body:
                left = self._body_left
                part = bytes(self._waiting if left is None else self._waiting[:left])
                del self._waiting[: len(part)]
                if left is not None:
                    self._body_left = left - len(part)
                self._feed(part)
            elif self._active_cycle is not None:
                self.flow.pause_reading()  # The next request waits for the response.
                return
            elif not self._parse_head():
                return

    def _parse_head(self) -> bool:
        """Check and parse the next head; False if it is not complete yet."""
        while not self._scanned and self._waiting.startswith(b"\r\n"):
            del self._waiting[:2]  # RFC 9112: ignore empty lines before a request.
        found = _HEAD_END.search(self._waiting, self._scanned)
        if found is None:
            self._scanned = max(len(self._waiting) - 2, 0)
            if len(self._waiting) > MAX_HEAD_BYTES:
                self._refuse("too large")
            elif self._head_timer is None:
                self._start_head_timer()
            return False
        head, self._scanned = bytes(self._waiting[: found.end()]), 0
        del self._waiting[: found.end()]
        problem = problem_with(head[: found.start() + 1])
        if problem or not head.endswith(b"\r\n\r\n"):
            self._refuse(problem or "line end")
            return False
        self._cancel_head_timer()
        self._head_is_checked = True
        self._feed(head)
        return True

    def _feed(self, data: bytes) -> None:
        try:
            cast("httptools.HttpRequestParser", self.parser).feed_data(data)
        except httptools.HttpParserUpgrade:
            # Other protocols are not served: this request is answered, and no other is parsed.
            self._is_done = True
            if (cycle := self._active_cycle) is not None:
                cycle.keep_alive = False
        except httptools.HttpParserError as problem:
            self._refuse(str(problem))

    def _refuse(self, problem: str) -> None:
        """Answer 400 and close the connection; a response that has started is cut off."""
        self._is_done = True
        self._waiting.clear()
        self.logger.debug("request refused: %s", problem)
        cycle = self._active_cycle
        if cycle is not None and cycle.response_started:
            self.transport.abort()
        else:
            self.send_400_response("Invalid HTTP request received.")

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._abort_slow_client)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _abort_slow_client(self) -> None:
        self._head_timer = None
        if not self._is_reading_body and self._active_cycle is None:
            self.transport.abort()
