"""One budget that several processes spend at once, one of which is killed: it is never exceeded."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from secrets import token_hex

import psycopg
import pytest

from evoclaw.core.errors import RunSuspended
from evoclaw.core.ledgers import InsufficientFunds, Limit, Reservation
from evoclaw.store.databases.database import Connection, Database, StoreError
from evoclaw.store.databases.postgres import PostgresDatabase
from evoclaw.store.databases.write_requests import write_scope
from evoclaw.store.governance import ledger
from evoclaw.store.governance.ledger import StoredLedger
from tests.support.budgets import account
from tests.support.databases import Place, hold_deferred_commits
from tests.support.stores import ROOT

DAY = 86_400.0
LIMITS = {
    "tenant:local": Limit(400, DAY),
    "tenant:local/agent:clerk": Limit(200, DAY),
    "run:root": Limit(90),
    "run:other": Limit(500),
}
"""A day of a tenant, a day of an agent of it, and whole trees of runs."""
SPENDER = """
import asyncio, random, sys
from evoclaw.core.ledgers import Reservation
from evoclaw.store.governance import ledger
from evoclaw.store.governance.ledger import StoredLedger
from tests.support.databases import Place
from tests.store.test_shared_budget import LIMITS

TENANT, CLERK = "tenant:local", "tenant:local/agent:clerk"

async def spend(books, path, name, wanted, file):
    found = await books.reserve(path, {"calls": wanted}, name)
    if not isinstance(found, Reservation):
        return False
    # As the orchestrator does before anything that the world sees.
    await books.database.write(lambda connection: None)
    real = random.randint(0, wanted)
    print(*path, real, file=file, flush=True)
    books.settle(name, {"calls": real})
    return True

async def main(at, schema, name, marks):
    database = await Place.of(at, schema).open(ledger.SCHEMA)
    try:
        await spend_all(database, name, marks)
    finally:
        await database.close()  # its thread would keep a failed process alive

async def spend_all(database, name, marks):
    books = StoredLedger(database, database.time, wait=False)
    paths = [
        (TENANT, CLERK, "run:root"),
        (TENANT, CLERK, "run:root", f"run:root/{name}"),
        (TENANT, CLERK, "run:other"),
        (TENANT, "run:other", "run:other/below"),
    ]
    async with books:
        await books.start()
        for one, limit in LIMITS.items():
            await books.open(one, {"calls": limit}, {})
        print("ready", flush=True)
        sys.stdin.readline()
        random.seed(name)
        number, refused = 0, 0
        with open(marks, "a") as file:
            while refused < 5:
                most = 1 if refused else 3
                some = [
                    spend(books, path, f"{name}.{number}.{n}", random.randint(1, most), file)
                    for n, path in enumerate(paths)
                ]
                number += 1
                refused = 0 if any(await asyncio.gather(*some)) else refused + 1

asyncio.run(main(*sys.argv[1:]))
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SPENDER, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def spend(place: Place, marks: Path) -> list[int]:
    """Three processes spend until there is no more, but one is killed; how they ended."""
    marks.touch()
    where = (str(place.at), place.schema)
    spenders = [start(*where, str(number), str(marks)) for number in range(3)]
    try:
        for one in spenders:
            assert one.stdout is not None and one.stdout.readline() == "ready\n"
        for one in spenders:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        end = time.monotonic() + 30
        while len(marks.read_text().splitlines()) < 40:
            assert time.monotonic() < end
        spenders[1].kill()
        return [one.wait(60) for one in spenders]
    finally:
        for one in spenders:
            one.kill()
            one.communicate()


@pytest.mark.slow
@pytest.mark.process
async def test_three_processes_never_exceed_a_budget_even_if_one_is_killed(
    postgres_url: str, tmp_path: Path
) -> None:
    place, marks = Place(postgres_url, f"test_{token_hex(6)}"), tmp_path / "marks"
    assert (await asyncio.to_thread(spend, place, marks)) == [0, -9, 0]
    done: Counter[str] = Counter()
    for line in marks.read_text().splitlines():
        *path, real = line.split()
        for name in path:
            done[name] += int(real)
    database = await place.open(ledger.SCHEMA)
    async with StoredLedger(database) as books:
        for name, limit in LIMITS.items():
            found = await account(books, name)
            used = found.used("calls", time.time())
            assert done[name] <= used <= limit.most, name
            # What the dead one had set aside counts, four of at most 3.
            assert 0 <= found.held.get("calls", 0) <= 12
        for name in ("tenant:local", "tenant:local/agent:clerk", "run:root"):
            assert (await account(books, name)).remaining("calls", time.time()) == 0, (
                "all of it was used"
            )
    await database.close()


