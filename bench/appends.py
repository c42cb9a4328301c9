"""The cost of storing a turn: the session store compared with a bare client of the same database.

An append stores a turn with one call: its records, two messages, and the usage of the run, in one
transaction that is waited for. EvoClaw and the bare client alternate; the bare client has the same
tables, encodes the same values and commits each append. The last line is the result as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from itertools import count
from pathlib import Path
from statistics import median

import msgspec
from msgspec.structs import replace
from tests.support.postgres import Postgres, why_no_postgres

from evoclaw.core.agent import LoopSettings
from evoclaw.core.events import Record, TurnStarted
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import Message, user
from evoclaw.core.ports import Ports
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import new_run
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.permissions import Permissions
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore, StoredRun
from evoclaw.store.sessions.statements import PUT_MESSAGE
from evoclaw.store.sessions.tables import SCHEMA
from evoclaw.tools.define import tool

MANY = 64
_ENCODER = msgspec.json.Encoder()
ROUNDS, SECONDS = 3, 1.5
SPENT = RunUsage(2, 2, 100, 100, 0.0)
RECORD = "INSERT INTO records VALUES (?, ?, ?, ?)"
PROGRESS = (
    "UPDATE runs SET turns = ?, calls = ?, tokens_in = ?, tokens_out = ?, cost = ? "
    "WHERE tenant = ? AND id = ?"
)

Append = Callable[[int], Awaitable[None]]
"""Appends a turn to the session with a number."""


@tool("file_read", effect="read", resources=("path",))
async def read(path: str) -> str:
    """Read a file."""
    return f"{path}: {'a line of text. ' * 20}"


class TurnSource:
    """Copies of one turn with increasing sequence numbers."""

    def __init__(self, records: Sequence[Record], messages: Sequence[Message]) -> None:
        self._records, self._messages = records, messages
        self._seq, self._number = count(1), count()

    @classmethod
    async def create(cls) -> TurnSource:
        """A source with a real turn: the second one of a run."""
        asked = [calls(("read", {"path": f"notes/{number}.md"})) for number in range(3)]
        provider = Scripted(*asked, says("done"))
        ports = Ports(provider, LocalExecutor([read]), Permissions(frozenset({"file_read"})))
        state = new_run([user("go")])
        events = run_loop(state, ports, LoopSettings())
        found = [record async for record in recorded(events, Bus(state.run_id, []))]
        first, last = [
            place
            for place, record in enumerate(found)
            if isinstance(record.event, TurnStarted) and record.event.turn in (2, 3)
        ]
        return cls(found[first:last], state.history[3:5])

    def next(self) -> tuple[list[Record], list[tuple[int, Message]]]:
        """The next copy of the turn."""
        records = [replace(record, seq=next(self._seq)) for record in self._records]
        return records, [(next(self._number), message) for message in self._messages]


def rows(
    turns: TurnSource, number: int
) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """A turn as a bare client inserts it: its records in a row, as EvoClaw does, and messages."""
    records, messages = turns.next()
    encode, run, session = msgspec.json.encode, f"r{number}", f"s{number}"
    return (
        [("local", run, records[-1].seq, _ENCODER.encode_lines(records))],
        [("local", session, place, encode(message)) for place, message in messages],
    )


async def create_runs(store: SessionStore) -> list[StoredRun]:
    """The runs that are appended to, each in its own session."""
    found: list[StoredRun] = []
    for number in range(MANY):
        await store.create(Session(f"s{number}", "bench"))
        found.append(await store.create_run(f"r{number}", f"s{number}", "go"))
    return found


@asynccontextmanager
async def ours(at: Path | str, schema: str, turns: TurnSource) -> AsyncGenerator[Append]:
    """The store, in a file or a PostgreSQL."""
    database = await open_database(at, (SCHEMA,), schema=schema, durable=True)
    async with SessionStore(database) as store:
        runs = await create_runs(store)

        async def append(number: int) -> None:
            records, messages = turns.next()
            await store.append(runs[number], records, messages, SPENT, None)

        yield append


@contextmanager
def bare_sqlite(path: Path, turns: TurnSource) -> Generator[Append]:
    """A bare `sqlite3` that waits for the disk, as EvoClaw does."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous=FULL")

        async def append(number: int) -> None:
            records, messages = rows(turns, number)
            database.execute("BEGIN IMMEDIATE")
            database.executemany(RECORD, records)
            database.executemany(PUT_MESSAGE, messages)
            database.execute(PROGRESS, (2, 2, 100, 100, 0.0, "local", f"r{number}"))
            database.execute("COMMIT")

        yield append


