"""Sends an event stream to one client: batches frames, without a task per client.

A client that watches a run token by token receives thousands of small frames. A frame costs one
callback; only a client that does not read costs a task and a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from litestar.types import Send

from evoclaw.core.eager import begin

BEAT = b": still here\n\n"
AHEAD = 64
"""Frames that are buffered before the source is paused."""
STALL = 30.0
"""How long a client may read nothing before its stream is closed."""


class Outlet:
    """Sends frames to one client in order, and heartbeats when there are none."""

    def __init__(self, send: Send, beat: float) -> None:
        """Start the heartbeat timer.

        Args:
            send: The ASGI send function of the response.
            beat: Seconds without a frame after which a heartbeat is sent.
        """
        self._send, self._beat = send, beat
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._due = False
        self._waiting: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self.given_up: asyncio.Future[None] = self._loop.create_future()
        """Done when nothing more can be sent: the client reads nothing, or a send failed."""
        self._last = self._loop.time()
        self._timer = self._loop.call_later(beat, self._look)

    def put(self, piece: bytes) -> None:
        """Buffer a frame; the next iteration of the event loop sends all buffered frames."""
        self._pieces.append(piece)
        if not self._due and self._waiting is None:
            self._due = True
            self._loop.call_soon(self._flush)

    @property
    def is_full(self) -> bool:
        """Whether the buffer is full."""
        return len(self._pieces) >= AHEAD

    async def room(self) -> None:
        """Wait until the buffer has space."""
        while self.is_full:
            if self._room is None:
                self._room = self._loop.create_future()
            await self._room

    async def end(self) -> None:
        """Send the buffered frames and end the response."""
        while self._pieces or self._waiting is not None:
            if self.given_up.done():
                return
            if self._waiting is None:
                self._flush()
            else:
                await asyncio.wait([self._waiting])
        if not self.given_up.done():
            self._begin(b"", more=False)
            if self._waiting is not None:
                await asyncio.wait([self._waiting])

    async def close(self) -> None:
        """Cancel the timer and the pending send."""
        self._timer.cancel()
        self._pieces.clear()
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait([self._waiting])

    def _flush(self) -> None:
        self._due = False
        if self._pieces and self._waiting is None and not self.given_up.done():
            body = b"".join(self._pieces)
            self._pieces.clear()
            self._last = self._loop.time()
            self._begin(body)
            self._make_room()

    def _make_room(self) -> None:
        if self._room is not None:
            if not self._room.done():
                self._room.set_result(None)
            self._room = None

    def _begin(self, body: bytes, *, more: bool = True) -> None:
        """Send; a task is created only if the client is behind."""
        try:
            rest = begin(self._sent(body, more))
        except BaseException:
            self._give_up()
            raise
        if rest is not None:
            self._waiting = asyncio.create_task(self._patiently(rest))
            # A task that is cancelled before it starts does not close its coroutine.
            self._waiting.add_done_callback(lambda _: rest.close())

    async def _sent(self, body: bytes, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _patiently(self, rest: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(STALL):
                await rest
        except TimeoutError:
            self._give_up()  # the client reads nothing, so an error frame would not arrive either
        except BaseException:
            self._give_up()
            raise
        finally:
            self._waiting = None
        self._flush()

    def _give_up(self) -> None:
        if not self.given_up.done():
            self.given_up.set_result(None)

    def _look(self) -> None:
        left = self._last + self._beat - self._loop.time()
        if left <= 0:
            left = self._beat
            if self._waiting is None:
                self.put(BEAT)
        self._timer = self._loop.call_later(left, self._look)
