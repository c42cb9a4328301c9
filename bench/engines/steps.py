"""What every engine drives: runs of five steps, appended under a fencing epoch, then judged.

Nothing of EvoClaw is imported here: it is used in the virtual environments of the engines, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg

SESSIONS, EACH, STEPS = 30, 10, 5
TABLES = """
DROP SCHEMA IF EXISTS bench CASCADE;
CREATE SCHEMA bench;
CREATE SEQUENCE bench.order;
CREATE TABLE bench.runs (
    id TEXT PRIMARY KEY, session INT NOT NULL, number INT NOT NULL,
    epoch INT NOT NULL DEFAULT 0, ended BOOL NOT NULL DEFAULT false);
CREATE TABLE bench.claims (
    run TEXT, epoch INT, at TIMESTAMPTZ DEFAULT clock_timestamp(),
    seq BIGINT DEFAULT nextval('bench.order'));
CREATE TABLE bench.steps (
    run TEXT, step INT, epoch INT, driver TEXT, at TIMESTAMPTZ DEFAULT clock_timestamp(),
    seq BIGINT DEFAULT nextval('bench.order'));
CREATE INDEX steps_of ON bench.steps (run);
CREATE TABLE bench.notes (
    kind TEXT, run TEXT, driver TEXT, at TIMESTAMPTZ DEFAULT clock_timestamp());
CREATE FUNCTION bench.claimed() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO bench.claims (run, epoch) VALUES (NEW.id, NEW.epoch); RETURN NULL; END $$;
"""
WATCH = """
CREATE TRIGGER claimed AFTER UPDATE ON {} FOR EACH ROW
WHEN (NEW.epoch > OLD.epoch) EXECUTE FUNCTION bench.claimed()
"""
NOTE = "INSERT INTO bench.notes (kind, run, driver) VALUES (%s, %s, %s)"


class Fenced(Exception):
    """Somebody else drives the run."""


@dataclass(frozen=True)
class Plan:
    """How a driver is to work."""

    url: str
    name: str
    pause: float
    """Seconds after each step: the model."""
    stall: float
    """Seconds after which a driver that says nothing counts as dead."""
    at_once: int = 20
    variant: str = ""


def run_ids() -> list[tuple[str, int, int]]:
    """Every run, its session and its number there; in the order they are asked for."""
    return [
        (f"s{session:02}-r{number:02}", session, number)
        for number in range(EACH)
        for session in range(SESSIONS)
    ]


def make_tables(url: str) -> None:
    """Begin anew."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES)
        connection.cursor().executemany(
            "INSERT INTO bench.runs (id, session, number) VALUES (%s, %s, %s)", run_ids()
        )
        connection.execute(WATCH.format("bench.runs"))


def note(url: str, kind: str, run: str, driver: str = "") -> None:
    """Write down that something happened, for the judge."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(NOTE, (kind, run, driver))


class Steps:
    """Appends steps, for engines that keep no epoch of their own."""

    def __init__(self, plan: Plan, pool: Any) -> None:
        self._plan, self._pool = plan, pool

    async def claim(self, run: str, epoch: int | None, owned: str = "", *values: Any) -> int:
        """Have an epoch that nobody had: this one, or the next if `owned` holds."""
        if epoch is not None:
            update = "UPDATE bench.runs SET epoch = %s WHERE id = %s AND epoch < %s RETURNING epoch"
            values = (epoch, run, epoch)
        else:
            update = f"""UPDATE bench.runs SET epoch = epoch + 1 WHERE id = %s {owned}
                RETURNING epoch"""
            values = (run, *values)
        row = await self._patiently(lambda c: _first(c, update, values))
        if row is None:
            raise Fenced(run)
        return row[0]

    async def done(self, run: str) -> int:
        """How many steps are stored."""
        count = "SELECT count(DISTINCT step) FROM bench.steps WHERE run = %s"
        return (await self._patiently(lambda c: _first(c, count, (run,))))[0]

    async def append(self, run: str, step: int, epoch: int) -> None:
        """Store a step, if it is not, under this epoch; `Fenced` if that is over."""

        async def work(connection: Any) -> bool:
            find = "SELECT epoch FROM bench.runs WHERE id = %s FOR UPDATE"
            if (await _first(connection, find, (run,)))[0] != epoch:
                await connection.rollback()
                await connection.execute(NOTE, ("fenced", run, self._plan.name))
                return False
            put = """INSERT INTO bench.steps (run, step, epoch, driver)
                SELECT %s, %s, %s, %s WHERE NOT EXISTS (
                    SELECT 1 FROM bench.steps WHERE run = %s AND step = %s)"""
            await connection.execute(put, (run, step, epoch, self._plan.name, run, step))
            if step == STEPS - 1:
                await connection.execute("UPDATE bench.runs SET ended = true WHERE id = %s", (run,))
            return True

        if not await self._patiently(work):
            raise Fenced(run)

    async def aborted(self, run: str, epoch: int) -> None:
        """It was cancelled: end it, and say when."""

        async def work(connection: Any) -> None:
            end = "UPDATE bench.runs SET ended = true WHERE id = %s AND epoch = %s"
            await connection.execute(end, (run, epoch))
            await connection.execute(NOTE, ("aborted", run, self._plan.name))

        await self._patiently(work)

    async def drive(self, run: str, epoch: int) -> None:
        """Load what is stored, go on."""
        for step in range(await self.done(run), STEPS):
            await self.append(run, step, epoch)
            await asyncio.sleep(self._plan.pause)

    async def _patiently(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """A server that is away comes back; what was committed unseen is not done twice."""
        for _ in range(100):
            try:
                async with self._pool.connection() as connection:
                    return await work(connection)
            except psycopg.OperationalError:
                await asyncio.sleep(0.2)
        raise Fenced("the database stays away")


async def _first(connection: Any, statement: str, values: tuple[Any, ...]) -> Any:
    return await (await connection.execute(statement, values)).fetchone()
