"""Who is away for a while: a server, and a process that holds a transaction."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from evoclaw.core.errors import RunSuspended
from evoclaw.store.databases.database import Conflict, StoreError, StoreUnavailable
from tests.support.waiting import until_sync

pytest.importorskip("psycopg")


@pytest.mark.parametrize(
    "name",
    [
        "AdminShutdown",
        "CannotConnectNow",
        "ConnectionFailure",
        "IdleInTransactionSessionTimeout",
    ],
)
def test_an_unreachable_server_suspends_runs(name: str) -> None:
    from psycopg import errors

    from evoclaw.store.databases.postgres_connection import translate_error

    found = translate_error(getattr(errors, name)("the server is gone"), "the store")
    assert isinstance(found, StoreUnavailable)
    assert isinstance(found, StoreError)
    assert isinstance(found, RunSuspended)


def test_a_statement_error_does_not_suspend_runs() -> None:
    from psycopg import errors

    from evoclaw.store.databases.postgres_connection import translate_error

    assert isinstance(
        translate_error(errors.UniqueViolation("there already"), "the store"), Conflict
    )
    wrong = translate_error(errors.NumericValueOutOfRange("too large"), "the store")
    assert isinstance(wrong, StoreError)
    assert not isinstance(wrong, RunSuspended)


@pytest.mark.process
@pytest.mark.parametrize("last", ["execute", "executemany"])
def test_a_client_idle_in_a_transaction_is_disconnected_by_the_server(
    postgres_url: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    from evoclaw.store.databases import postgres_connection

    monkeypatch.setattr(postgres_connection, "STALLED_TRANSACTION_TIMEOUT_S", 1)
    server = postgres_connection.PostgresServer(postgres_url, "evoclaw_stalled")
    with closing(server.connect()) as raw, psycopg.connect(postgres_url, autocommit=True) as other:
        spoken = postgres_connection.PostgresConnection(raw)
        spoken.execute("BEGIN")
        spoken.execute("CREATE TEMPORARY TABLE things (id BIGINT)")
        if last == "execute":
            spoken.execute("INSERT INTO things VALUES (?)", (1,))
        else:
            spoken.executemany("INSERT INTO things VALUES (?)", [(1,), (2,)])
        find = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
        until_sync(lambda: other.execute(find, (raw.info.backend_pid,)).fetchone() is None)


async def test_a_waiting_writer_terminates_a_stalled_lock_owner(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    from evoclaw.store.databases import postgres_connection
    from evoclaw.store.databases.postgres import PostgresDatabase
    from evoclaw.store.databases.postgres_connection import lock_key

    schema = "evoclaw_put_out"
    with psycopg.connect(postgres_url, autocommit=True) as asleep:
        asleep.execute("SET idle_in_transaction_session_timeout = 0")  # as after a pipeline
        asleep.execute(f"CREATE SCHEMA {schema}")
        asleep.execute("BEGIN")
        asleep.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key(schema),))
        monkeypatch.setattr(postgres_connection, "STALLED_TRANSACTION_TIMEOUT_S", 1)
        monkeypatch.setattr(postgres_connection, "LOCK_CHECK_INTERVAL_S", 0.5)
        server = postgres_connection.PostgresServer(postgres_url, schema)
        database = await PostgresDatabase.open(server, lambda connection: None)
        try:
            work = "SELECT 1"
            assert await database.write(lambda c: c.execute(work).fetchone()) == (1,)
        finally:
            await database.close()
        with pytest.raises(psycopg.OperationalError):
            asleep.execute("SELECT 1")


async def test_a_writer_waits_for_a_lock_owner_that_is_still_working(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    from evoclaw.store.databases import postgres_connection
    from evoclaw.store.databases.postgres import PostgresDatabase
    from evoclaw.store.databases.postgres_connection import lock_key

    schema = "evoclaw_waited"
    monkeypatch.setattr(postgres_connection, "LOCK_CHECK_INTERVAL_S", 0.2)
    monkeypatch.setattr(postgres_connection, "STALLED_TRANSACTION_TIMEOUT_S", 1)
    async with await psycopg.AsyncConnection.connect(postgres_url) as busy:
        await busy.execute(f"CREATE SCHEMA {schema}")
        await busy.commit()
        await busy.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key(schema),))
        database = await PostgresDatabase.open(
            postgres_connection.PostgresServer(postgres_url, schema), lambda connection: None
        )
        writing = asyncio.create_task(database.write(lambda c: c.execute("SELECT 1").fetchone()))
        await busy.execute("SELECT pg_sleep(1.5)")
        await busy.commit()
        assert await writing == (1,)
        await database.close()
