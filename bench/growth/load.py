"""Costs with many queued runs, commands, watchers, sessions and memories."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from itertools import count
from secrets import token_hex

from bench.growth.curves import FLAT, LINEAR, Curve
from bench.growth.databases import (
    NUMBERS,
    Model,
    RunService,
    open_databases,
    open_run_service,
    settle,
)
from bench.growth.measure import Op, Points, clock_of, lowest_cpu_us, measure_operation
from tests.support.databases import Place

from evoclaw.core.labels import Principal
from evoclaw.orchestrator.runs.requests import RunRequest
from evoclaw.store.calls.commands import CommandStore
from evoclaw.store.databases.database import Connection, Database
from evoclaw.store.memory import EventType, MemoryStore, Observation
from evoclaw.store.runs.claims import Claims
from evoclaw.store.sessions.statements import REQUEST_COLUMN

ANN = Principal(user="ann")
SIZES = {True: (10, 100, 1_000), False: (10, 100, 1_000, 10_000)}
NOTES = {True: (100, 1_000, 10_000), False: (100, 1_000, 10_000, 100_000)}
WATCHERS = {True: (1, 10, 100), False: (1, 10, 100, 1_000)}
EDGE = "kitchen"
SESSIONS = f"""{NUMBERS}
INSERT INTO sessions (tenant, id, owner, parent, agent, session)
SELECT s.tenant, 'f' || n.i, s.owner, '', CASE WHEN n.i < 5 THEN 'rare' ELSE s.agent END, s.session
FROM n JOIN sessions s ON s.tenant = 'local' AND s.id = ?3"""
QUEUED = f"""{NUMBERS}
INSERT INTO runs (tenant, id, session_id, asked, parent_run, root_run, background, began_at,
    {REQUEST_COLUMN}, owner)
SELECT r.tenant, 'f' || n.i, 'f' || n.i, r.asked, '', 'f' || n.i, 0, 1.0,
    r.{REQUEST_COLUMN}, r.owner
