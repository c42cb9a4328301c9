"""The emergency stop of several orchestrators that share a store: what one is told, all obey.

Each has what is stopped for all in a second file beside its own, which its runs look at in the
same way: so a store that goes away releases nothing, and costs no call anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from evoclaw.core.errors import EvoClawError
from evoclaw.governance.stops import Kind, Stop, StopFile, UnsoundStops

FILE = "stops-of-all.json"
"""Its name in the data folder."""
LOOK = 0.5
"""Seconds between two looks at what others were told."""
_STOP = msgspec.json.Decoder(Stop)


class NotShared(EvoClawError):
    """What others should have been told, they were not."""


class Rows(Protocol):
    """A store of stops."""

    async def all(self) -> Sequence[bytes]:
        """All of them."""
        ...

    async def put(self, kind: str, name: str, state: bytes) -> None:
        """Stop something."""
        ...

    async def release(self, kind: str, name: str) -> None:
        """Stop it no longer."""
        ...


class StopBoard:
    """Where people stop things: on this machine, or for all who share its store."""

    def __init__(
        self,
        own: StopFile,
        mirror: StopFile | None = None,
        rows: Rows | None = None,
        away: str = "",
    ) -> None:
        """Choose where.

        Args:
            own: The stops of this machine alone.
            mirror: Those of all, as this machine knows them; None if nothing is shared.
            rows: Those of all, where they are kept.
            away: Why that cannot be reached, if it cannot.
        """
        self._own, self._mirror, self._rows, self._away = own, mirror, rows, away

    def stops(self) -> tuple[Stop, ...]:
        """What is stopped here; `UnsoundStops` if that cannot be known."""
        shared = () if self._mirror is None else self._mirror.stops()
        found = {(one.kind, one.name): one for one in (*shared, *self._own.stops())}
        return tuple(found.values())

    async def put(self, stop: Stop) -> None:
        """Stop something: here at once, whatever becomes of the rest; `NotShared` if only here."""
        self._own.put(stop)
        if self._mirror is None:
            return
        try:
            rows = self._reached()
            await rows.put(stop.kind, stop.name, msgspec.json.encode(stop))
            await self.look()
        except EvoClawError as problem:
            raise NotShared(
                f"stopped on this machine, but the others were not told ({problem}): stop it "
                "there too, or again when the store is back"
            ) from None
        # It stands for all now: who releases it elsewhere must not find it here again.
        self._own.release(stop.kind, stop.name)

    async def release(self, kind: Kind, name: str = "") -> Stop | None:
        """Take one stop back, for all; what it was. `NotShared` if it stands all the same."""
        if self._mirror is None:
            return self._own.release(kind, name)
        there = {(one.kind, one.name): one for one in self._known() or ()}
        try:
            await self._reached().release(kind, name)
            await self.look()
        except EvoClawError as problem:
            raise NotShared(f"nothing was released: {problem}") from None
        return self._own.release(kind, name) or there.get((kind, name))

    async def look(self) -> None:
        """Obey here what was stopped for all, and no longer what was released."""
        if self._mirror is None or self._rows is None:
            return
        wanted = tuple(_STOP.decode(row) for row in await self._rows.all())
        if self._known() != wanted:
            self._mirror.put_all(wanted)

    def _known(self) -> tuple[Stop, ...] | None:
        try:
            return () if self._mirror is None else self._mirror.stops()
        except UnsoundStops:
            return None

    def _reached(self) -> Rows:
        if self._rows is None:
            raise NotShared(self._away)
        return self._rows


@asynccontextmanager
async def following_board(board: StopBoard, *, every: float = LOOK) -> AsyncGenerator[None]:
    """While the block runs, obey what other machines are told; before it begins, what they were."""
    await board.look()

    async def watch() -> None:
        while True:
            await asyncio.sleep(every)
            try:
                await board.look()
            except EvoClawError:
                continue  # what is stopped stays so, and nothing else can be begun without it

    watching = asyncio.create_task(watch(), name="stops of all")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])
