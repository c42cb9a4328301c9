"""A party that remembers what it was told, and can be waited for."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from evoclaw.transport.link import Incoming, Link, Will

PATIENCE = 20.0
"""Seconds; a machine may be slow."""


class Recorder:
    """Remembers everything."""

    def __init__(self, *subscriptions: str, client_id: str = "", will: Will | None = None) -> None:
        self.client_id = client_id or f"party-{secrets.token_hex(4)}"
        self.subscriptions: Sequence[str] = subscriptions
        self.messages: list[Incoming] = []
        self.reasons: list[str] = []
        self.births = 0
        self.wills_asked = 0
        self.next_will = will
        self.on_connected: Callable[[], Awaitable[None]] | None = None
        self.on_disconnected: Callable[[], None] | None = None
        self.on_received: Callable[[Incoming], None] | None = None
        self.log: list[str] = []
        self._waiters: list[asyncio.Future[None]] = []

    def will(self) -> Will | None:
        self.wills_asked += 1
        return self.next_will

    async def connected(self) -> None:
        self.births += 1
        self._notify("connected")
        if self.on_connected is not None:
            await self.on_connected()

    def disconnected(self, reason: str) -> None:
        self.reasons.append(reason)
        self._notify("disconnected")
        if self.on_disconnected is not None:
            self.on_disconnected()

    def received(self, message: Incoming) -> None:
        self.messages.append(message)
        self._notify("received")
        if self.on_received is not None:
            self.on_received(message)

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]

    def _notify(self, what: str) -> None:
        self.log.append(what)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, true: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until something is true that can become so only when this party is told."""
        async with asyncio.timeout(seconds):
            while not true():
                waiter = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                await waiter

    async def wait_messages(self, count: int, seconds: float = PATIENCE) -> list[bytes]:
        """Wait for so many messages in all; their payloads."""
        await self.until(lambda: len(self.messages) >= count, seconds)
        return self.payloads

    async def wait_connected(self, times: int, seconds: float = PATIENCE) -> None:
        await self.until(lambda: self.births >= times, seconds)

    async def wait_disconnected(self, times: int, seconds: float = PATIENCE) -> str:
        """Wait for so many losses in all; the reason of that one."""
        await self.until(lambda: len(self.reasons) >= times, seconds)
        return self.reasons[times - 1]


@asynccontextmanager
async def running_link(link: Link, party: Recorder) -> AsyncGenerator[asyncio.Task[None]]:
    """Run a link; it has been left when this ends."""
    task = asyncio.create_task(link.run(party))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def connected_link(link: Link, party: Recorder) -> AsyncGenerator[asyncio.Task[None]]:
    """Run a link, from when its party is connected."""
    async with running_link(link, party) as task:
        await party.wait_connected(1)
        yield task
