"""Split a byte stream into JSON payloads: server-sent events, or NDJSON lines."""

from __future__ import annotations

from typing import Protocol

import msgspec

from evoclaw.core.errors import ProviderErrorKind
from evoclaw.providers.errors import AttemptFailed

MAX_PAYLOAD_BYTES = 8 * 2**20
"""Bytes of one event or line."""

_BOM = b"\xef\xbb\xbf"


class PayloadSplitter(Protocol):
    """Reassembles complete payloads from arbitrary pieces of a stream."""

    def feed(self, data: bytes) -> list[bytes]:
        """Add a piece; return the payloads that it completes."""
        ...

    def end(self) -> list[bytes]:
        """End of stream: return what is left."""
        ...


class LineSplitter:
    """One payload a line (NDJSON)."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add a piece; return the lines that it completes."""
        if b"\n" not in data:
            _append_bounded(self._rest, data)
            return []
        if self._rest:
            data = bytes(self._rest) + data
            self._rest.clear()
        *lines, rest = data.split(b"\n")
        if rest:
            _append_bounded(self._rest, rest)
        return [line for line in lines if line and not line.isspace()]

    def end(self) -> list[bytes]:
        """Return a last line without a line end."""
        rest = bytes(self._rest).strip()
        return [rest] if rest else []


class EventSplitter:
    """The `data` of server-sent events.

    A body that is not an event stream but one JSON value or a web page is returned at the end: some
    servers do not stream, or report an error with status 200.
    """

    __slots__ = ("_body", "_cr", "_fresh", "_rest")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._fresh = True  # only blanks so far
        self._body = False
        self._cr = False  # the last piece ended with CR: LF may follow

    def feed(self, data: bytes) -> list[bytes]:
        """Add a piece; return the data of the events that it completes."""
        if self._fresh:
            self._detect_body(data)
        if self._body:
            _append_bounded(self._rest, data)
            return []
        if self._cr or b"\r" in data:
            data = self._newlines(data)
        if self._rest:
            if b"\n" not in data:
                _append_bounded(self._rest, data)
                return []
            data = bytes(self._rest) + data
            self._rest.clear()
        blocks = data.split(b"\n\n")
        rest = blocks.pop()
        if rest:
            _append_bounded(self._rest, rest)
        payloads: list[bytes] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                payloads.append(block[6:])
            elif (payload := _data(block)) is not None:
                payloads.append(payload)
        return payloads

    def end(self) -> list[bytes]:
        """Return a complete body, or the data of a last event without its blank line."""
        rest = bytes(self._rest).removeprefix(_BOM)
        if self._body:
            return [rest.strip()]
        payload = _data(rest)
        return [] if payload is None else [payload]

    def _detect_body(self, data: bytes) -> None:
        start = (bytes(self._rest) + data).removeprefix(_BOM).lstrip()
        if start and not _BOM.startswith(start):
            self._fresh = False
            self._body = start[:1] in (b"{", b"[", b"<")

    def _newlines(self, data: bytes) -> bytes:
        """Convert CRLF and CR to LF, also across the border of two pieces."""
        if self._cr:
            data = b"\r" + data
        self._cr = data.endswith(b"\r")
        if self._cr:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _append_bounded(rest: bytearray, data: bytes) -> None:
    rest += data
    if len(rest) > MAX_PAYLOAD_BYTES:
        message = f"the server sent more than {MAX_PAYLOAD_BYTES >> 20} MiB without an end"
        raise AttemptFailed(ProviderErrorKind.UNKNOWN, message)


def _data(block: bytes) -> bytes | None:
    # Fast path for Anthropic: one line with the name of the event, one with its data.
    line = block.find(b"\n")
    if (
        block.startswith(b"event: ")
        and block.startswith(b"data: ", line + 1)
        and block.find(b"\n", line + 1) < 0
        and not block.startswith(b"error", 7)
    ):
        return block[line + 7 :]
    name, data = b"", list[bytes]()
    for line in block.removeprefix(_BOM).split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
        elif field == b"error":  # llama.cpp's own field
            name, data = field, [value]
    if not data:
        return None
    payload = b"\n".join(data)
    return _as_error(payload) if name == b"error" else payload


def _as_error(payload: bytes) -> bytes:
    """The data of an `error` event as an object with an `error` key."""
    if not payload.lstrip().startswith(b"{"):
        return msgspec.json.encode({"error": payload.decode(errors="replace")})
    return payload if b'"error"' in payload else b'{"error":' + payload + b"}"
