"""The step of a ledger: SQLite, PostgreSQL and the ledger in memory agree on every operation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from secrets import token_hex
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evoclaw.core.ledgers import Account, InsufficientFunds, Limit, Reservation
from evoclaw.governance.budget.memory_ledger import MemoryLedger
from evoclaw.store.databases.database import Connection, Database, StoreUnavailable
from evoclaw.store.databases.steps import Step
from evoclaw.store.databases.write_requests import write_scope
from evoclaw.store.governance import ledger
from evoclaw.store.governance.ledger import StoredLedger
from evoclaw.store.governance.ledger_operations import LedgerResult, OperationResult
from evoclaw.store.governance.ledger_rows import select_accounts, stored_limits
from evoclaw.store.governance.ledger_step import LEDGER
from tests.support.budgets import Clock
from tests.support.databases import Place
from tests.support.properties import examples

ACCOUNTS = ("tenant", "tenant/user", "run1", "run2", "run2/ü")
PATHS = (
    ("tenant", "tenant/user", "run1"),
    ("tenant", "tenant/user", "run2"),
    ("tenant", "run2", "run2/ü"),
    ("tenant",),
)
IDS = tuple(f"{path[-1]}.{number}" for path in PATHS for number in range(3))
PATH_OF = {id: path for id in IDS for path in PATHS if id.startswith(f"{path[-1]}.")}
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
WINDOWS = {"calls": 0.0, "tokens": 10.0, "action.relay": 3600.5}
KINDS = tuple(WINDOWS)
amounts = st.dictionaries(st.sampled_from(KINDS), st.integers(0, 9), max_size=3)
limits = st.dictionaries(st.sampled_from(KINDS), st.integers(0, 30), max_size=3).map(
    lambda most: {kind: Limit(much, WINDOWS[kind]) for kind, much in most.items()}
)
ids = st.sampled_from(IDS)
operations = st.one_of(
    st.tuples(st.just("open"), st.sampled_from(ACCOUNTS), limits, amounts),
    st.tuples(st.just("reserve"), ids, amounts, amounts, st.dictionaries(ids, amounts, max_size=2)),
    st.tuples(st.just("reserve"), ids, amounts, st.just({}), st.just({})),
    st.tuples(st.just("settle"), ids, amounts, st.booleans()),
    st.tuples(st.just("release"), ids),
    st.tuples(st.just("close"), st.sampled_from(ACCOUNTS)),
)
batches = st.lists(
    st.tuples(st.sampled_from([0.0, 0.125, 5.0, 11.0, 4000.0]), st.lists(operations, max_size=8)),
    max_size=8,
)


def step(operation: Sequence[Any], now: float) -> list[Any]:
    """An operation as it is sent."""
    match operation:
        case ("open", name, some, spent):
            return ["open", now, name, stored_limits(some), spent]
        case ("reserve", id, some, leaving, also):
            more = [[other, PATH_OF[other], much] for other, much in also.items()]
            return ["reserve", now, id, PATH_OF[id], some, leaving, more]
        case ("settle", id, real, with_path):
            return ["settle", now, id, real, PATH_OF[id] if with_path else ()]
        case _:
            return [operation[0], now, operation[1]]


async def apply(
    database: Database, sent: Sequence[Sequence[Any]], names: Sequence[str] = ACCOUNTS
) -> LedgerResult:
    arguments = (sent, names, IDS if names else ())
    return msgspec.convert(await database.apply(Step(LEDGER, arguments)), LedgerResult)


async def remembered(
    memory: MemoryLedger, operation: Sequence[Any]
) -> Reservation | InsufficientFunds | None:
    match operation:
        case ("open", name, some, spent):
            await memory.open(name, some, spent)
        case ("reserve", id, some, leaving, also):
            more = {other: (PATH_OF[other], much) for other, much in also.items()}
            return await memory.reserve(PATH_OF[id], some, id, leaving=leaving, also=more)
        case ("settle", id, real, with_path):
            memory.settle(id, real, PATH_OF[id] if with_path else ())
        case ("release", id):
            memory.release(id)
        case _:
            memory.close(operation[1])
    return None


def state(account: Account, now: float) -> tuple[Any, ...]:
    used = {kind: account.used(kind, now) for kind in KINDS}
    recent = [
        (kind, entry.since, entry.until, entry.amount)
        for kind, entries in account.recent.items()
        for entry in entries
        if entry.until > now - WINDOWS[kind]
    ]
    return account.name, account.limits, account.spent, account.held, used, sorted(recent)


def answer(result: OperationResult) -> Reservation | InsufficientFunds | None:
    return result.refused or result.reserved


@settings(max_examples=examples(40), deadline=None, suppress_health_check=QUIET)
@given(batches=batches)
async def test_both_databases_and_the_memory_ledger_agree_on_all_operations(
    both: tuple[Database, Database], batches: list[tuple[float, list[Any]]]
) -> None:
    clock = Clock()
    memory, closed = MemoryLedger(clock), set[str]()
    for database in both:
        await database.write(lambda c: c.execute("DELETE FROM ledger_accounts"))
        await database.write(lambda c: c.execute("DELETE FROM ledger_holds"))
    opened = set[str]()
    for pause, some in batches:
        clock.now += pause
        # What was spent before counts if the account is new: it is not if it was mentioned.
        for number, one in enumerate(some):
            if one[0] == "open" and one[1] in opened:
                some[number] = (*one[:3], {})
            opened.update(mentioned(one))
        # The ledger in memory forgets a closed account, and a stored one does not.
        kept = list[Any]()
        for one in some:
            if not closed & set(mentioned(one)):
                kept.append(one)
                closed |= {one[1]} if one[0] == "close" else set()
        sent = [step(one, clock.now) for one in kept]
        expected = [await remembered(memory, one) for one in kept]
        found = [await apply(database, sent) for database in both]
        for result in found:
            assert [answer(one) for one in result.results] == expected
        stored = [
            await database.read(lambda c: select_accounts(c, "WHERE closed_at IS NULL", ()))
            for database in both
        ]
        here = [state(one, clock.now) for one in await memory.accounts()]
        here = [one for one in here if one != state(Account(one[0]), clock.now)]
        for accounts in stored:
            there = [state(one, clock.now) for one in accounts]
            assert [one for one in there if one != state(Account(one[0]), clock.now)] == here


def mentioned(operation: Sequence[Any]) -> list[str]:
    match operation:
        case ("reserve", id, _, _, also):
            return [name for one in (id, *also) for name in PATH_OF[one]]
        case ("settle" | "release", id, *_):
            return list(PATH_OF[id])
        case ("close", name):
            # Its reservations are on the accounts above it, too.
            return [above for path in PATHS if path[-1] == name for above in path] or [name]
        case _:
            return [operation[1]]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=QUIET)
@given(batches=batches)
async def test_both_databases_agree_on_accounts_that_are_closed_and_opened_again(
    both: tuple[Database, Database], batches: list[tuple[float, list[Any]]]
) -> None:
    clock = Clock()
    for database in both:
        await database.write(lambda c: c.execute("DELETE FROM ledger_accounts"))
        await database.write(lambda c: c.execute("DELETE FROM ledger_holds"))
    for pause, some in batches:
        clock.now += pause
        sent = [step(one, clock.now) for one in some]
        one, two = [await apply(database, sent) for database in both]
        assert one.results == two.results
        assert created(one) == created(two)
        old = [["prune", clock.now, clock.now - 4000.0, clock.now - 4000.0]]
        one, two = [await apply(database, old, names=()) for database in both]
        assert one.results == two.results
        rows = [await database.read(lambda c: stored_rows(c, clock.now)) for database in both]
        assert rows[0] == rows[1]


def created(result: LedgerResult) -> list[str]:
    return sorted(account.name for account in result.accounts if account.is_new)


async def test_a_closed_account_is_not_deleted_while_another_one_holds_something_in_it(
    both: tuple[Database, Database],
) -> None:
    run: Sequence[Any] = ("reserve", "run1.0", {"calls": 1}, {}, {})
    for database in both:
        await apply(database, [step(("close", "tenant"), 1.0), step(run, 9000.0)])
        await apply(database, [["prune", 9000.0, 0.0, 5000.0]], names=())
        await apply(database, [step(("release", "run1.0"), 9001.0)])
        found = await database.read(lambda c: select_accounts(c, "WHERE name = 'tenant'", ()))
        assert [account.held for account in found] == [{}]
        await apply(database, [["prune", 9002.0, 0.0, 5000.0]], names=())
        assert not await database.read(lambda c: select_accounts(c, "WHERE name = 'tenant'", ()))


def stored_rows(connection: Connection, now: float) -> Any:
    found = [
        (*state(account, now), account.touched, account.closed)
        for account in select_accounts(connection, "", ())
    ]
    rows = connection.execute("SELECT id, owner, path, amounts, at, open FROM ledger_holds")
    holds = [
        (id, owner, msgspec.json.decode(path), msgspec.json.decode(some), at, is_open)
        for id, owner, path, some, at, is_open in rows
    ]
    return found, sorted(holds)


OWN_RUNS = ("run1", "run2")
PAUSES = st.sampled_from([0.0, 0.0, 0.125, 11.0])
large_limits = st.dictionaries(st.sampled_from(KINDS), st.integers(0, 200), max_size=3).map(
    lambda most: {kind: Limit(much, WINDOWS[kind]) for kind, much in most.items()}
)
run_numbers, hold_numbers = st.integers(0, 1), st.integers(0, 3)
more_reservations = st.dictionaries(st.integers(4, 5), amounts, max_size=2)
run_operations = st.one_of(
    st.tuples(st.just("open"), run_numbers, large_limits),
    st.tuples(st.just("shared"), run_numbers, large_limits),
    st.tuples(st.just("reserve"), run_numbers, hold_numbers, amounts, amounts, more_reservations),
    st.tuples(st.just("reserve"), run_numbers, hold_numbers, amounts, st.just({}), st.just({})),
    st.tuples(st.just("settle"), run_numbers, st.integers(0, 5), amounts, st.booleans()),
    st.tuples(st.just("release"), run_numbers, st.integers(0, 5)),
    st.tuples(st.just("close"), run_numbers),
)


async def used_by_a_run(
    ledger: StoredLedger | MemoryLedger, operation: Sequence[Any], again: int
) -> Reservation | InsufficientFunds | None:
    """An operation as the runs of a process use it; a closed run is followed by another one."""
    kind, *values = operation
    run = f"{OWN_RUNS[values[0]]}-{again}"
    path = ("tenant", "tenant/user", run)
    match (kind, *values[1:]):
        case ("open", some):
            await ledger.open(run, some, {})
        case ("shared", some):
            await ledger.open("tenant", some, {})
        case ("reserve", number, some, leaving, more):
            also = {f"{run}.{other}": (path, much) for other, much in more.items()}
            return await ledger.reserve(path, some, f"{run}.{number}", leaving=leaving, also=also)
        case ("settle", number, real, with_path):
            ledger.settle(f"{run}.{number}", real, path if with_path else ())
        case ("release", number):
            ledger.release(f"{run}.{number}")
        case _:
            ledger.close(run)
    return None


def used_accounts(accounts: Sequence[Account], now: float) -> list[tuple[Any, ...]]:
    """The accounts that hold or have spent something, without the entries of their windows."""
    return [state(one, now)[:5] for one in accounts if one.spent or one.held]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=QUIET)
@given(some=st.lists(st.tuples(PAUSES, st.booleans(), run_operations), max_size=40))
async def test_a_process_that_answers_from_memory_and_sends_plans_agrees_with_the_memory_ledger(
    postgres_url: str, some: list[tuple[float, bool, Any]]
) -> None:
    clock, place = Clock(), Place(postgres_url, f"test_{token_hex(6)}")
    memory, again = MemoryLedger(clock), [0, 0]
    database = await place.open(ledger.SCHEMA)
    used = StoredLedger(database, clock, wait=False)
    try:
        for pause, is_flushed, one in some:
            clock.now += pause
            run: int = one[1]
            with write_scope():
                found = await used_by_a_run(used, one, again[run])
                assert found == await used_by_a_run(memory, one, again[run])
                if is_flushed:
                    await used.flush()
            if one[0] == "close":
                again[run] += 1
        await used.flush()
        stored = await database.read(lambda c: select_accounts(c, "WHERE closed_at IS NULL", ()))
        here = used_accounts(await memory.accounts(), clock.now)
        assert used_accounts(stored, clock.now) == here
    finally:
        await database.close()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=QUIET)
@given(some=st.lists(st.tuples(st.integers(0, 1), PAUSES, run_operations), max_size=40))
@pytest.mark.parametrize("have_own_runs", [True, False])
async def test_two_processes_agree_with_the_memory_ledger(
    postgres_url: str, have_own_runs: bool, some: list[tuple[int, float, Any]]
) -> None:
    """Each has runs of its own, or both use all runs, as if each took them over all the time."""
    clock, place = Clock(), Place(postgres_url, f"test_{token_hex(6)}")
    memory, again = MemoryLedger(clock), [0, 0]
    databases = [await place.open(ledger.SCHEMA) for _ in range(2)]
    ledgers = [StoredLedger(database, clock, wait=False) for database in databases]
    try:
        for process, pause, one in some:
            clock.now += pause
            run: int = one[1]
            # One sets the limits: what a process saw last as limits, it does not set again.
            process = 0 if one[0] in ("open", "shared") else run if have_own_runs else process
            used, number = ledgers[process], again[run]
            expected = await used_by_a_run(memory, one, number)
            try:
                with write_scope():
                    found = await used_by_a_run(used, one, number)
                    await used.flush()
            except StoreUnavailable:
                # What it remembered was not true any more: not all is reserved, or not just now.
                assert not isinstance(expected, Reservation) or not (
                    expected.is_new and len(expected.also) == len(one[5])
                )
            else:
                assert type(found) is type(expected)
                if isinstance(found, Reservation) and isinstance(expected, Reservation):
                    # How much of a shared account is left is as old as the last answer.
                    assert (found.is_new, found.also) == (expected.is_new, expected.also)
            if one[0] == "close":
                again[run] += 1
        here = used_accounts(await memory.accounts(), clock.now)
        for database in databases:
            stored = await database.read(
                lambda c: select_accounts(c, "WHERE closed_at IS NULL", ())
            )
            assert used_accounts(stored, clock.now) == here
    finally:
        await asyncio.gather(*(database.close() for database in databases))


@pytest.fixture
async def both(postgres_url: str, tmp_path: Any) -> Any:
    places = (Place(tmp_path / "ledger.db"), Place(postgres_url, f"test_{token_hex(6)}"))
    opened = [await place.open(ledger.SCHEMA) for place in places]
    yield tuple(opened)
    await asyncio.gather(*(database.close() for database in opened))
