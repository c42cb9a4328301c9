"""A watcher that connects to the service, and then reads nothing."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

DROPPED = re.compile(rb'event: dropped\ndata: \{"after":\s*(\d+)\}')
"""What one that reads too slowly is told at last."""
SMALL = 4096
"""Bytes that the kernel keeps for it on its side."""
PATIENCE = 30.0


class StalledWatcher:
    """One that sleeps until `wakes`."""

    def __init__(self, url: str, token: str, run: str) -> None:
        host = urlsplit(url)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        self.socket.settimeout(PATIENCE)
        self.socket.connect((host.hostname, host.port))
        head = f"GET /v1/runs/{run}/events HTTP/1.1\r\nHost: {host.netloc}\r\n"
        self.socket.sendall(f"{head}Authorization: Bearer {token}\r\n\r\n".encode())

    def read_all(self) -> bytes:
        """Everything that was on its way, until it is hung up on."""
        found = bytearray()
        with self.socket:
            while not found.endswith(b"\r\n0\r\n\r\n"):
                try:
                    piece = self.socket.recv(1 << 16)
                except ConnectionResetError:
                    break
                if not piece:
                    break
                found += piece
        return _unchunked(bytes(found))


def _unchunked(answer: bytes) -> bytes:
    """The body of an answer that came in chunks, as far as it came."""
    _, _, rest = answer.partition(b"\r\n\r\n")
    body = bytearray()
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        body += rest[:length]
        rest = rest[length + 2 :]
    return bytes(body)
