"""The proxy of `make scalespeed` delays, keeps the order, and counts exactly."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest
from bench.scale.delay_proxy import DelayProxy
from bench.scale.wire_counts import LISTENING, WireConnection, WireCounts, application_name

from tests.support.postgres import Postgres

RTT_MS = 10
IDLE = b"Z\0\0\0\5I"
IN_TRANSACTION = b"Z\0\0\0\5T"


def message(kind: bytes, text: bytes) -> bytes:
    return kind + (len(text) + 5).to_bytes(4, "big") + text + b"\0"


def startup(name: bytes) -> bytes:
    body = (196608).to_bytes(4, "big") + b"user\0ann\0application_name\0" + name + b"\0\0"
    return (len(body) + 4).to_bytes(4, "big") + body


def started(counts: WireCounts) -> WireConnection:
    """A connection after its first round trip."""
    connection = WireConnection(counts)
    connection.client_sent(startup(b"app"))
    connection.server_sent(IDLE)
    counts.round_trips.clear()
    return connection


def test_the_application_name_is_read_from_the_startup_packet() -> None:
    assert application_name(startup(b"evoclaw jobs")) == "evoclaw jobs"


def test_a_burst_is_one_round_trip_however_it_is_split() -> None:
    connection = started(counts := WireCounts())
    connection.client_sent(b"Q")
    connection.client_sent(b"\0\0\0\x0eSELECT 1\0")
    answer = message(b"C", b"SELECT 1") + IDLE
    for byte in answer:
        connection.server_sent(bytes([byte]))
    connection.client_sent(message(b"Q", b"SELECT 2"))
    assert counts.round_trips == {"app": 2}
    assert counts.committed == 1


def test_a_transaction_counts_once_and_a_failed_one_does_not() -> None:
    connection = started(counts := WireCounts())
    connection.server_sent(message(b"C", b"BEGIN") + IN_TRANSACTION)
    connection.server_sent(message(b"C", b"ROLLBACK") + IN_TRANSACTION)  # to a savepoint
    connection.server_sent(message(b"C", b"COMMIT") + IDLE)
    assert (counts.committed, counts.rolled_back) == (1, 0)
    connection.server_sent(message(b"E", b"SERROR") + IDLE)
    connection.server_sent(message(b"C", b"ROLLBACK") + IDLE)
    assert (counts.committed, counts.rolled_back) == (1, 2)


@pytest.mark.parametrize("query", [message(b"Q", b"LISTEN x"), message(b"P", b"\0listen x")])
def test_a_listening_connection_is_counted_apart(query: bytes) -> None:
    connection = started(counts := WireCounts())
    connection.client_sent(query)
    assert counts.round_trips == {LISTENING: 1}


def test_an_encrypting_server_is_refused_because_nothing_can_be_counted() -> None:
    connection = WireConnection(WireCounts())
    connection.client_sent((8).to_bytes(4, "big") + (80877103).to_bytes(4, "big"))
    with pytest.raises(ValueError, match="ssl = off"):
        connection.server_sent(b"S")


@pytest.fixture
def proxy(postgres_server: Postgres) -> Iterator[DelayProxy]:
    with DelayProxy(postgres_server.port) as running:
        yield running


def through(proxy: DelayProxy, server: Postgres, name: str) -> psycopg.Connection:
    url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
    return psycopg.connect(url, application_name=name, autocommit=True)


@pytest.mark.process
def test_the_proxy_delays_each_round_trip_and_counts_it(
    proxy: DelayProxy, postgres_server: Postgres
) -> None:
    with through(proxy, postgres_server, "counted") as connection:
        before = proxy.counts()
        proxy.delay(RTT_MS)
        began = time.perf_counter()
        for _ in range(5):
            assert connection.execute("SELECT repeat('x', 1000000)").fetchone()
        with connection.transaction():
            connection.execute("SELECT 1")
        seconds, after = time.perf_counter() - began, proxy.counts()
    # BEGIN, SELECT and COMMIT are three round trips and one transaction.
    assert after["by_connection"]["counted"] - before["by_connection"]["counted"] == 8
    assert after["committed"] - before["committed"] == 6
    assert after["executed"]["SELECT"] - before["executed"].get("SELECT", 0) == 6
    assert (after["executed"]["BEGIN"], after["executed"]["COMMIT"]) == (1, 1)
    assert seconds >= 8 * RTT_MS / 1000


@pytest.mark.process
def test_the_proxy_closes_the_connection_when_the_server_does(
    proxy: DelayProxy, postgres_server: Postgres
) -> None:
    with through(proxy, postgres_server, "closed") as connection:
        pid = connection.info.backend_pid
        with psycopg.connect(postgres_server.url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
