"""Who is away for a while: a server, and a process that holds a transaction."""

from __future__ import annotations

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
