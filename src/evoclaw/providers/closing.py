"""Closing a provider that holds something, whatever it is wrapped in."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from evoclaw.core.ports import Provider


@runtime_checkable
class Closable(Protocol):
    """A provider that must be closed: it started a process, or wraps one that may have."""

    async def aclose(self) -> None:
        """Let go of what is held."""
        ...


async def close(provider: Provider) -> None:
    """Close a provider if it has anything to close."""
    if isinstance(provider, Closable):
        await provider.aclose()
