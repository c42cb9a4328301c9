"""Close a provider that owns resources, also inside wrappers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from evoclaw.core.ports import Provider


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
