"""Wrapped providers: wait for durable writes before a request, and close the inner provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol, TypeAlias, runtime_checkable

from evoclaw.core.events import ReplyEvent
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import Profile

Flush: TypeAlias = Callable[[], Awaitable[None]]
"""Returns when every earlier write of the store is on disk."""


class WriteBarrierProvider:
    """Waits for earlier writes to be durable before each request."""

    def __init__(self, inner: Provider, flush: Flush) -> None:
        self.inner, self._flush = inner, flush

    @property
    def model(self) -> str:
        """The wrapped provider's model."""
        return self.inner.model

    @property
    def profile(self) -> Profile:
        """The wrapped provider's profile."""
        return self.inner.profile

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Wait for durability, then request the reply."""
        await self._flush()
        async with aclosing(self.inner.stream(request)) as pieces:
            async for piece in pieces:
                yield piece


def with_write_barrier(provider: Provider, flush: Flush) -> WriteBarrierProvider:
    """The provider with this barrier, instead of the one that it has."""
    inner = provider.inner if isinstance(provider, WriteBarrierProvider) else provider
    return WriteBarrierProvider(inner, flush)


@runtime_checkable
class Closable(Protocol):
    """A provider that must be closed: it started a process, or wraps another provider."""

    async def aclose(self) -> None:
        """Release its resources."""
        ...


async def close(provider: Provider) -> None:
    """Close a provider if it can be closed."""
    if isinstance(provider, Closable):
        await provider.aclose()
