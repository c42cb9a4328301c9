"""Several writes of one transaction: what fails is undone alone, and costs the others little."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.store.databases.database import Connection
from evoclaw.store.databases.write_requests import WriteRequest, attempt_all


def put(number: int, *, fails: bool) -> Callable[[Connection], int]:
    def work(connection: Connection) -> int:
        connection.execute("INSERT INTO numbers VALUES (?)", (number,))
        if fails:
            raise ValueError(number)
        return number

    return work


def attempt(
    fails: Sequence[bool], *, marks: bool
) -> tuple[bool, list[WriteRequest], list[int], int]:
    """Whether it went well, the orders, what is in the table, and how often a mark was made."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE numbers (n INTEGER)")
    said: list[str] = []
    connection.set_trace_callback(said.append)
    loop = asyncio.new_event_loop()
    try:
        orders = [
            WriteRequest(put(number, fails=bad), loop.create_future(), writes=True)
            for number, bad in enumerate(fails)
        ]
        connection.execute("BEGIN")
        done = attempt_all(
            connection, orders, savepoints=marks, check_transaction=lambda order: None
        )
        found = [n for (n,) in connection.execute("SELECT n FROM numbers ORDER BY n").fetchall()]
    finally:
        loop.close()
        connection.close()
    return done, orders, found, sum(one.startswith("SAVEPOINT") for one in said)


@given(st.lists(st.booleans(), max_size=40))
def test_a_failing_request_is_rolled_back_alone_and_the_others_run_once(fails: list[bool]) -> None:
    done, orders, found, marked = attempt(fails, marks=True)
    assert done
    assert [order.problem is not None for order in orders] == fails
    assert found == [number for number, bad in enumerate(fails) if not bad]
    # One from each failure to the next, and one to do again what was undone with it.
    assert marked <= 1 + 2 * sum(fails)


@pytest.mark.parametrize("fails", [[False] * 5, [False, True, False]])
def test_without_savepoints_the_first_failure_ends_the_attempt(fails: list[bool]) -> None:
    done, orders, _, marked = attempt(fails, marks=False)
    assert done == (not any(fails))
    assert marked == 0
    assert orders[-1].result == (None if any(fails) else len(fails) - 1)
