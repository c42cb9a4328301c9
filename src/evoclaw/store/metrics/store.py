"""The figures of runs and calls, from their stored records; see `figure_tables`.

A run that stopped is folded once, when somebody asks for figures of its time; nothing is done
while it runs. What is known of a run that goes on is kept in memory, and asked for the rest.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from evoclaw.core.events import StopReason
from evoclaw.store.databases.database import Connection, Database
from evoclaw.store.metrics.fold import Fold
from evoclaw.store.metrics.tables import CALLS, HOPS, RUNS, TABLES, CallFigures, Hop, RunFigures
from evoclaw.store.sessions.sessions import SessionStore

AT_ONCE = 2_000
"""Rows and records that are read at once: others go on in between."""
KEPT_AT_ONCE = 200
"""Runs and calls after which what was folded is kept: likewise."""
REMEMBERED = 1_000
"""Runs that go on, of which is remembered what was folded so far."""
RUNNING = "running"
_FACTS = (
    "r.id, r.stop, r.turns, r.began_at, r.ended_at, r.parent_run, "
    "coalesce(s.owner, ''), coalesce(s.agent, ''), coalesce(a.agent, '')"
)
_JOINED = """FROM runs r
LEFT JOIN sessions s ON s.tenant = r.tenant AND s.id = r.session_id
LEFT JOIN runs p ON p.tenant = r.tenant AND p.id = r.parent_run AND r.parent_run <> ''
LEFT JOIN sessions a ON a.tenant = p.tenant AND a.id = p.session_id
"""
_STOPPED = f"""
SELECT r.ended_at, r.id, f.ended_at FROM runs r
LEFT JOIN {RUNS} f ON f.tenant = r.tenant AND f.run_id = r.id
WHERE r.tenant = ? AND r.ended_at >= ? AND r.began_at < ? AND (r.ended_at, r.id) > (?, ?)
ORDER BY r.ended_at, r.id LIMIT {{limit}}
"""
_ONE = f"SELECT {_FACTS} {_JOINED} WHERE r.tenant = ? AND r.id = ?"
_OPEN = f"""
SELECT {_FACTS} {_JOINED} WHERE r.tenant = ? AND r.stop IS NULL AND r.began_at < ?
AND EXISTS (SELECT 1 FROM records e WHERE e.tenant = r.tenant AND e.run_id = r.id)
"""
_MARK = "SELECT ended_at FROM runs WHERE tenant = ? AND id = ?"
_RUN_COLUMNS = (
    "at, run_id, owner, agent, parent_run, parent_agent, stop, turns, seconds, tokens_in, "
    "tokens_out, cost, unpriced, saved"
)
_CALL_COLUMNS = "at, run_id, number, tool, ms, error, denied, recovered, bytes, said"
_HOP_COLUMNS = "at, run_id, number, edge, agent, error"
_KEYS = {RUNS: 2, CALLS: 3, HOPS: 4}
"""How many columns of each table, from its first, are its key."""
_PUT_RUN = f"INSERT INTO {RUNS} (tenant, ended_at, {_RUN_COLUMNS}) VALUES ({', '.join('?' * 16)})"
_PUT_CALL = (
    f"INSERT INTO {CALLS} (tenant, owner, agent, {_CALL_COLUMNS}) VALUES ({', '.join('?' * 13)})"
)
_PUT_HOP = f"INSERT INTO {HOPS} (tenant, owner, {_HOP_COLUMNS}) VALUES ({', '.join('?' * 8)})"


class Window(Struct, frozen=True):
    """Which figures are asked for."""

    tenant: str
    since: float
    until: float
    owner: str | None = None
    """Only of this one's sessions; None is everybody's of the tenant."""
    agent: str = ""
    """Only of this one's runs; empty is all."""

    def has(self, at: float) -> bool:
        """Whether a moment is in it."""
        return self.since <= at < self.until

    def admits(self, run: RunFigures) -> bool:
        """Whether it is about whoever did a run."""
        return self.owner in (None, run.owner) and self.agent in ("", run.agent)


class Found(Struct, frozen=True):
    """What there is within a window."""

    runs: list[RunFigures]
    calls: list[CallFigures]


