"""Operations on a store beside a history of 1,000 to a million records."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import count
from secrets import token_hex

from bench.growth.curves import FLAT, LINEAR, Curve
from bench.growth.databases import Filling, House, house, places
from bench.growth.measure import Op, Points, measured

from evoclaw.core.deadline import Deadline
from evoclaw.core.labels import Principal
from evoclaw.orchestrator.runs.requests import RunRequest
from evoclaw.store.metrics.store import MetricsStore, MetricsWindow, backlog_of
from evoclaw.store.runs.inbox import Inbox
from evoclaw.store.runs.queue import RunQueue
from evoclaw.store.sessions.deletion import delete_expired_sessions
from evoclaw.store.sessions.sessions import StoredRun

ANN = Principal(user="ann")
SIZES = {True: (1_000, 10_000, 100_000), False: (1_000, 10_000, 100_000, 1_000_000)}
PASSES = 2
"""A slow second of the machine then falls on one of them alone."""
PAGE = 3
"""As many as there are at the smallest size, too."""
END = (
    "UPDATE runs SET stop = 'completed', began_at = 1.0, ended_at = 1.0 "
    "WHERE tenant = 'local' AND id = ?"
)


async def curves(quick: bool) -> AsyncGenerator[Curve]:
    """Every operation, on both databases."""
    async with places(postgres=not quick) as found:
        for place in found:
            points = Points()
            async with house(place) as made:
                filling = Filling(made, place)
                await filling.first()
                for size in SIZES[quick]:
                    await filling.grow(size)
                    await _at(points, made, size, filling.runs)
            for one in points.curves():
                yield one


async def _at(points: Points, house: House, size: int, filled: int) -> None:
    database = house.store.database
    ops = {**_reading(house, filled), **_looking(house)}
    for _ in range(PASSES):
        for name, (op, allowed) in ops.items():
            await measured(points, database, name, allowed, size, op)
    run = await _begun(house)
    if database.dialect == "sqlite":
        # The engine of a PostgreSQL chooses by itself.
        await measured(points, database, "claim queued runs", FLAT, size, _begin(house, run))
    await measured(points, database, "append a turn", FLAT, size, _append(house, run))
    await database.write(lambda c: c.execute(END, (run.id,)))
    await measured(points, database, "start and end a run", FLAT, size, _start(house, ""))
    await measured(
        points, database, "start and end a run in a session", FLAT, size, _start(house, "f1")
    )


def _reading(house: House, filled: int) -> dict[str, tuple[Op, float]]:
    store, figures = house.store, MetricsStore(house.store.database)
    lately, then = (
        MetricsWindow("local", 1_000.0 + filled, 1e9),
        MetricsWindow("local", 1_000.0, 1_005.0),
    )
    always = MetricsWindow("local", 1_000.0, 1e9)
    return {
        "read a page of records": (lambda: store.records("f1", 50, 20), FLAT),
        "resume a run": (lambda: _resume(house), FLAT),
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
        "find expired sessions": (lambda: delete_expired_sessions(store.database, 1.0), LINEAR),
    }


def _looking(house: House) -> dict[str, tuple[Op, float]]:
    """What is asked every second, or by every reader of the figures for machines."""
    database = house.store.database
    queue, inbox = RunQueue(house.store, "growth"), Inbox(house.store)
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


async def _begun(house: House) -> StoredRun:
    session = await house.talks.open("lead", owner="ann")
    return await house.store.create_run(token_hex(8), session.id, "go on")


def _begin(house: House, run: StoredRun) -> Op:
    queue = RunQueue(house.store, "growth")
    back = "UPDATE runs SET epoch = 0, holder = '' WHERE tenant = 'local' AND id = ?"

    async def op() -> None:
        assert [one.run_id for one in await queue.claim_next({}, 10, 10)] == [run.id]
        await house.store.database.write(lambda c: c.execute(back, (run.id,)))

    return op


def _append(house: House, run: StoredRun) -> Op:
    numbers = count(0)

    async def op() -> None:
        number = next(numbers)
        page = await house.store.records("f1", 0, 8)
        moved = [
            type(one)(run.id, 8 * number + place + 1, one.at, one.event)
            for place, one in enumerate(page)
        ]
        await house.store.append(run, moved, (), run.usage, None)

    return op


async def _resume(house: House) -> None:
    stored, session = await house.store.run("f1"), await house.store.session("f1")
    assert stored is not None and session is not None
    await house.talks.prepare(session, stored, Deadline(60.0), None, None)


def _start(house: House, session_id: str) -> Op:
    async def op() -> None:
        view, _ = await house.runs.start(ANN, RunRequest("hello", session_id))
        # It is not what waits, but what was, that grows here.
        await house.store.database.write(lambda c: c.execute(END, (view.run_id,)))

    return op
