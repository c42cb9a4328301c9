"""Server-sent events as they come, cut anywhere, with their names and numbers."""

from __future__ import annotations

from msgspec import Struct

from evoclaw.core.errors import EvoClawError

MOST = 16 * 2**20
"""Bytes of one event."""


class Told(Struct, frozen=True):
    """One event."""

    event: str
    data: bytes
    id: str = ""
    """As the server counts; the last one is where to go on after a broken connection."""


class EventStream:
    """Turns pieces of a body into events; comments, such as heartbeats, are left out."""

    __slots__ = ("_block", "_rest", "_size")

    def __init__(self) -> None:
        self._rest = b""
        self._block: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[Told]:
        """Take a piece; give the events that it made whole."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events: list[Told] = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line:
                self._block.append(line)
                self._size += len(line)
            elif self._block:
                if (told := _event(self._block)) is not None:
                    events.append(told)
                self._block, self._size = [], 0
        if self._size + len(self._rest) > MOST:
            raise EvoClawError(f"the server sent an event of more than {MOST >> 20} MiB")
        return events


def _event(lines: list[bytes]) -> Told | None:
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
    return Told(name, b"\n".join(data), number) if data else None
