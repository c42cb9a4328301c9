"""Costs of store operations with a history of 1,000 to a million records."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import count
from secrets import token_hex

from bench.growth.curves import FLAT, LINEAR, Curve
from bench.growth.databases import RunService, StoreFiller, open_databases, open_run_service
from bench.growth.measure import Op, Points, measure_operation

from evoclaw.core.deadline import Deadline
from evoclaw.core.labels import Principal
from evoclaw.orchestrator.runs.requests import RunRequest
from evoclaw.store.metrics.store import MetricsStore, MetricsWindow, backlog_of
from evoclaw.store.runs.inbox import Inbox
from evoclaw.store.runs.queue import RunQueue
from evoclaw.store.sessions.expired_sessions import ExpiredSessions
from evoclaw.store.sessions.sessions import StoredRun

ANN = Principal(user="ann")
SIZES = {True: (1_000, 10_000, 100_000), False: (1_000, 10_000, 100_000, 1_000_000)}
PASSES = 2
"""Two passes, so that a moment of high load affects only one of them."""
PAGE = 3
"""A page size that exists at the smallest size, too."""
END = (
    "UPDATE runs SET stop = 'completed', began_at = 1.0, ended_at = 1.0 "
    "WHERE tenant = 'local' AND id = ?"
)


async def curves(quick: bool) -> AsyncGenerator[Curve]:
    """Every operation, on both databases."""
    async with open_databases(postgres=not quick) as found:
        for location in found:
            points = Points()
            async with open_run_service(location) as service:
                filler = StoreFiller(service, location)
                await filler.create_template()
                for size in SIZES[quick]:
                    await filler.grow(size)
                    await _at(points, service, size, filler.runs)
            for curve in points.curves():
                yield curve


async def _at(points: Points, service: RunService, size: int, filled: int) -> None:
    database = service.store.database
    ops = {**_reading(service, filled), **_polling(service)}
    for _ in range(PASSES):
        for name, (op, allowed) in ops.items():
            await measure_operation(points, database, name, allowed, size, op)
    run = await _start_run(service)
    if database.dialect == "sqlite":
        # PostgreSQL's planner chooses another plan by itself.
        await measure_operation(
            points, database, "claim queued runs", FLAT, size, _claim(service, run)
        )
    await measure_operation(points, database, "append a turn", FLAT, size, _append(service, run))
    await database.write(lambda c: c.execute(END, (run.id,)))
    await measure_operation(
        points, database, "start and end a run", FLAT, size, _start(service, "")
    )
    await measure_operation(
        points, database, "start and end a run in a session", FLAT, size, _start(service, "f1")
    )


def _reading(service: RunService, filled: int) -> dict[str, tuple[Op, float]]:
    store, figures = service.store, MetricsStore(service.store.database)
    lately, then = (
        MetricsWindow("local", 1_000.0 + filled, 1e9),
        MetricsWindow("local", 1_000.0, 1_005.0),
    )
    always = MetricsWindow("local", 1_000.0, 1e9)
    return {
        "read a page of records": (lambda: store.records("f1", 50, 20), FLAT),
        "resume a run": (lambda: _resume(service), FLAT),
        "list sessions": (lambda: store.sessions("ann", limit=PAGE), FLAT),
        "list old sessions": (lambda: store.sessions("old", limit=PAGE), FLAT),
        "list sessions of an agent": (
            lambda: store.sessions("old", agent="rare", limit=PAGE),
            FLAT,
        ),
        "list an old page of sessions": (
            lambda: store.sessions("ann", before="f7", limit=PAGE),
            FLAT,
        ),
        "list child sessions": (
            lambda: store.sessions("ann", within="f7", limit=PAGE),
            FLAT,
        ),
        "list an old page of runs": (lambda: store.runs(before="f7", limit=PAGE), FLAT),
        "list an old page of a user's runs": (
            lambda: store.runs(owner="ann", before="f7", limit=PAGE),
            FLAT,
        ),
        "list a user's open runs": (
            lambda: store.runs(owner="ann", state="open", limit=PAGE),
            FLAT,
        ),
        "list runs": (lambda: store.runs(limit=PAGE), FLAT),
        "list a user's runs": (lambda: store.runs(owner="ann", limit=PAGE), FLAT),
        "list old runs": (lambda: store.runs(owner="old", limit=PAGE), FLAT),
        "list runs of a session": (lambda: store.runs(session_id="f1", limit=PAGE), FLAT),
        "list open runs": (lambda: store.runs(state="open", limit=PAGE), FLAT),
        "list waiting runs": (lambda: store.runs(state="waiting", limit=PAGE), FLAT),
        "list the sub-runs of a run": (lambda: store.runs(parent_run="f1", limit=PAGE), FLAT),
        "metrics of the latest runs": (lambda: figures.find(lately), FLAT),
        "metrics of old runs": (lambda: figures.find(then), LINEAR),
        "metrics of all runs": (lambda: figures.find(always), LINEAR),
        "find expired sessions": (
            lambda: ExpiredSessions(store.database, batch_rows=PAGE).delete(1.0),
            FLAT,
        ),
    }


def _polling(service: RunService) -> dict[str, tuple[Op, float]]:
    """Queries that run every second, or for each scrape of the metrics."""
    database = service.store.database
    queue, inbox = RunQueue(service.store, "growth"), Inbox(service.store)
    return {
        "poll for queued runs": (lambda: queue.claim_next({}, 10, 10), FLAT),
        "renew leases": (queue.renew, FLAT),
        "poll for other owners": (queue.other_holders, FLAT),
        "poll for orphaned runs": (queue.orphans, FLAT),
        "poll for cancel requests": (inbox.cancelled_runs, FLAT),
        "poll for new messages": (lambda: inbox.message_counts("growth"), FLAT),
        "poll for messages to ended runs": (inbox.ended_with_messages, FLAT),
        "poll for answers": (inbox.answered_runs, FLAT),
        "read the backlog": (lambda: backlog_of(database, 1e9), FLAT),
    }


async def _start_run(service: RunService) -> StoredRun:
    session = await service.conversations.open("lead", owner="ann")
    return await service.store.create_run(token_hex(8), session.id, "go on")


def _claim(service: RunService, run: StoredRun) -> Op:
    queue = RunQueue(service.store, "growth")
    release = "UPDATE runs SET epoch = 0, holder = '' WHERE tenant = 'local' AND id = ?"

    async def op() -> None:
        assert [one.run_id for one in await queue.claim_next({}, 10, 10)] == [run.id]
        await service.store.database.write(lambda c: c.execute(release, (run.id,)))

    return op


def _append(service: RunService, run: StoredRun) -> Op:
    numbers = count(0)

    async def op() -> None:
        number = next(numbers)
        page = await service.store.records("f1", 0, 8)
        moved = [
            type(one)(run.id, 8 * number + place + 1, one.at, one.event)
            for place, one in enumerate(page)
        ]
        await service.store.append(run, moved, (), run.usage, None)

    return op


async def _resume(service: RunService) -> None:
    stored, session = await service.store.run("f1"), await service.store.session("f1")
    assert stored is not None and session is not None
    await service.conversations.prepare(session, stored, Deadline(60.0), None, None)


def _start(service: RunService, session_id: str) -> Op:
    async def op() -> None:
        view, _ = await service.runs.start(ANN, RunRequest("hello", session_id))
        # Ended runs grow here, not queued ones.
        await service.store.database.write(lambda c: c.execute(END, (view.run_id,)))

    return op
