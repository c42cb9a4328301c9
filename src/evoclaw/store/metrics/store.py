"""The metrics of runs and calls, from their stored records, and what waits in the store.

A run that stopped is folded once, on the first query for its time; nothing is written while it
runs. The fold of a run in progress is kept in memory, and continues with the next query.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from evoclaw.core.events import StopReason
from evoclaw.store.databases.database import Connection, Database, open_blob, rows_of_ids
from evoclaw.store.metrics.fold import RunFold
from evoclaw.store.metrics.tables import CALLS, HOPS, RUNS, TABLES, CallRow, EdgeCallRow, RunRow
from evoclaw.store.sessions.sessions import SessionStore

PAGE_ROWS = 2_000
"""Rows and records that are read in one transaction, so that others can read in between."""
WRITE_BATCH_ROWS = 200
"""Runs and calls that are written in one transaction, for the same reason."""
MAX_OPEN_FOLDS = 1_000
"""Runs in progress whose folds are kept in memory."""
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
_STOPPED_RUNS = f"""
SELECT r.ended_at, r.id, f.ended_at FROM runs r
LEFT JOIN {RUNS} f ON f.tenant = r.tenant AND f.run_id = r.id
WHERE r.tenant = ? AND r.ended_at >= ? AND r.began_at < ? AND (r.ended_at, r.id) > (?, ?)
ORDER BY r.ended_at, r.id LIMIT {{limit}}
"""
_ONE_RUN = f"SELECT {_FACTS} {_JOINED} WHERE r.tenant = ? AND r.id = ?"
_OPEN_RUNS = f"""
SELECT {_FACTS} {_JOINED} WHERE r.tenant = ? AND r.stop IS NULL AND r.began_at < ?
AND EXISTS (SELECT 1 FROM records e WHERE e.tenant = r.tenant AND e.run_id = r.id)
"""
# Locked on PostgreSQL: who deletes or resumes the run meanwhile waits, and finds its metrics.
_ENDED_AT = {
    "sqlite": "SELECT ended_at FROM runs WHERE tenant = ? AND id = ?",
    "postgres": "SELECT ended_at FROM runs WHERE tenant = ? AND id = ? FOR SHARE",
}
_RUN_COLUMNS = (
    "at, run_id, owner, agent, parent_run, parent_agent, stop, turns, seconds, tokens_in, "
    "tokens_out, cost, unpriced, saved, genome"
)
_CALL_COLUMNS = "at, run_id, number, tool, ms, error, denied, recovered, bytes, said"
_HOP_COLUMNS = "at, run_id, number, edge, agent, error"
_KEYS = {RUNS: 2, CALLS: 3, HOPS: 4}
"""How many columns of each table, from its first, are its key."""
_PUT_RUN = f"INSERT INTO {RUNS} (tenant, ended_at, {_RUN_COLUMNS}) VALUES ({', '.join('?' * 17)})"
_PUT_CALL = (
    f"INSERT INTO {CALLS} (tenant, owner, agent, {_CALL_COLUMNS}) VALUES ({', '.join('?' * 13)})"
)
_PUT_HOP = f"INSERT INTO {HOPS} (tenant, owner, {_HOP_COLUMNS}) VALUES ({', '.join('?' * 8)})"
_RUNS_WITH = f"""
SELECT {_RUN_COLUMNS} FROM {RUNS}
WHERE tenant = ? AND agent = ? AND genome = ? AND at >= ? AND at < ? ORDER BY at{{order}} LIMIT ?
"""
_DENIED_OF = f"""
SELECT run_id, count(*) FROM {CALLS} WHERE tenant = ? AND denied <> 0 AND run_id IN ({{ids}})
GROUP BY run_id
"""
_QUEUED = "SELECT count(*) FROM runs WHERE stop IS NULL AND epoch = 0"
_WAITING = "FROM approvals WHERE decision IS NULL AND closed_at IS NULL AND expires_at > ?"


class MetricsWindow(Struct, frozen=True):
    """Which runs and calls a query is about."""

    tenant: str
    since: float
    until: float
    owner: str | None = None
    """Only sessions of this user; None is all of the tenant."""
    agent: str = ""
    """Only runs of this agent; empty is all."""

    def has(self, at: float) -> bool:
        """Whether a moment is in it."""
        return self.since <= at < self.until

    def admits(self, run: RunRow) -> bool:
        """Whether a run is of the owner and the agent in question."""
        return self.owner in (None, run.owner) and self.agent in ("", run.agent)


class WindowRows(Struct, frozen=True):
    """The runs and calls of a window."""

    runs: list[RunRow]
    calls: list[CallRow]


class _RunFacts(Struct, frozen=True):
    """The columns of a run in the session store, besides its records."""

    id: str
    stop: str | None
    turns: int
    began_at: float
    ended_at: float | None
    parent_run: str
    owner: str
    agent: str
    parent_agent: str


class _FoldedRun(Struct, frozen=True):
    """One run, and all of its calls."""

    facts: _RunFacts
    run: RunRow
    calls: list[CallRow]
    hops: list[EdgeCallRow]


class MetricsStore:
    """The metrics of all tenants."""

    def __init__(self, database: Database) -> None:
        """Needs the tables of the session store besides its own."""
        self._database = database
        self._sessions = SessionStore(database)
        self._open_folds: OrderedDict[tuple[str, str], RunFold] = OrderedDict()
        self._lock = asyncio.Lock()

    async def find(self, window: MetricsWindow) -> WindowRows:
        """The runs and calls of a window, also those of runs in progress."""
        live = await self._refresh(window)
        runs, calls = list[RunRow](), list[CallRow]()
        async for page in self._pages(RUNS, _RUN_COLUMNS, window):
            runs += [RunRow(*row) for row in page]
        async for page in self._pages(CALLS, _CALL_COLUMNS, window):
            calls += [CallRow(*row) for row in page]
        for folded in live:
            calls += [call for call in folded.calls if window.has(call.at)]
            if window.has(folded.run.at):
                runs.append(folded.run)
        return WindowRows(runs, calls)

    async def runs_with(
        self, window: MetricsWindow, genome: str, limit: int, *, newest: bool = False
    ) -> list[tuple[RunRow, int]]:
        """The ended runs of an agent with one genome, and how many calls of each were denied.

        Args:
            window: Which agent and time; owners are not told apart.
            genome: Its digest; empty is the configuration.
            limit: How many at most.
            newest: Whether to take the newest of them, not the oldest.
        """
        async with self._lock:
            await self._store_stopped(window)
        statement = _RUNS_WITH.format(order=" DESC" if newest else "")
        values = (window.tenant, window.agent, genome, window.since, window.until, limit)
        runs = [RunRow(*row) for row in await self._read(statement, values)]
        ids = [run.run_id for run in runs]
        denied = dict(await rows_of_ids(self._database, _DENIED_OF, (window.tenant,), ids))
        return [(run, denied.get(run.run_id, 0)) for run in runs]

    async def edge_calls(self, window: MetricsWindow) -> tuple[list[RunRow], list[EdgeCallRow]]:
        """The runs that other runs started, and the calls that were sent to edges."""
        live = await self._refresh(window)
        runs, hops = list[RunRow](), list[EdgeCallRow]()
        async for page in self._pages(RUNS, _RUN_COLUMNS, window, "AND parent_run <> ''"):
            runs += [RunRow(*row) for row in page]
        async for page in self._pages(HOPS, _HOP_COLUMNS, window):
            hops += [EdgeCallRow(*row) for row in page]
        for folded in live:
            hops += [hop for hop in folded.hops if window.has(hop.at)]
            if folded.run.parent_run and window.has(folded.run.at):
                runs.append(folded.run)
        return runs, hops

    async def _refresh(self, window: MetricsWindow) -> list[_FoldedRun]:
        """Store the metrics of runs that stopped; give those of runs in progress in the window."""
        async with self._lock:
            await self._store_stopped(window)
            running = await self._facts(_OPEN_RUNS, window.tenant, window.until)
            live = [await self._fold(window, facts) for facts in running]
            await self._forget(window.tenant, [folded.facts.id for folded in live])
        return [folded for folded in live if window.admits(folded.run)]

    async def _store_stopped(self, window: MetricsWindow) -> None:
        """Store the runs that stopped and are not stored, or stopped again since."""
        statement, last = _STOPPED_RUNS.format(limit=PAGE_ROWS), (window.since, "")
        page: list[Any] = [last]
        while page:
            page = await self._read(statement, (window.tenant, last[0], window.until, *last))
            await self._store(window, [run for ended, run, stored in page if stored != ended])
            last = page[-1][:2] if page else last
            await asyncio.sleep(0)

    async def _facts(self, statement: str, *values: Any) -> list[_RunFacts]:
        return [_RunFacts(*row) for row in await self._read(statement, values)]

    async def _fold(self, window: MetricsWindow, facts: _RunFacts) -> _FoldedRun:
        key = window.tenant, facts.id
        fold = self._open_folds.pop(key, None) or RunFold()
        store = self._sessions.of(window.tenant)
        while page := await store.records(facts.id, fold.seq, PAGE_ROWS):
            for record in page:
                fold.receive(record)
            await asyncio.sleep(0)
        if facts.ended_at is None:
            self._open_folds[key] = fold
            if len(self._open_folds) > MAX_OPEN_FOLDS:
                self._open_folds.popitem(last=False)
        return _folded(facts, fold)

    async def _store(self, window: MetricsWindow, run_ids: Sequence[str]) -> None:
        found, size = list[_FoldedRun](), 0
        for run_id in run_ids:
            for facts in await self._facts(_ONE_RUN, window.tenant, run_id):
                found.append(await self._fold(window, facts))
                size += 1 + len(found[-1].calls)
            if size >= WRITE_BATCH_ROWS:
                await self._put(window.tenant, found)
                found, size = list[_FoldedRun](), 0
        if found:
            await self._put(window.tenant, found)

    async def _put(self, tenant: str, found: Sequence[_FoldedRun]) -> None:
        ended_at = _ENDED_AT[self._database.dialect]

        def work(connection: Connection) -> None:
            # In the order in which deleting a session locks its runs.
            for folded in sorted(found, key=lambda folded: folded.facts.id):
                row = connection.execute(ended_at, (tenant, folded.facts.id)).fetchone()
                # The run may have been deleted or resumed meanwhile.
                if row is not None and row[0] is not None and row[0] == folded.facts.ended_at:
                    _put(connection, tenant, folded)

        # All of it can be derived again: do not wait for the disk.
        await self._database.write(work, wait=False)

    async def _forget(self, tenant: str, run_ids: Sequence[str]) -> None:
        """Delete the stored metrics of runs that waited and were resumed."""
        rows = [(tenant, run_id) for run_id in run_ids]
        find = f"SELECT 1 FROM {RUNS} WHERE tenant = ? AND run_id = ?"

        def known(connection: Connection) -> list[tuple[str, str]]:
            return [row for row in rows if connection.execute(find, row).fetchone()]

        if stored := await self._database.read(known):
            await self._database.write(lambda c: _delete(c, stored), wait=False)

    async def _pages(
        self, table: str, columns: str, window: MetricsWindow, more: str = ""
    ) -> AsyncGenerator[list[Any], None]:
        """The stored rows, in order, a page at a time; the first columns are the key."""
        key = columns.split(", ")[: _KEYS[table]]
        names, marks = ", ".join(key), ", ".join("?" * len(key))
        filters = [("owner", window.owner)] if window.owner is not None else []
        filters += [("agent", window.agent)] if window.agent else []
        conditions = "".join(f" AND {name} = ?" for name, _ in filters)
        head = (
            f"SELECT {columns} FROM {table} "
            f"WHERE tenant = ? AND at >= ? AND at < ?{conditions} {more}"
        )
        tail = f"ORDER BY {names} LIMIT {PAGE_ROWS}"
        values = (window.tenant, window.since, window.until, *(value for _, value in filters))
        statement = f"{head} {tail}"
        while True:
            page = await self._read(statement, values)
            yield page
            if len(page) < PAGE_ROWS:
                return
            last = page[-1][: len(key)]
            statement = f"{head} AND ({names}) > ({marks}) {tail}"
            values = (window.tenant, last[0], *values[2 : 3 + len(filters)], *last)
            await asyncio.sleep(0)

    async def _read(self, statement: str, values: Sequence[Any]) -> list[Any]:
        return await self._database.read(lambda c: c.execute(statement, values).fetchall())


def _folded(facts: _RunFacts, fold: RunFold) -> _FoldedRun:
    ended = facts.ended_at
    stop = None if facts.stop is None else StopReason(facts.stop)
    at = fold.last if ended is None else ended
    spending = fold.spending
    run = RunRow(
        at,
        facts.id,
        facts.owner,
        facts.agent,
        facts.parent_run,
        facts.parent_agent,
        facts.stop or RUNNING,
        facts.turns,
        max(0.0, at - facts.began_at - fold.waited),
        spending.tokens_in,
        spending.tokens_out,
        spending.cost,
        spending.unpriced,
        fold.saved,
        fold.genome,
    )
    calls = [
        CallRow(
            call.at, facts.id, number, call.tool, call.ms, call.error, call.denied,
            fold.recovered(call, stop), call.bytes, call.said,
        )
        for number, call in enumerate(fold.calls)
    ]  # fmt: skip
    hops = [
        EdgeCallRow(call.at, facts.id, number, edge, facts.agent, error)
        for number, call in enumerate(fold.calls)
        for edge, error in call.edges
    ]
    return _FoldedRun(facts, run, calls, hops)


def _put(connection: Connection, tenant: str, folded: _FoldedRun) -> None:
    run = folded.run
    _delete(connection, [(tenant, run.run_id)])
    # Another orchestrator may fold the same run at the same time.
    once = "ON CONFLICT DO NOTHING"
    connection.execute(f"{_PUT_RUN} {once}", (tenant, folded.facts.ended_at, *astuple(run)))
    connection.executemany(
        f"{_PUT_CALL} {once}",
        [(tenant, run.owner, run.agent, *_plain(astuple(call))) for call in folded.calls],
    )
    connection.executemany(
        f"{_PUT_HOP} {once}", [(tenant, run.owner, *astuple(hop)) for hop in folded.hops]
    )


def _plain(values: Sequence[Any]) -> list[Any]:
    return [int(value) if isinstance(value, bool) else value for value in values]


def _delete(connection: Connection, runs: Sequence[tuple[str, str]]) -> None:
    for table in TABLES:
        connection.executemany(f"DELETE FROM {table} WHERE tenant = ? AND run_id = ?", runs)


class StoreBacklog(Struct, frozen=True):
    """What waits in a store, of all tenants together."""

    queued_runs: int
    approvals: int
    oldest_approval: float | None
    """When it was requested, in Unix seconds."""


class _ApprovalTime(Struct):
    asked_at: float


async def backlog_of(database: Database, now: float) -> StoreBacklog:
    """What waits now."""

    def work(connection: Connection) -> StoreBacklog:
        queued = connection.execute(_QUEUED).fetchone()[0]
        waiting = connection.execute(f"SELECT count(*) {_WAITING}", (now,)).fetchone()[0]
        oldest = f"SELECT asked {_WAITING} ORDER BY seq LIMIT 1"
        row = connection.execute(oldest, (now,)).fetchone()
        if row is None:
            return StoreBacklog(queued, waiting, None)
        asked = msgspec.json.decode(open_blob(database, row[0]), type=_ApprovalTime)
        return StoreBacklog(queued, waiting, asked.asked_at)

    return await database.read(work, allow_stale=True)