class _Facts(Struct, frozen=True):
    """What the store says of a run, beside its records."""

    id: str
    stop: str | None
    turns: int
    began_at: float
    ended_at: float | None
    parent_run: str
    owner: str
    agent: str
    parent_agent: str


class _Folded(Struct, frozen=True):
    """One run, and all of its calls."""

    facts: _Facts
    run: RunFigures
    calls: list[CallFigures]
    hops: list[Hop]


class FigureStore:
    """The figures of all tenants."""

    def __init__(self, database: Database) -> None:
        """Needs the tables of the session store beside its own."""
        self._database = database
        self._sessions = SessionStore(database)
        self._begun: OrderedDict[tuple[str, str], Fold] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()

    async def find(self, window: Window) -> Found:
        """The runs and calls of a window, also those of runs that go on."""
        live = await self._brought_up_to_date(window)
        runs, calls = list[RunFigures](), list[CallFigures]()
        async for page in self._pages(RUNS, _RUN_COLUMNS, window):
            runs += [RunFigures(*row) for row in page]
        async for page in self._pages(CALLS, _CALL_COLUMNS, window):
            calls += [CallFigures(*row) for row in page]
        for one in live:
            calls += [call for call in one.calls if window.has(call.at)]
            if window.has(one.run.at):
                runs.append(one.run)
        return Found(runs, calls)

    async def hops(self, window: Window) -> tuple[list[RunFigures], list[Hop]]:
        """The runs that runs began, and the calls that edges were asked to do."""
        live = await self._brought_up_to_date(window)
        runs, hops = list[RunFigures](), list[Hop]()
        async for page in self._pages(RUNS, _RUN_COLUMNS, window, "AND parent_run <> ''"):
            runs += [RunFigures(*row) for row in page]
        async for page in self._pages(HOPS, _HOP_COLUMNS, window):
            hops += [Hop(*row) for row in page]
        for one in live:
            hops += [hop for hop in one.hops if window.has(hop.at)]
            if one.run.parent_run and window.has(one.run.at):
                runs.append(one.run)
        return runs, hops

    async def _brought_up_to_date(self, window: Window) -> list[_Folded]:
        """Keep what stopped; what is known of runs that go on, of whoever is asked about."""
        async with self._one_at_a_time:
            await self._keep_stopped(window)
            going = await self._facts(_OPEN, window.tenant, window.until)
            live = [await self._fold(window, one) for one in going]
            await self._forget(window.tenant, [one.facts.id for one in live])
        return [one for one in live if window.admits(one.run)]

    async def _keep_stopped(self, window: Window) -> None:
        """Fold what stopped and is not kept, or stopped again since."""
        statement, last = _STOPPED.format(limit=AT_ONCE), (window.since, "")
        page: list[Any] = [last]
        while page:
            page = await self._read(statement, (window.tenant, last[0], window.until, *last))
            await self._keep(window, [run for ended, run, kept in page if kept != ended])
            last = page[-1][:2] if page else last
            await asyncio.sleep(0)

    async def _facts(self, statement: str, *values: Any) -> list[_Facts]:
        return [_Facts(*row) for row in await self._read(statement, values)]

    async def _fold(self, window: Window, facts: _Facts) -> _Folded:
        key = window.tenant, facts.id
        fold = self._begun.pop(key, None) or Fold()
        store = self._sessions.of(window.tenant)
        while page := await store.records(facts.id, fold.seq, AT_ONCE):
            for record in page:
                fold.take(record)
            await asyncio.sleep(0)
        if facts.ended_at is None:
            self._begun[key] = fold
            if len(self._begun) > REMEMBERED:
                self._begun.popitem(last=False)
        return _folded(facts, fold)

    async def _keep(self, window: Window, run_ids: Sequence[str]) -> None:
        found, size = list[_Folded](), 0
        for run_id in run_ids:
            for facts in await self._facts(_ONE, window.tenant, run_id):
                found.append(await self._fold(window, facts))
                size += 1 + len(found[-1].calls)
            if size >= KEPT_AT_ONCE:
                await self._put(window.tenant, found)
                found, size = list[_Folded](), 0
        if found:
            await self._put(window.tenant, found)

    async def _put(self, tenant: str, found: Sequence[_Folded]) -> None:
        def work(connection: Connection) -> None:
            for one in found:
                mark = connection.execute(_MARK, (tenant, one.facts.id)).fetchone()
                # It may have been deleted meanwhile, or gone on with.
                if mark is not None and mark[0] is not None and mark[0] == one.facts.ended_at:
                    _put(connection, tenant, one)

        # All of it can be made anew: nobody waits for the disk.
        await self._database.write(work, wait=False)

    async def _forget(self, tenant: str, run_ids: Sequence[str]) -> None:
        """Let go of what was kept of runs that waited, and go on."""
        rows = [(tenant, run_id) for run_id in run_ids]
        find = f"SELECT 1 FROM {RUNS} WHERE tenant = ? AND run_id = ?"

        def known(connection: Connection) -> list[tuple[str, str]]:
            return [row for row in rows if connection.execute(find, row).fetchone()]

        if gone := await self._database.read(known):
            await self._database.write(lambda c: _delete(c, gone), wait=False)

    async def _pages(
        self, table: str, columns: str, window: Window, more: str = ""
    ) -> AsyncGenerator[list[Any], None]:
        """What is kept, in order, a page at a time; the first columns are the key."""
        key = columns.split(", ")[: _KEYS[table]]
        names, marks = ", ".join(key), ", ".join("?" * len(key))
        given = [("owner", window.owner)] if window.owner is not None else []
        given += [("agent", window.agent)] if window.agent else []
        conditions = "".join(f" AND {name} = ?" for name, _ in given)
        head = (
            f"SELECT {columns} FROM {table} "
            f"WHERE tenant = ? AND at >= ? AND at < ?{conditions} {more}"
        )
        tail = f"ORDER BY {names} LIMIT {AT_ONCE}"
        values = (window.tenant, window.since, window.until, *(value for _, value in given))
        statement = f"{head} {tail}"
        while True:
            page = await self._read(statement, values)
            yield page
            if len(page) < AT_ONCE:
                return
            last = page[-1][: len(key)]
            statement = f"{head} AND ({names}) > ({marks}) {tail}"
            values = (window.tenant, last[0], *values[2 : 3 + len(given)], *last)
            await asyncio.sleep(0)

    async def _read(self, statement: str, values: Sequence[Any]) -> list[Any]:
        return await self._database.read(lambda c: c.execute(statement, values).fetchall())


