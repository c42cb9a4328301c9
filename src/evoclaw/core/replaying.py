"""Verify that a recorded run replays byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec import Struct

from evoclaw.core.errors import RecordingError
from evoclaw.core.events import Record
from evoclaw.core.replay import Replay

REPLAY_STALL_TIMEOUT_S = 10.0
"""Seconds to wait for the next record: an altered recording may block the loop for ever."""


class ReplayResult(Struct, frozen=True):
    """The outcome of replaying a run."""

    same: bool
    records: int
    """How many records were the same."""
    differs_at: int | None = None
    """The number of the first record that differs."""
    reason: str = ""
    """Why it differs, for people."""


async def replay_exactly(records: Sequence[Record]) -> AsyncGenerator[Record, None]:
    """Replay a run; raise `RecordingError` at the first record that is not the same to the byte."""
    count = 0
    async with aclosing(Replay(records).records()) as played:
        async for record in played:
            if msgspec.json.encode(record) != msgspec.json.encode(records[count]):
                raise RecordingError(f"record {count + 1} differs from the recording")
            count += 1
            yield record


async def verify_replay(
    records: Sequence[Record], stall: float = REPLAY_STALL_TIMEOUT_S
) -> ReplayResult:
    """Replay a run to its end and compare it; other tasks may run between two records.

    Args:
        records: The records of the run, numbered without gaps.
        stall: Seconds to wait for each record.
    """
    count, loop = 0, asyncio.get_running_loop()
    try:
        async with asyncio.timeout(stall) as timeout, aclosing(replay_exactly(records)) as played:
            async for _ in played:
                count += 1
                await asyncio.sleep(0)
                timeout.reschedule(loop.time() + stall)
    except RecordingError as problem:
        return ReplayResult(False, count, count + 1, str(problem))
    except TimeoutError:
        return ReplayResult(
            False, count, count + 1, f"the replay stalled before record {count + 1}"
        )
    return ReplayResult(True, count)
