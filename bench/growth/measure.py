"""Measure costs: CPU time of this process and of a PostgreSQL backend, and SQLite VM steps."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

from bench.growth.curves import Curve, curve

import evoclaw
from evoclaw.store.databases.database import Database

Clock = Callable[[], float]
Op = Callable[[], Awaitable[object]]
OWN_CODE = str(Path(evoclaw.__file__).parent)


class Points:
    """The costs of several operations at several sizes."""

    def __init__(self) -> None:
        self._found: defaultdict[tuple[str, str, float], dict[int, float]] = defaultdict(dict)

    def add(self, name: str, unit: str, allowed: float, size: int, value: float) -> None:
        """Add a sample of an operation at a size; the lowest of several samples counts."""
        known = self._found[name, unit, allowed]
        known[size] = min(value, known.get(size, value))

    def curves(self) -> list[Curve]:
        """The curves of all operations with at least two sizes."""
        return [
            curve(name, unit, points, allowed)
            for (name, unit, allowed), points in self._found.items()
            if len(points) > 1
        ]


def cpu_of(pid: int) -> float:
    """The CPU seconds of a process."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


async def clock_of(database: Database) -> Clock:
    """A clock of the CPU time of this process plus, with PostgreSQL, that of its backend."""
    if database.dialect == "sqlite":
        return time.process_time
    statement = "SELECT pg_backend_pid()"
    found: Any = await database.read(lambda c: c.execute(statement).fetchone())
    return lambda: time.process_time() + cpu_of(found[0])


async def lowest_cpu_us(
    op: Op, *, times: int = 10, rounds: int = 5, clock: Clock = time.process_time
) -> float:
    """The lowest CPU time of one operation, in µs: other load can only increase it."""
    await op()
    best = float("inf")
    for _ in range(rounds):
        gc.collect(0)
        began = clock()
        for _ in range(times):
            await op()
        best = min(best, (clock() - began) / times * 1e6)
    return best


async def count_calls(op: Op, rounds: int = 3, code: str = OWN_CODE) -> int:
    """The number of function calls that code below a folder makes for an operation.

    What its background tasks do in the same time is subtracted. The calls of asyncio are left out:
    the heap of its timers grows with every edge of the process.
    """
    await op()
    return max(1, median([await _calls_for(op, code) for _ in range(rounds)]))


async def _calls_for(op: Op, code: str) -> int:
    started = time.monotonic()
    calls = await _count_calls(op, code)
    took = time.monotonic() - started
    return calls - await _count_calls(lambda: asyncio.sleep(took), code)


async def _count_calls(op: Op, code: str) -> int:
    calls = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += frame.f_code.co_filename.startswith(code)

    sys.setprofile(count)
    try:
        await op()
    finally:
        sys.setprofile(None)
    return calls


@asynccontextmanager
async def steps_of(database: Database) -> AsyncGenerator[Callable[[], int]]:
    """Count SQLite VM steps, which do not depend on the machine or its load."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    async def count(handler: Callable[[], int] | None) -> None:
        def work(connection: Any) -> None:
            assert isinstance(connection, sqlite3.Connection)
            connection.set_progress_handler(handler, 1)

        await database.read(work)

    await count(step)
    try:
        yield lambda: steps
    finally:
        await count(None)


async def measure_operation(
    points: Points,
    database: Database,
    name: str,
    allowed: float,
    size: int,
    op: Op,
    *,
    times: int = 5,
) -> None:
    """Add the CPU time of an operation on a database, and with SQLite its VM steps."""
    clock = await clock_of(database)
    took = await lowest_cpu_us(op, times=times, clock=clock)
    points.add(f"{name} ({database.dialect})", "µs", allowed, size, took)
    if database.dialect == "sqlite":
        async with steps_of(database) as steps:
            await op()
            points.add(f"{name} ({database.dialect}, steps)", "steps", allowed, size, steps())