async def test_the_ledger_uses_the_clock_of_the_server_not_of_the_machine(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(postgres_url, f"test_{token_hex(6)}")
    database = await place.open(ledger.SCHEMA)
    assert isinstance(database, PostgresDatabase)
    async with StoredLedger(database, database.time) as books:
        await books.start()
        await books.open("tenant", {"calls": Limit(1, 3_600.0)}, {})
        await books.reserve(("tenant",), {"calls": 1}, "a")
        books.settle("a", {"calls": 1})
        await books.flush()
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 7_200)
        other = await place.open(ledger.SCHEMA)
        assert isinstance(other, PostgresDatabase)
        async with StoredLedger(other, other.time) as ahead:
            await ahead.start()
            assert abs(other.time() - now()) < 600
            assert isinstance(
                await ahead.reserve(("tenant",), {"calls": 1}, "b"), InsufficientFunds
            )
        await other.close()
    await database.close()


def pid(connection: Connection) -> int:
    return connection.execute("SELECT pg_backend_pid()").fetchone()[0]


async def cut(database: Database, url: str) -> None:
    """End its connection, and with it what is not committed."""
    number = await database.read(pid)
    with psycopg.connect(url) as admin:
        admin.execute("SELECT pg_terminate_backend(%s)", (number,))


async def test_a_reservation_outside_a_write_scope_is_committed_when_it_returns(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_deferred_commits(monkeypatch)
    place, path = Place(postgres_url, f"test_{token_hex(6)}"), ("tenant",)
    there = await place.open(ledger.SCHEMA)
    here = await place.open(ledger.SCHEMA)
    books, others = StoredLedger(here, wait=False), StoredLedger(there)
    await others.open("tenant", {"calls": Limit(1)}, {})
    assert isinstance(await books.reserve(path, {"calls": 1}, "a"), Reservation)
    await cut(here, postgres_url)
    assert isinstance(await others.reserve(path, {"calls": 1}, "b"), InsufficientFunds)
    await here.close()
    await there.close()


async def start_run(books: StoredLedger, run: str) -> None:
    """Let a process see the accounts of a new run."""
    await books.open(run, {"turns": Limit(9)}, {})
    assert isinstance(await books.reserve(("tenant", run), {"turns": 1}, f"{run}.0"), Reservation)


async def test_a_run_whose_budget_another_process_spent_is_suspended_and_others_continue(
    place: Place,
) -> None:
    there = await place.open(ledger.SCHEMA)
    here = await place.open(ledger.SCHEMA)
    books, others = StoredLedger(here, wait=False), StoredLedger(there)
    await others.open("tenant", {"calls": Limit(8)}, {})
    with write_scope():
        await start_run(books, "run:a")
        await here.flush()
        # This process has seen 8 calls left, so it does not wait for the database.
        assert isinstance(await others.reserve(("tenant",), {"calls": 6}, "b"), Reservation)
        found = await books.reserve(("tenant", "run:a"), {"calls": 3}, "a")
        assert isinstance(found, Reservation) and found.remaining_before[0].left == 8
        barrier = asyncio.Event()

        async def go_on() -> None:
            await barrier.wait()
            await here.flush()

        begun = asyncio.create_task(go_on())
    with write_scope():
        await start_run(books, "run:b")
        await here.flush()  # nobody else is in the way of it
    barrier.set()
    with pytest.raises(RunSuspended):
        await begun
    assert (await account(others, "tenant")).held == {"calls": 6, "turns": 2}
    with write_scope():
        again = await books.reserve(("tenant", "run:a"), {"calls": 3}, "a")
        assert isinstance(again, InsufficientFunds), "resumed, it is told what is left"
        assert again.left == 2
    await here.close()
    await there.close()


async def test_reservations_with_enough_left_wait_for_no_commit_and_share_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_deferred_commits(monkeypatch)
    database = await place.open(ledger.SCHEMA)
    books = StoredLedger(database, wait=False)
    with write_scope():
        await books.open("tenant", {"calls": Limit(100)}, {})
        await start_run(books, "run:a")
        await database.flush()
        before = database.commits
        for number in range(20):
            id = f"run:a.{number + 1}"
            await books.open("tenant", {"calls": Limit(100)}, {})
            path = ("tenant", "run:a")
            assert isinstance(await books.reserve(path, {"calls": 1}, id), Reservation)
            books.settle(id, {"calls": 1})
            assert books.remaining(("tenant",))["calls"].left == 99 - number
        assert database.commits == before
        await database.flush()
        assert database.commits == before + 1
    assert (await account(books, "tenant")).spent == {"calls": 20}
    await database.close()


async def test_one_reservation_id_is_never_reserved_twice_by_one_process(place: Place) -> None:
    database = await place.open(ledger.SCHEMA)
    books = StoredLedger(database, wait=False)
    with write_scope():
        await books.open("tenant", {"calls": Limit(100)}, {})
        await start_run(books, "run:a")
        for is_new in (True, False):
            found = await books.reserve(("tenant", "run:a"), {"calls": 1}, "a")
            assert isinstance(found, Reservation) and found.is_new is is_new
        books.settle("a", {"calls": 1})
        found = await books.reserve(("tenant", "run:a"), {"calls": 1}, "a")
        assert isinstance(found, Reservation) and not found.is_new
        await database.flush()
    assert (await account(books, "tenant")).spent == {"calls": 1}
    await database.close()


async def test_what_ends_a_reservation_that_is_not_answered_yet_ends_it(place: Place) -> None:
    there = await place.open(ledger.SCHEMA)
    database = await place.open(ledger.SCHEMA)
    books, others = StoredLedger(database, wait=False), StoredLedger(there)
    path = ("tenant", "run:a")
    # So much of what others use too is not answered from memory.
    await others.open("tenant", {"calls": Limit(9)}, {})
    with write_scope():
        await start_run(books, "run:a")
        asked = asyncio.create_task(books.reserve(path, {"calls": 9, "turns": 1}, "a"))
        await asyncio.sleep(0)
        books.settle("a", {"calls": 4}, path)
        assert isinstance(await asked, Reservation)
        asked = asyncio.create_task(books.reserve(path, {"calls": 5}, "b"))
        await asyncio.sleep(0)
        books.close("run:a")
        assert isinstance(await asked, Reservation)
        await database.flush()
    tenant = await account(books, "tenant")
    assert (tenant.spent, tenant.held) == ({"calls": 9, "turns": 1}, {})
    await asyncio.gather(database.close(), there.close())


async def test_a_run_that_another_process_continues_is_answered_from_memory_there(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_deferred_commits(monkeypatch)
    place, path = Place(postgres_url, f"test_{token_hex(6)}"), ("tenant", "run:a")
    there, here = await place.open(ledger.SCHEMA), await place.open(ledger.SCHEMA)
    first, second = StoredLedger(there, wait=False), StoredLedger(here, wait=False)
    with write_scope():
        await start_run(first, "run:a")
        first.settle("run:a.0", {"turns": 1})
        assert isinstance(await first.reserve(path, {"turns": 1}, "open"), Reservation)
        await there.flush()
    with write_scope():
        await second.open("run:a", {"turns": Limit(9)}, {})
        for id, is_new in (("run:a.0", False), ("a", True)):
            found = await second.reserve(path, {"turns": 1}, id)
            assert isinstance(found, Reservation) and found.is_new is is_new
        before = here.commits
        assert isinstance(await second.reserve(path, {"turns": 1}, "b"), Reservation)
        second.settle("a", {"turns": 1})
        second.settle("open", {"turns": 0})
        assert here.commits == before
        await here.flush()
        # The first process does not know that: what it says late changes nothing.
    with write_scope():
        first.settle("open", {"turns": 1})
        with pytest.raises(RunSuspended):
            await first.reserve(path, {"turns": 1}, "b")
            await there.flush()
    with write_scope():
        second.close("run:a")
        await here.flush()
    tenant = await account(second, "tenant")
    assert (tenant.spent, tenant.held) == ({"turns": 3}, {})
    await asyncio.gather(here.close(), there.close())


async def test_after_an_error_of_the_server_a_ledger_continues_with_what_is_stored(
    postgres_url: str,
) -> None:
    place = Place(postgres_url, f"test_{token_hex(6)}")
    database = await place.open(ledger.SCHEMA)
    books = StoredLedger(database, wait=False)
    path = ("tenant", "run:a")
    with write_scope():
        await start_run(books, "run:a")
        with pytest.raises(StoreError):
            await books.reserve(path, {"turns": 1}, "a text that PostgreSQL refuses: \0")
            await database.flush()
    with write_scope():
        assert isinstance(await books.reserve(path, {"turns": 1}, "a"), Reservation)
        books.settle("a", {"turns": 1})
        books.close("run:a")
        await database.flush()
    tenant = await account(books, "tenant")
    assert (tenant.spent, tenant.held) == ({"turns": 2}, {})
    await database.close()