def _folded(facts: _Facts, fold: Fold) -> _Folded:
    ended = facts.ended_at
    stop = None if facts.stop is None else StopReason(facts.stop)
    at = fold.last if ended is None else ended
    run = RunFigures(
        at,
        facts.id,
        facts.owner,
        facts.agent,
        facts.parent_run,
        facts.parent_agent,
        facts.stop or RUNNING,
        facts.turns,
        max(0.0, at - facts.began_at - fold.waited),
        fold.tokens_in,
        fold.tokens_out,
        fold.cost,
        fold.unpriced,
        fold.saved,
    )
    calls = [
        CallFigures(
            one.at, facts.id, number, one.tool, one.ms, one.error, one.denied,
            fold.recovered(one, stop), one.bytes, one.said,
        )
        for number, one in enumerate(fold.calls)
    ]  # fmt: skip
    hops = [
        Hop(call.at, facts.id, number, edge, facts.agent, error)
        for number, call in enumerate(fold.calls)
        for edge, error in call.edges
    ]
    return _Folded(facts, run, calls, hops)


def _put(connection: Connection, tenant: str, one: _Folded) -> None:
    run = one.run
    _delete(connection, [(tenant, run.run_id)])
    # Another orchestrator may fold the same run at the same time.
    once = "ON CONFLICT DO NOTHING"
    connection.execute(f"{_PUT_RUN} {once}", (tenant, one.facts.ended_at, *astuple(run)))
    connection.executemany(
        f"{_PUT_CALL} {once}",
        [(tenant, run.owner, run.agent, *_plain(astuple(call))) for call in one.calls],
    )
    connection.executemany(
        f"{_PUT_HOP} {once}", [(tenant, run.owner, *astuple(hop)) for hop in one.hops]
    )


def _plain(values: Sequence[Any]) -> list[Any]:
    return [int(value) if isinstance(value, bool) else value for value in values]


def _delete(connection: Connection, runs: Sequence[tuple[str, str]]) -> None:
    for table in TABLES:
        connection.executemany(f"DELETE FROM {table} WHERE tenant = ? AND run_id = ?", runs)
