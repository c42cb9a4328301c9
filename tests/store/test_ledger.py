from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.ledgers import (
    Account,
    InsufficientFunds,
    LedgerEntry,
    Limit,
    Reservation,
    ReservationRecord,
)
from evoclaw.governance.budget.memory_ledger import MemoryLedger
from evoclaw.store.databases.database import Connection, Schema, add_checksum
from evoclaw.store.databases.sqlite import StoreError
from evoclaw.store.databases.sqlite_file import DamagedStore
from evoclaw.store.governance.ledger import (
    CLOSED_ACCOUNT_RETENTION_S,
    RESERVATION_TIMEOUT_S,
    SCHEMA,
    StoredLedger,
)
from tests.support.budgets import Clock, account
from tests.support.databases import Place
from tests.support.databases import opened_ledger as opened
from tests.support.stores import ROOT

RUN = ("tenant", "run")
RACER = """
import asyncio, sys, time
from evoclaw.core.ledgers import Limit, Reservation
from tests.support.databases import Place, opened_ledger as opened

async def main(at, schema, name, most):
    async with opened(Place.of(at, schema), time.time) as ledger:
        await ledger.open("run", {"calls": Limit(int(most))}, {})
        print("ready", flush=True)
        sys.stdin.readline()
        racing = [ledger.reserve(("tenant", "run"), {"calls": 1}, f"{name}.{n}") for n in range(10)]
        found = await asyncio.gather(*racing)
        passed = [one.id for one in found if isinstance(one, Reservation)]
        for id in passed:
            ledger.settle(id, {"calls": 1})
    print(len(passed), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from evoclaw.core.ledgers import Limit
from evoclaw.store.governance.ledger import StoredLedger

async def main(path):
    ledger = await StoredLedger.open_file(Path(path))
    await ledger.open("run", {"calls": Limit(10), "action.relay": Limit(3, 3600.0)}, {})
    for n in range(4):
        await ledger.reserve(("tenant", "run"), {"calls": 1, "action.relay": n % 2}, f"r.{n}")
    ledger.settle("r.0", {"calls": 1})
    ledger.settle("r.1", {"calls": 1, "action.relay": 1})
    await ledger.flush()
    ledger.settle("r.2", {"calls": 1})
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(sys.argv[1]))
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.process
@pytest.mark.parametrize("most", [1, 17])
async def test_fault_50_five_processes_racing_one_budget_pass_exactly_its_limit(
    most: int, place: Place
) -> None:
    where = (str(place.at), place.schema)
    racers = [start(RACER, *where, str(number), str(most)) for number in range(5)]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert await asyncio.to_thread(racer.stdout.readline) == "ready\n"
        outs = await asyncio.gather(
            *(asyncio.to_thread(racer.communicate, "go\n", 30) for racer in racers)
        )
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    assert sum(int(out) for out, _ in outs) == most
    async with opened(place, time.time) as ledger:
        assert (await account(ledger, "run")).spent == {"calls": most}


@pytest.mark.process
async def test_after_kill_9_spending_survives_and_open_reservations_are_found_by_id(
    tmp_path: Path,
) -> None:
    path = tmp_path / "budget.db"
    dying = start(DYING, str(path))
    await asyncio.to_thread(dying.communicate, None, 30)
    assert dying.returncode == -signal.SIGKILL
    async with await StoredLedger.open_file(path) as ledger:
        found = await account(ledger, "run")
        assert found.spent == {"calls": 2, "action.relay": 1}
        assert found.held == {"calls": 2, "action.relay": 1}, "one was settled too late to be kept"
        again = await ledger.reserve(RUN, {"calls": 1, "action.relay": 1}, "r.3")
        assert isinstance(again, Reservation) and not again.is_new
        late = await ledger.reserve(RUN, {"action.relay": 2}, "more")
        assert isinstance(late, InsufficientFunds) and late.left == 1
    async with await StoredLedger.open_file(path, exclusive=True) as ledger:
        found = await account(ledger, "run")
        assert (found.spent, found.held) == ({"calls": 4, "action.relay": 2}, {})
        again = await ledger.reserve(RUN, {"calls": 1, "action.relay": 1}, "r.3")
        assert isinstance(again, Reservation) and not again.is_new, "it is not paid for twice"


async def test_a_reservation_not_settled_for_a_day_counts_as_spent(place: Place) -> None:
    clock = Clock()
    async with opened(place, clock) as ledger:
        await ledger.open("tenant", {"action.relay": Limit(1, 3_600.0)}, {})
        await ledger.reserve(("tenant",), {"action.relay": 1}, "lost")
    clock.now += RESERVATION_TIMEOUT_S - 1
    async with opened(place, clock) as ledger:
        assert (await account(ledger, "tenant")).held == {"action.relay": 1}
    clock.now += 2
    async with opened(place, clock) as ledger:
        found = await ledger.reserve(("tenant",), {"action.relay": 1}, "next")
        assert isinstance(found, InsufficientFunds), "it counts from when it was given up"
        clock.now += 3_600
        found = await ledger.reserve(("tenant",), {"action.relay": 1}, "next")
        assert isinstance(found, Reservation)


async def test_ledger_time_never_moves_backwards(place: Place) -> None:
    clock = Clock()
    async with opened(place, clock) as ledger:
        await ledger.open("tenant", {"action.relay": Limit(1, 3_600.0)}, {})
        await ledger.reserve(("tenant",), {"action.relay": 1}, "a")
        ledger.settle("a", {"action.relay": 1})
    before, clock.now = clock.now, 0.0
    async with opened(place, clock) as ledger:
        # A board without a battery wakes up in 1970, and learns the time a little later.
        assert isinstance(
            await ledger.reserve(("tenant",), {"action.relay": 1}, "b"), InsufficientFunds
        )
        clock.now = before + 3_600
        assert isinstance(await ledger.reserve(("tenant",), {"action.relay": 1}, "b"), Reservation)
        clock.now = 0.0
        ledger.settle("b", {"action.relay": 1})
        await ledger.flush()
        assert (await account(ledger, "tenant")).touched == before + 3_600


async def test_accounts_of_ended_runs_are_deleted_after_the_retention_period(place: Place) -> None:
    clock = Clock()
    async with opened(place, clock) as ledger:
        await ledger.open("tenant", {}, {})
        await ledger.reserve(RUN, {"calls": 1}, "a")
        ledger.close("run")
    for later, there in ((CLOSED_ACCOUNT_RETENTION_S - 1, True), (2, False)):
        clock.now += later
        async with opened(place, clock) as ledger:
            assert ("run" in [one.name for one in await ledger.accounts()]) is there
            assert (await account(ledger, "tenant")).spent == {"calls": 1}


async def test_a_settlement_is_visible_locally_at_once_and_to_others_soon(
    tmp_path: Path,
) -> None:
    path = tmp_path / "b.db"
    first = await StoredLedger.open_file(path)
    async with first, await StoredLedger.open_file(path) as second:
        await first.open("run", {"calls": Limit(2)}, {})
        await first.reserve(RUN, {"calls": 2}, "a")
        first.settle("a", {"calls": 1})
        assert isinstance(await first.reserve(RUN, {"calls": 1}, "b"), Reservation)
        first.release("b")
        await asyncio.sleep(0)
        # It waits for the deferred commit, which nobody asks for.
        assert isinstance(await second.reserve(RUN, {"calls": 1}, "c"), Reservation)


async def test_an_unwritable_ledger_refuses_reservations_and_loses_none(tmp_path: Path) -> None:
    ledger = await StoredLedger.open_file(tmp_path / "b.db")
    await ledger.reserve(RUN, {"calls": 1}, "a")
    await ledger.database.close()
    ledger.settle("a", {"calls": 1})
    for _ in range(2):
        with pytest.raises(StoreError, match="closed"):
            await ledger.reserve(RUN, {"calls": 1}, "b")
    with pytest.raises(StoreError, match="closed"):
        await ledger.__aexit__()
    async with await StoredLedger.open_file(tmp_path / "b.db") as again:
        assert (await account(again, "run")).held == {"calls": 1}


async def test_a_ledger_with_a_tampered_amount_is_reported_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    async with await StoredLedger.open_file(path) as ledger:
        await ledger.open("tenant", {"calls": Limit(77)}, {})

        def forge(connection: object) -> None:
            connection.execute(  # pyright: ignore
                "UPDATE ledger_accounts SET limits = replace(limits, '77', '78')"
            )

        await ledger.database.write(forge)
    with pytest.raises(DamagedStore, match="checksum"):
        await StoredLedger.open_file(path)


async def test_the_ledger_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    async with await StoredLedger.open_file(tmp_path / "b.db"):
        assert (tmp_path / "b.db").stat().st_mode & 0o077 == 0


async def test_an_account_is_listed_with_its_children_and_no_others(place: Place) -> None:
    names = ["tenant:a", "tenant:a/user:x", "tenant:a-b", "tenant:a0", "tenant:b", "run:1"]
    async with opened(place, Clock()) as ledger:
        for books in (ledger, MemoryLedger(Clock())):
            for name in names:
                await books.open(name, {}, {})
            found = [one.name for one in await books.accounts("tenant:a")]
            assert found == ["tenant:a", "tenant:a/user:x"]
            assert [one.name for one in await books.accounts("run:1")] == ["run:1"]
            assert await books.accounts("run:2") == []
            assert len(await books.accounts()) == len(names)


async def test_accounts_of_the_first_version_are_converted_when_a_ledger_starts(
    place: Place,
) -> None:
    earlier = Schema(SCHEMA.name, SCHEMA.migrations[:1], SCHEMA.checksummed)
    tenant = Account("tenant", {"calls": Limit(5, 60.0)}, {"calls": 3}, {"calls": 1}, touched=9.0)
    tenant.recent = {"calls": [LedgerEntry(8.0, 9.0, 3)]}
    ended = Account("run", touched=9.0, closed=True)
    hold = ReservationRecord("a", ("tenant",), {"calls": 1}, 9.0)

    def put(connection: Connection) -> None:
        for kept in (tenant, ended):
            state = add_checksum(msgspec.msgpack.encode(kept))
            values = (kept.name, state, kept.touched, int(kept.closed))
            connection.execute("INSERT INTO accounts VALUES (?, ?, ?, ?)", values)
        state = add_checksum(msgspec.msgpack.encode(hold))
        values = (hold.id, hold.owner, state, hold.at, 1)
        connection.execute("INSERT INTO holds VALUES (?, ?, ?, ?, ?)", values)

    database = await place.open(earlier)
    await database.write(put)
    await database.close()
    clock = Clock()
    clock.now = 10.0
    for _ in range(2):
        async with opened(place, clock) as ledger:
            assert await ledger.accounts() == [ended, tenant]
            found = await ledger.reserve(("tenant",), {"calls": 1}, "a")
            assert isinstance(found, Reservation) and not found.is_new
            refused = await ledger.reserve(("tenant",), {"calls": 2}, "b")
            assert isinstance(refused, InsufficientFunds) and refused.left == 1


async def test_a_database_of_the_second_version_loses_an_index_and_nothing_else(
    place: Place,
) -> None:
    earlier = Schema(SCHEMA.name, SCHEMA.migrations[:2], procedures=SCHEMA.procedures)
    database = await place.open(earlier)
    async with StoredLedger(database, Clock()) as ledger:
        await ledger.open("tenant", {"calls": Limit(5)}, {})
        await ledger.reserve(RUN, {"calls": 1}, "a")
        before = await ledger.accounts()
    await database.close()
    async with opened(place, Clock()) as ledger:
        assert await ledger.accounts() == before
        found = await ledger.reserve(RUN, {"calls": 1}, "a")
        assert isinstance(found, Reservation) and not found.is_new
        indexes = (
            "SELECT name FROM sqlite_schema"
            if place.is_file
            else ("SELECT indexname FROM pg_indexes WHERE schemaname = current_schema")
        )
        found = await ledger.database.read(lambda c: c.execute(indexes).fetchall())
        assert ("ledger_holds_owner",) in found and ("ledger_holds_open",) not in found