@contextmanager
def bare_postgres(url: str, schema: str, turns: TurnSource) -> Generator[Append]:
    """A bare `psycopg`."""
    import psycopg

    record, message, progress = (sql.replace("?", "%s") for sql in (RECORD, PUT_MESSAGE, PROGRESS))
    with psycopg.connect(url, autocommit=True, options=f"-csearch_path={schema}") as database:
        cursor = database.cursor()

        async def append(number: int) -> None:
            records, messages = rows(turns, number)
            with database.pipeline(), database.transaction():
                cursor.executemany(record, records)
                cursor.executemany(message, messages)
                cursor.execute(progress, (2, 2, 100, 100, 0.0, "local", f"r{number}"))

        yield append


async def pace(append: Append, at_once: int, seconds: float) -> float:
    """Appends per second with `at_once` concurrent sessions."""
    done = 0

    async def repeat(number: int, end: float) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await append(number)
            done += 1

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(at_once):
            group.create_task(repeat(number, began + seconds))
    return done / (time.perf_counter() - began)


async def measure(
    mine: Append, bare: Append, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Measure all variants one after the other, for some rounds."""
    ways = {"bare_1": (bare, 1), "ours_1": (mine, 1), "ours_64": (mine, MANY)}
    for append, at_once in ways.values():
        await pace(append, at_once, 0.2)
    found: dict[str, list[float]] = {f"{name}_per_s": [] for name in ways}
    for number in range(rounds):
        for name, (append, at_once) in ways.items():
            found[f"{name}_per_s"].append(await pace(append, at_once, seconds))
        print(f"round {number + 1} of {rounds}", flush=True)
    return found


async def on_sqlite(rounds: int, seconds: float) -> dict[str, list[float]]:
    """Two files of the same tables."""
    turns = await TurnSource.create()
    with tempfile.TemporaryDirectory(prefix="appends-") as folder:
        path = Path(folder) / "bare.db"
        async with ours(path, "", turns):
            pass  # this creates the tables and the runs
        async with ours(Path(folder) / "ours.db", "", turns) as mine:
            with bare_sqlite(path, turns) as bare:
                return await measure(mine, bare, rounds, seconds)


async def on_postgres(rounds: int, seconds: float) -> dict[str, list[float]]:
    """Two schemas of the same tables."""
    if why := why_no_postgres():
        raise SystemExit(why)
    turns, server = await TurnSource.create(), Postgres()
    try:
        await asyncio.to_thread(server.start)
        async with ours(server.url, "bare", turns):
            pass
        async with ours(server.url, "ours", turns) as mine:
            with bare_postgres(server.url, "bare", turns) as bare:
                return await measure(mine, bare, rounds, seconds)
    finally:
        await asyncio.to_thread(server.close)


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="Seconds for each figure [1.5]"
    )
    options = parser.parse_args()
    on = on_sqlite if options.store == "sqlite" else on_postgres
    found = asyncio.run(on(options.rounds, options.seconds))
    for name, values in found.items():
        print(f"{name:16}", "  ".join(f"{value:8.0f}" for value in values), file=sys.stderr)
    print(json.dumps({name: round(median(values)) for name, values in found.items()}), flush=True)


if __name__ == "__main__":
    main()
