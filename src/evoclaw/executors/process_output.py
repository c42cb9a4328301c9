"""Collects what a process writes, in bounded memory, and notices that it ended."""

from __future__ import annotations

import asyncio
import codecs
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

STDOUT, STDERR = 1, 2


class BoundedOutput:
    """The head and the tail of a stream, and its total size."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head, self._tail = bytearray(), bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Add the next piece."""
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._half :]
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def content(self) -> bytes:
        """All of it, or head and tail with a line between them that says how much is missing."""
        tail = self._tail[-self._half :]
        missing = self.total - len(self._head) - len(tail)
        if not missing:
            return bytes(self._head + tail)
        return bytes(self._head) + f"\n[… {missing:,} bytes left out …]\n".encode() + bytes(tail)


class ProcessWatch(asyncio.SubprocessProtocol):
    """Watches one process: its output and its exit."""

    def __init__(
        self, max_output: int, max_bytes: int, on_output: Callable[[str], None] | None = None
    ) -> None:
        self.kept = {STDOUT: BoundedOutput(max_output), STDERR: BoundedOutput(max_output)}
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()
        """No process holds the other end of a pipe any more."""
        self.wake = asyncio.Event()
        """The process ended, wrote too much, or was asked to stop."""
        self.overflowed = False
        self._max_bytes = max_bytes
        self._open = {STDOUT, STDERR}
        self._on_output = on_output
        # A listener that stores all output sets `wants_everything`; others get `max_output`.
        everything = getattr(on_output, "wants_everything", False)
        self._sent, self._may_send = 0, sys.maxsize if everything else max_output
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {fd: decoder("replace") for fd in self._open}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Store a piece, and pass it on up to the limit."""
        self.kept[fd].add(data)
        if sum(kept.total for kept in self.kept.values()) > self._max_bytes:
            self.overflowed = True
            self.wake.set()
        if self._on_output is not None and self._sent < self._may_send:
            self._send(self._decoders[fd].decode(data[: self._may_send - self._sent]), len(data))

    def _send(self, text: str, size: int) -> None:
        self._sent += size
        if self._on_output is not None and text:
            self._on_output(text)
            if self._sent >= self._may_send:
                self._on_output("\n[… more output, not shown while it runs …]\n")

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Note that a stream ended."""
        self._open.discard(fd)
        if not self._open:
            self.closed.set()

    def process_exited(self) -> None:
        """Note that the process ended; others may still hold its pipes."""
        self.exited.set()
        self.wake.set()

    async def settled(self, seconds: float) -> bool:
        """Whether, within some time, the process has ended and its pipes are closed."""
        try:
            async with asyncio.timeout(seconds):
                await self.exited.wait()
                await self.closed.wait()
        except TimeoutError:
            return False
        return True


async def wait_uncancelled(work: asyncio.Task[Any]) -> None:
    """Wait for a task even if the caller is cancelled; it takes seconds at most."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    if not work.cancelled():
        # Retrieved, so that asyncio does not log an error that no longer matters.
        work.exception()
