"""The proof that a recorded run is what it says: played again, it comes out byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec import Struct

from evoclaw.core.errors import RecordingError
from evoclaw.core.events import Record
from evoclaw.core.replay import Replay

STALL = 10.0
"""Seconds for the next record: one that was changed may leave the loop waiting for ever."""


class Played(Struct, frozen=True):
    """What came of playing a run again."""

    same: bool
    records: int
    """How many came out as they are."""
    differs_at: int | None = None
    """The number of the first one that did not."""
    reason: str = ""
    """Why not, for people."""


async def replayed(records: Sequence[Record]) -> AsyncGenerator[Record, None]:
    """Play a run again; raise `RecordingError` at the first record that comes out differently."""
    count = 0
    async with aclosing(Replay(records).records()) as played:
        async for record in played:
            if msgspec.json.encode(record) != msgspec.json.encode(records[count]):
                raise RecordingError(f"record {count + 1} came out differently")
            count += 1
            yield record


async def play(records: Sequence[Record], stall: float = STALL) -> Played:
    """Play a run to its end, and say whether it came out the same; others get their turn between.

    Args:
        records: The run, numbered without gaps.
        stall: Seconds in which the next record must come.
    """
    count, loop = 0, asyncio.get_running_loop()
    try:
        async with asyncio.timeout(stall) as patience, aclosing(replayed(records)) as played:
            async for _ in played:
                count += 1
                await asyncio.sleep(0)
                patience.reschedule(loop.time() + stall)
    except RecordingError as problem:
        return Played(False, count, count + 1, str(problem))
    except TimeoutError:
        return Played(False, count, count + 1, f"record {count + 1} does not come")
    return Played(True, count)
