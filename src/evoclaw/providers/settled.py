"""A model is asked when what led to it is on the disk: what it may cost is set aside by then."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from evoclaw.core.events import ReplyEvent
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import Profile


class Settled:
    """Waits for the disk before each reply is asked for."""

    def __init__(self, inner: Provider, settle: Callable[[], Awaitable[None]]) -> None:
        """`settle` returns when everything that was written before is on the disk."""
        self._inner, self._settle = inner, settle

    @property
    def model(self) -> str:
        """The same model."""
        return self._inner.model

    @property
    def profile(self) -> Profile:
        """What it can do."""
        return self._inner.profile

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Wait, then ask."""
        await self._settle()
        async with aclosing(self._inner.stream(request)) as pieces:
            async for piece in pieces:
                yield piece
