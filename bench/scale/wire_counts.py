"""Counts round trips and committed transactions in the bytes of PostgreSQL connections.

A round trip starts when a client sends bytes to a server that has answered everything before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

PROTOCOL_3 = 196608
ENCRYPTION_REQUESTS = frozenset({80877103, 80877104})
"""The codes of SSLRequest and GSSENCRequest: the server answers with a single byte."""
LISTENING = "(listening)"
"""The name of connections that wait for notices: their traffic belongs to no run."""
TERMINATE = b"X\0\0\0\4"


@dataclass
class WireCounts:
    """The sums over all connections."""

    round_trips: Counter[str] = field(default_factory=Counter[str])
    """By application name."""
    executed: Counter[str] = field(default_factory=Counter[str])
    """Statements by the first word of the server's command tag."""
    committed: int = 0
    rolled_back: int = 0


class WireConnection:
    """One connection, counted from its startup packet on."""

    def __init__(self, counts: WireCounts) -> None:
        self._counts = counts
        self._name = ""
        self._started = False
        self._answered = True
        self._encryption_asked = False
        self._startup, self._answer = b"", b""
        self._tag, self._failed = b"", False

    def client_sent(self, data: bytes) -> None:
        """Count what the client sent."""
        if data == TERMINATE:
            return
        if not self._started:
            self._read_startup(data)
        elif listens(data):
            self._name = LISTENING
        if self._answered:
            self._answered = False
            self._counts.round_trips[self._name] += 1

    def server_sent(self, data: bytes) -> None:
        """Count what the server sent."""
        self._answered = True
        if self._encryption_asked:
            if data[:1] != b"N":
                raise ValueError("the server encrypts connections; it must have ssl = off here")
            self._encryption_asked, data = False, data[1:]
        self._read_answer(self._answer + data if self._answer else data)

    def _read_startup(self, data: bytes) -> None:
        self._startup += data
        if len(self._startup) < 8 or len(self._startup) < _int(self._startup, 0):
            return
        code = _int(self._startup, 4)
        if code in ENCRYPTION_REQUESTS:
            self._encryption_asked = True
        elif code == PROTOCOL_3:
            self._started, self._name = True, application_name(self._startup)
        self._startup = b""

    def _read_answer(self, data: bytes) -> None:
        at, end = 0, len(data)
        while at + 5 <= end and (after := at + 1 + _int(data, at + 1)) <= end:
            match data[at]:
                case 0x43:  # CommandComplete
                    self._tag = data[at + 5 : after - 1]
                    self._counts.executed[self._tag.partition(b" ")[0].decode()] += 1
                case 0x45:  # ErrorResponse
                    self._failed = True
                case 0x5A:  # ReadyForQuery
                    self._ready(idle=data[at + 5] == 0x49)
                case _:
                    pass
            at = after
        self._answer = data[at:]

    def _ready(self, *, idle: bool) -> None:
        """The server waits for the next statement; a transaction has ended if it is `idle`."""
        if idle and (self._failed or self._tag == b"ROLLBACK"):
            self._counts.rolled_back += 1
        elif idle and self._tag:
            self._counts.committed += 1
        self._tag, self._failed = b"", False


def application_name(startup: bytes) -> str:
    """The application name in a startup packet; empty if it has none."""
    words = startup[8:].split(b"\0")
    given = dict(zip(words[::2], words[1::2], strict=False))
    return given.get(b"application_name", b"").decode(errors="replace")


def listens(data: bytes) -> bool:
    """Whether the first message is a LISTEN, as a simple query or to be parsed."""
    if data[:1] == b"Q":
        return data[5:12].upper() == b"LISTEN "
    if data[:1] == b"P":
        query = data[data.find(b"\0", 5) + 1 :]
        return query[:7].upper() == b"LISTEN "
    return False


def _int(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big")
