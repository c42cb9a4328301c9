"""Sends an event stream to one client: batches frames, without a task per client.

A client that watches a run token by token receives thousands of small frames. A frame costs one
callback; only a client that does not read costs a task and a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from litestar.types import Send

from evoclaw.core.eager import start_eagerly

HEARTBEAT_FRAME = b": still here\n\n"
MAX_BUFFERED_FRAMES = 64
"""Frames that are buffered before the source is paused."""
MIN_SEND_INTERVAL_S = 0.01
"""Seconds between two sends; frames that come faster, such as the tokens of a quick model, are
sent together."""
SEND_TIMEOUT_S = 30.0
"""How long a client may read nothing before its stream is closed."""


class EventSender:
    """Sends frames to one client in order, and heartbeats when there are none."""

    def __init__(self, send: Send, heartbeat_s: float) -> None:
        """Start the heartbeat timer.

        Args:
            send: The ASGI send function of the response.
            heartbeat_s: Seconds without a frame after which a heartbeat is sent.
        """
        self._send, self._heartbeat_s = send, heartbeat_s
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._scheduled_flush: asyncio.Handle | None = None
        self._pending_send: asyncio.Task[None] | None = None
        self._space_available: asyncio.Future[None] | None = None
        self.failed: asyncio.Future[None] = self._loop.create_future()
        """Done when nothing more can be sent: the client reads nothing, or a send failed."""
        self._last_sent_at = self._loop.time()
        self._next_flush_at = 0.0
        self._timer = self._loop.call_later(heartbeat_s, self._check_heartbeat)

    def put(self, piece: bytes) -> None:
        """Buffer a frame; all buffered frames are sent together, at once or a moment later."""
        self._pieces.append(piece)
        if self._pending_send is not None:
            return
        if self.is_full:
            self._flush()
        elif self._scheduled_flush is None:
            is_due = self._loop.time() >= self._next_flush_at
            self._scheduled_flush = (
                self._loop.call_soon(self._flush)
                if is_due
                else self._loop.call_at(self._next_flush_at, self._flush)
            )

    @property
    def is_full(self) -> bool:
        """Whether the buffer is full."""
        return len(self._pieces) >= MAX_BUFFERED_FRAMES

    async def wait_for_space(self) -> None:
        """Wait until the buffer has space."""
        while self.is_full:
            if self._space_available is None:
                self._space_available = self._loop.create_future()
            await self._space_available

    async def finish(self) -> None:
        """Send the buffered frames and end the response."""
        self._timer.cancel()  # a heartbeat after the end would be an error
        while self._pieces or self._pending_send is not None:
            if self.failed.done():
                return
            if self._pending_send is None:
                self._flush()
            else:
                await asyncio.wait([self._pending_send])
        if not self.failed.done():
            self._start_send(b"", more=False)
            if self._pending_send is not None:
                await asyncio.wait([self._pending_send])

    async def close(self) -> None:
        """Cancel the timer and the pending send."""
        self._timer.cancel()
        self._cancel_scheduled_flush()
        self._pieces.clear()
        if self._pending_send is not None:
            self._pending_send.cancel()
            await asyncio.wait([self._pending_send])

    def _cancel_scheduled_flush(self) -> None:
        if self._scheduled_flush is not None:
            self._scheduled_flush.cancel()
            self._scheduled_flush = None

    def _flush(self) -> None:
        self._cancel_scheduled_flush()
        if self._pieces and self._pending_send is None and not self.failed.done():
            body = b"".join(self._pieces)
            self._pieces.clear()
            self._last_sent_at = self._loop.time()
            self._next_flush_at = self._last_sent_at + MIN_SEND_INTERVAL_S
            self._start_send(body)
            self._signal_space()

    def _signal_space(self) -> None:
        if self._space_available is not None:
            if not self._space_available.done():
                self._space_available.set_result(None)
            self._space_available = None

    def _start_send(self, body: bytes, *, more: bool = True) -> None:
        """Send; a task is created only if the client is behind."""
        try:
            rest = start_eagerly(self._send_chunk(body, more))
        except BaseException:
            self._fail()
            raise
        if rest is not None:
            self._pending_send = asyncio.create_task(self._finish_send(rest))
            # A task that is cancelled before it starts does not close its coroutine.
            self._pending_send.add_done_callback(lambda _: rest.close())

    async def _send_chunk(self, body: bytes, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _finish_send(self, rest: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await rest
        except TimeoutError:
            self._fail()  # the client reads nothing, so an error frame would not arrive either
        except BaseException:
            self._fail()
            raise
        finally:
            self._pending_send = None
        self._flush()

    def _fail(self) -> None:
        if not self.failed.done():
            self.failed.set_result(None)

    def _check_heartbeat(self) -> None:
        left = self._last_sent_at + self._heartbeat_s - self._loop.time()
        if left <= 0:
            left = self._heartbeat_s
            if self._pending_send is None:
                self.put(HEARTBEAT_FRAME)
        self._timer = self._loop.call_later(left, self._check_heartbeat)
