"""Runs in our own lease table, as it is: `RunQueue` and `Inbox` on `PostgresDatabase`.

Variant `far`: drivers on other machines, whose death is only seen by their lease. Variant `skewed`:
so, too, and the clock of one of them is ten seconds ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import Any

import psycopg
from bench.engines.command import follow
from bench.engines.steps import NOTE, STEPS, WATCH, Plan, note, run_ids

from evoclaw.orchestrator.runs.holders import is_gone, this_process
from evoclaw.store.databases.database import StoreError
from evoclaw.store.databases.parts import open_database
from evoclaw.store.runs import queue
from evoclaw.store.runs.inbox import Inbox
from evoclaw.store.runs.queue import Bounds, Claim, Entry, RunQueue
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.sessions import Fenced, Session, SessionStore

TENANT = "local"
LOOK = 1.0


async def opened(plan: Plan) -> SessionStore:
    """The store, as an orchestrator opens it."""
    schemas = (session_tables.SCHEMA, queue.SCHEMA)
    return SessionStore(await open_database(plan.url, schemas))


async def put(plan: Plan) -> None:
    """Ask for every run."""
    async with await opened(plan) as store:
        runs, most = RunQueue(store, "put"), Bounds(10_000, 10_000, 10_000)
        for run, number, _ in run_ids():
            session = Session(f"s{number}", "agent")
            entry = Entry(run, session, run.endswith("r00"), "", b"{}")
            await runs.put(TENANT, entry, most, claim=False)
    with psycopg.connect(plan.url, autocommit=True) as connection:
        connection.execute(WATCH.format("evoclaw.runs"))


async def cancel(plan: Plan, run: str) -> None:
    """Have a run end."""
    async with await opened(plan) as store:
        note(plan.url, "asked", run)
        await Inbox(store).cancel(TENANT, run)


class Driver:
    """The part of `Driving` and `Tending` that is about who drives what."""

    def __init__(self, plan: Plan, store: SessionStore) -> None:
        name = plan.name if plan.variant else this_process()
        ahead = 10.0 if (plan.variant, plan.name) == ("skewed", "b") else 0.0
        self._plan, self._store, self._inbox = plan, store, Inbox(store)
        self._queue = RunQueue(store, name, lease_s=plan.stall, clock=lambda: time.time() + ahead)
        self._live: dict[str, asyncio.Task[None]] = {}
        self._poked = asyncio.Event()

    async def serve(self) -> None:
        """Drive runs until the process ends."""
        await asyncio.gather(
            self._often(self._look, LOOK), self._often(self._renew, self._plan.stall / 3),
            self._begin(),
        )  # fmt: skip

    async def _often(self, work: Any, pause: float) -> None:
        while True:
            with contextlib.suppress(StoreError):
                await work()
            await asyncio.sleep(pause)

    async def _begin(self) -> None:
        while True:
            await self._poked.wait()
            self._poked.clear()
            live = len(self._live)
            if live < self._plan.at_once:
                with contextlib.suppress(StoreError):
                    room = self._plan.at_once - live
                    for claim in await self._queue.next({TENANT: live}, room, self._plan.at_once):
                        self._take(claim, self._drive(claim))

    def _take(self, claim: Claim, work: Any) -> None:
        if claim.run_id in self._live:
            return work.close()
        task = self._live[claim.run_id] = asyncio.create_task(work)
        task.add_done_callback(lambda _: (self._live.pop(claim.run_id), self._poked.set()))
        return None

    async def _look(self) -> None:
        gone = [one for one in await self._queue.holders() if is_gone(one)]
        if gone:
            await self._queue.outlived(gone)
        for tenant, run in await self._inbox.cancels():
            if run in self._live:
                self._live[run].cancel()
            elif claim := await self._queue.claim(tenant, run):
                self._take(claim, self._end(claim))
        self._poked.set()

    async def _renew(self) -> None:
        held = {one.run_id for one in await self._queue.renew()}
        for run in [run for run in self._live if run not in held]:
            task = self._live.get(run)
            if task is not None and await self._lost(run):
                task.cancel("lost")

    async def _lost(self, run: str) -> bool:
        find = "SELECT holder FROM runs WHERE tenant = ? AND id = ?"
        values = (TENANT, run)
        row = await self._store.database.read(lambda c: c.execute(find, values).fetchone())
        return row is not None and row[0] not in ("", self._queue.holder)

    async def _drive(self, claim: Claim) -> None:
        try:
            for step in range(await self._done(claim.run_id), STEPS):
                await self._store.database.write(partial(self._append, claim, step))
                await asyncio.sleep(self._plan.pause)
            await self._queue.done(claim)
        except Fenced:
            values = ("fenced", claim.run_id, self._plan.name)
            put = NOTE.replace("%s", "?")
            await self._store.database.write(lambda c: c.execute(put, values))
        except StoreError:
            await asyncio.sleep(1)
            await self._queue.release([claim])
        except asyncio.CancelledError as why:
            if why.args != ("lost",):
                await self._end(claim)

    async def _done(self, run: str) -> int:
        count = "SELECT count(DISTINCT step) FROM bench.steps WHERE run = ?"
        row = await self._store.database.read(lambda c: c.execute(count, (run,)).fetchone())
        return row[0]

    def _append(self, claim: Claim, step: int, connection: Any) -> None:
        self._store._fence(connection, claim.run_id, claim.epoch)
        values = (claim.run_id, step, claim.epoch, self._plan.name)
        put = "INSERT INTO bench.steps (run, step, epoch, driver) VALUES (?, ?, ?, ?)"
        connection.execute(put, values)
        if step == STEPS - 1:
            self._close(claim, "completed", connection)

    def _close(self, claim: Claim, stop: str, connection: Any) -> None:
        stopped = "UPDATE runs SET stop = ? WHERE tenant = ? AND id = ?"
        connection.execute(stopped, (stop, TENANT, claim.run_id))
        connection.execute("UPDATE bench.runs SET ended = true WHERE id = ?", (claim.run_id,))

    async def _end(self, claim: Claim) -> None:
        def work(connection: Any) -> None:
            self._store._fence(connection, claim.run_id, claim.epoch)
            self._close(claim, "cancelled", connection)
            values = ("aborted", claim.run_id, self._plan.name)
            connection.execute(NOTE.replace("%s", "?"), values)

        await self._store.database.write(work)
        await self._queue.done(claim)


async def drive(plan: Plan) -> None:
    """Drive runs until the process ends."""
    async with await opened(plan) as store:
        await Driver(plan, store).serve()


if __name__ == "__main__":
    follow(put, drive, cancel)
