"""A web address that answers are posted to: remembers them, and answers as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from evoclaw.core.messages import JSON
from tests.support.channels import PATIENCE


@dataclass
class WebhookReceiver:
    """What was posted, in order."""

    url: str = ""
    statuses: list[int] = field(default_factory=list[int])
    """What to answer, one after the other; 200 when there are no more."""
    more: dict[str, str] = field(default_factory=dict[str, str])
    """Headers of the answers."""
    bodies: list[bytes] = field(default_factory=list[bytes])
    headers: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])
    _arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def take(self, request: web.Request) -> web.Response:
        async with self._arrived:
            self.bodies.append(await request.read())
            self.headers.append({key.lower(): value for key, value in request.headers.items()})
            self._arrived.notify_all()
        return web.Response(
            status=self.statuses.pop(0) if self.statuses else 200, headers=self.more
        )

    async def wait_for_posts(self, count: int) -> list[JSON]:
        """Wait for so many posts in all."""
        async with asyncio.timeout(PATIENCE), self._arrived:
            await self._arrived.wait_for(lambda: len(self.bodies) >= count)
        return [msgspec.json.decode(body) for body in self.bodies]


@asynccontextmanager
async def open_webhook_receiver() -> AsyncGenerator[WebhookReceiver]:
    """An address on this machine."""
    made, app = WebhookReceiver(), web.Application()
    app.router.add_post("/answers", made.take)
    runner = web.AppRunner(app, handle_signals=False)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/answers"
    try:
        yield made
    finally:
        await runner.cleanup()