FROM n JOIN runs r ON r.tenant = 'local' AND r.id = ?3"""
COMMANDS = f"""{NUMBERS}
INSERT INTO commands (request_id, agent_id, run_id, payload, expires_at, state, tenant)
SELECT 'f' || n.i, c.agent_id, c.run_id, c.payload, c.expires_at, 'queued', c.tenant
FROM n JOIN commands c ON c.request_id = ?3"""


async def curves(quick: bool) -> AsyncGenerator[Curve]:
    """All curves, on both databases."""
    async with open_databases(postgres=not quick) as found:
        for location in found:
            points = Points()
            async with open_run_service(location) as service:
                await _waiting(points, service, location, SIZES[quick])
                await _commands(points, service.store.database, location, SIZES[quick])
                await _notes(points, service.store.database, location, NOTES[quick])
            if location.is_file:
                async with open_run_service(location, serve=True) as service:
                    for size in WATCHERS[quick]:
                        await _watched(points, service, size)
            for curve in points.curves():
                yield curve


async def _waiting(
    points: Points, service: RunService, location: Place, sizes: tuple[int, ...]
) -> None:
    """Sessions of one user, each with a queued run."""
    database, store = service.store.database, service.store
    first, _ = await service.runs.start(ANN, RunRequest("go on"))
    filled = 0
    for size in sizes:

        def fill(connection: Connection, since: int = filled, until: int = size) -> None:
            connection.execute(SESSIONS, (since + 1, until, first.session_id))
            connection.execute(QUEUED, (since + 1, until, first.run_id))

        await database.write(fill)
        await settle(location)
        filled = size
        ops: dict[str, tuple[Op, float]] = {
            # Starting a run counts the queued runs, whose number is limited.
            "start a run with others queued": (_start(service), LINEAR),
            "list sessions of a user with many": (lambda: store.sessions("ann", limit=5), FLAT),
            "list sessions of a user with many, by agent": (
                lambda: store.sessions("ann", agent="rare", limit=3),
                FLAT,
            ),
        }
        if database.dialect == "sqlite":
            ops["claim a queued run"] = (_claim(service), FLAT)
        for name, (op, allowed) in (*ops.items(), *ops.items()):
            await measure_operation(points, database, name, allowed, size, op)
    await database.write(lambda c: c.execute("DELETE FROM runs"))


def _start(service: RunService) -> Op:
    async def op() -> None:
        view, _ = await service.runs.start(ANN, RunRequest("hello"))
        delete = "DELETE FROM runs WHERE tenant = 'local' AND id = ?"
        await service.store.database.write(lambda c: c.execute(delete, (view.run_id,)))

    return op


def _claim(service: RunService) -> Op:
    queue = Claims(service.store, "growth")
    release = "UPDATE runs SET epoch = 0, holder = '' WHERE tenant = 'local' AND id = ?"

    async def op() -> None:
        (claim,) = await queue.claim_next({}, 1, 1)
        await service.store.database.write(lambda c: c.execute(release, (claim.run_id,)))

    return op


async def _commands(
    points: Points, database: Database, location: Place, sizes: tuple[int, ...]
) -> None:
    """Queued commands of one edge."""
    store, filled = CommandStore(database), 0
    await store.put("first", EDGE, "run", b"payload" * 30, time.time() + 86_400)
    for size in sizes:
        values = (filled + 1, size, "first")
        await database.write(lambda c, values=values: c.execute(COMMANDS, values))
        await settle(location)
        filled = size
        now = time.time()
        ops: dict[str, Op] = {
            "store and complete a command": _command(store),
            "read the next commands of an edge": lambda now=now: store.wanted(EDGE, now, 8),
            "find expired commands": lambda now=now: store.expire(now),
        }
        for name, op in (*ops.items(), *ops.items()):
            await measure_operation(points, database, name, FLAT, size, op)


def _command(store: CommandStore) -> Op:
    async def op() -> None:
        name = token_hex(8)
        await store.put(name, EDGE, "run", b"payload" * 30, None, cap=1_000_000)
        await store.mark(name, "sent")
        await store.settle(name, EDGE, b"outcome")

    return op


async def _notes(
    points: Points, database: Database, location: Place, sizes: tuple[int, ...]
) -> None:
    """The memory of one user."""
    store, numbers = MemoryStore(database), count()

    def some(many: int) -> list[Observation]:
        return [
            Observation(
                f"n{number}", f"s{number % 50}", "lead", EventType.TOOL_CALL,
                f"the lamp lamp{number} in room {number % 97} was turned on",
                timestamp=float(number),
            )
            for number in (next(numbers) for _ in range(many))
        ]  # fmt: skip

    filled = 0
    for size in sizes:
        while filled < size:
            await store.add(some(min(500, size - filled)))
            filled += min(500, size - filled)
        await settle(location)
        clock = await clock_of(database)
        ops: dict[str, tuple[Op, float]] = {
            "add a memory": (lambda: store.add(some(1)), FLAT),
            # The search counts back to the newest 10,000 entries.
            "search memory by a rare word": (lambda: store.find("what about lamp42"), LINEAR),
            "search memory by a common word": (lambda: store.find("the lamp"), LINEAR),
        }
        for name, (op, allowed) in ops.items():
            took = await lowest_cpu_us(op, times=3, clock=clock)
            points.add(f"{name} ({database.dialect})", "µs", allowed, size, took)


async def _watched(points: Points, service: RunService, watchers: int) -> None:
    """A run with one reply of a hundred pieces and many watchers."""

    async def watch(run_id: str) -> int:
        return len([record async for record in service.runs.records("local", run_id)])

    async def op() -> None:
        service.model = Model(0, pieces=100)
        view, _ = await service.runs.start(ANN, RunRequest("go on"))
        seen = await asyncio.gather(*(watch(view.run_id) for _ in range(watchers)))
        assert min(seen) == max(seen) > 100

    took = await lowest_cpu_us(op, times=1, rounds=3)
    points.add("one run with many watchers", "µs", LINEAR, watchers, took)
