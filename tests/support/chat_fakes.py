"""What the local fakes of chat services have in common: what was sent, and refusals to give."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from evoclaw.core.messages import JSON

SENT_TIMEOUT_S = 60.0
PNG = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f"
    b"\x15\xc4\x89\x00\x00\x00\rIDATx\x9cc\xf8\xcf\xc0\xf0\x1f\x00\x05\x00\x01\xff\x89\x99=\x1d"
    b"\x00\x00\x00\x00IEND\xaeB`\x82"
)
"""An image of one pixel."""


@dataclass(frozen=True)
class SentMessage:
    """A message that the service accepted."""

    conversation: str
    text: str
    body: JSON
    """The request as it came."""


@dataclass
class ChatFake:
    """One service on a port of this machine."""

    url: str = ""
    sent: list[SentMessage] = field(default_factory=list[SentMessage])
    typed: list[str] = field(default_factory=list[str])
    """Conversations in which a typing indicator was shown."""
    refusals: list[web.Response] = field(default_factory=list[web.Response])
    """Answers to the next messages, instead of accepting them."""
    is_held: bool = False
    """Whether messages are accepted, but not answered until `release`."""
    logins: int = 0
    """Requests with a valid token that only check it."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def notify(self) -> None:
        """Wake up who waits for a change."""
        async with self.changed:
            self.changed.notify_all()

    async def accept(self, conversation: str, text: str, body: JSON) -> web.Response | None:
        """Remember a message; the answer of a refusal, if one is planned."""
        if self.refusals:
            return self.refusals.pop(0)
        self.sent.append(SentMessage(conversation, text, body))
        await self.notify()
        await self.wait_for(lambda: not self.is_held)
        return None

    async def release(self) -> None:
        """Answer messages again."""
        self.is_held = False
        await self.notify()

    async def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(SENT_TIMEOUT_S), self.changed:
            await self.changed.wait_for(lambda: bool(condition()))

    async def wait_sent(self, count: int) -> list[SentMessage]:
        """Wait until so many messages were sent in all."""
        await self.wait_for(lambda: len(self.sent) >= count)
        return self.sent

    @property
    def texts(self) -> list[str]:
        """What was sent, in order."""
        return [message.text for message in self.sent]


def json_response(body: JSON, status: int = 200, **headers: str) -> web.Response:
    """A response with JSON; `_` in the name of a header is `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.Response(
        status=status,
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers=named,
    )


def utf16_units(text: str) -> int:
    """How services count the length of a text."""
    return len(text.encode("utf-16-le")) // 2


@asynccontextmanager
async def serve_fake(app: web.Application) -> AsyncGenerator[str]:
    """The address of an application on this machine, until the block ends."""
    runner = web.AppRunner(
        app, handle_signals=False, handler_cancellation=True, shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
