"""Parses server-sent events from chunks of a response."""

from __future__ import annotations

from msgspec import Struct

from evoclaw.core.errors import EvoClawError

MAX_EVENT_BYTES = 16 * 2**20
"""Bytes of one event."""


class ServerSentEvent(Struct, frozen=True):
    """One server-sent event."""

    event: str
    data: bytes
    id: str = ""
    """Set by the server; a client reconnects with the id of its last event."""


class SseParser:
    """Turns chunks of a body into events; skips comments, such as heartbeats."""

    __slots__ = ("_block", "_rest", "_size")

    def __init__(self) -> None:
        self._rest = b""
        self._block: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Add a chunk; returns the events that it completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events: list[ServerSentEvent] = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line:
                self._block.append(line)
                self._size += len(line)
            elif self._block:
                if (event := _event(self._block)) is not None:
                    events.append(event)
                self._block, self._size = [], 0
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise EvoClawError(
                f"the service sent an event of more than {MAX_EVENT_BYTES >> 20} MiB"
            )
        return events


def _event(lines: list[bytes]) -> ServerSentEvent | None:
    name, number, data = "message", "", list[bytes]()
    for line in lines:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode(errors="replace")
        elif field == b"id" and b"\0" not in value:
            number = value.decode(errors="replace")
    return ServerSentEvent(name, b"\n".join(data), number) if data else None
