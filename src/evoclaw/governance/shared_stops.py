"""The emergency stop of orchestrators that share a store: a stop set at one holds at all of them.

Each orchestrator mirrors the shared stops in a second file, which its runs check like the first. So
an unreachable store releases nothing, and no call waits for the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from evoclaw.core.errors import EvoClawError
from evoclaw.governance.stops import Stop, StopFile, StopKind, UntrustedStopFile

SHARED_STOPS_FILE_NAME = "stops-of-all.json"
"""The name of the mirror file in the data folder."""
SHARED_STOPS_POLL_INTERVAL_S = 0.5
"""Seconds between two reads of the shared stops."""
_STOP = msgspec.json.Decoder(Stop)


class StopNotShared(EvoClawError):
    """A stop was set or released on this machine only, because the store is unreachable."""


class StopRows(Protocol):
    """The stops in the shared store."""

    async def all(self) -> Sequence[bytes]:
        """Return all stops."""
        ...

    async def put(self, kind: str, name: str, state: bytes) -> None:
        """Add or replace a stop."""
        ...

    async def release(self, kind: str, name: str) -> None:
        """Remove a stop."""
        ...


class StopRegistry:
    """Sets and releases stops: on this machine, or on all machines that share its store."""

    def __init__(
        self,
        local: StopFile,
        mirror: StopFile | None = None,
        rows: StopRows | None = None,
        unreachable: str = "",
    ) -> None:
        """Choose the files and the store.

        Args:
            local: The stop file of this machine alone.
            mirror: The local copy of the shared stops; None if nothing is shared.
            rows: The shared stops in the store; None if the store is unreachable.
            unreachable: Why the store is unreachable.
        """
        self._local, self._mirror, self._rows, self._unreachable = local, mirror, rows, unreachable

    def stops(self) -> tuple[Stop, ...]:
        """The stops that hold on this machine. Raises `UntrustedStopFile`."""
        shared = () if self._mirror is None else self._mirror.stops()
        found = {(stop.kind, stop.name): stop for stop in (*shared, *self._local.stops())}
        return tuple(found.values())

    async def put(self, stop: Stop) -> None:
        """Set a stop: first on this machine, then for all; `StopNotShared` if only here."""
        self._local.put(stop)
        if self._mirror is None:
            return
        try:
            rows = self._reachable_rows()
            await rows.put(stop.kind, stop.name, msgspec.json.encode(stop))
            await self.refresh()
        except EvoClawError as problem:
            raise StopNotShared(
                f"stopped on this machine only; the shared store cannot be reached ({problem}). "
                "Stop it on the other machines too, or repeat this when the store is "
                "reachable again"
            ) from None
        # The stop is shared now: a release on another machine must not leave it here.
        self._local.release(stop.kind, stop.name)

    async def release(self, kind: StopKind, name: str = "") -> Stop | None:
        """Release a stop for all, and return it; `StopNotShared` if the stop still holds."""
        if self._mirror is None:
            return self._local.release(kind, name)
        shared = {(stop.kind, stop.name): stop for stop in self._mirrored() or ()}
        try:
            await self._reachable_rows().release(kind, name)
            await self.refresh()
        except EvoClawError as problem:
            raise StopNotShared(f"nothing was released: {problem}") from None
        return self._local.release(kind, name) or shared.get((kind, name))

    async def refresh(self) -> None:
        """Copy the shared stops from the store to the mirror file."""
        if self._mirror is None or self._rows is None:
            return
        wanted = tuple(_STOP.decode(row) for row in await self._rows.all())
        if self._mirrored() != wanted:
            self._mirror.replace_all(wanted)

    def _mirrored(self) -> tuple[Stop, ...] | None:
        try:
            return () if self._mirror is None else self._mirror.stops()
        except UntrustedStopFile:
            return None

    def _reachable_rows(self) -> StopRows:
        if self._rows is None:
            raise StopNotShared(self._unreachable)
        return self._rows


@asynccontextmanager
async def sync_stops(
    registry: StopRegistry, *, interval_s: float = SHARED_STOPS_POLL_INTERVAL_S
) -> AsyncGenerator[None]:
    """Copy the shared stops to this machine: once before the block, then while it runs."""
    await registry.refresh()

    async def watch() -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await registry.refresh()
            except EvoClawError:
                continue  # the mirror keeps its stops, and no run can start without the store

    watching = asyncio.create_task(watch(), name="stops of all")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])
