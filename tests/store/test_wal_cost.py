"""What PostgreSQL writes to its WAL for the rows of a run. Records and bytes, no times."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from secrets import token_hex

import msgspec
import psycopg
import pytest

from evoclaw.core.ledgers import Limit
from evoclaw.core.messages import JSON, user
from evoclaw.orchestrator.receipts.verifier import stored_receipt
from evoclaw.store.calls import receipts
from evoclaw.store.calls.receipts import ReceiptStore
from evoclaw.store.governance import approvals
from evoclaw.store.memory import SCHEMA, EventType, MemoryStore, Observation
from evoclaw.store.runs import queue
from evoclaw.store.runs.queue import EnqueueOutcome, QueuedRun, QueueLimits, RunQueue
from evoclaw.store.sessions import tables
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore
from evoclaw.trust.receipts import CallFacts, DeviceKey, new_receipt
from tests.support.databases import Place, opened_ledger

pytestmark = pytest.mark.process
RUN = "1781eb55698dc08bf7db515f60794b71"
RELATIONS = """
SELECT pg_relation_filenode(c.oid), c.relname FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s
"""
RECORDS = "SELECT record_type, block_ref FROM pg_get_wal_records_info(%s::pg_lsn, %s::pg_lsn)"
FILE = re.compile(r"rel \d+/\d+/(\d+)")


@pytest.fixture
def shared(postgres_url: str) -> Place:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
        except psycopg.Error:
            pytest.skip("install postgresql-contrib")
    return Place(postgres_url, f"test_{token_hex(6)}")


@contextmanager
def wal_of(place: Place) -> Generator[Counter[tuple[str, str]]]:
    """The number of records by table or index and by type, once the block has ended."""
    found: Counter[tuple[str, str]] = Counter()
    with psycopg.connect(str(place.at), autocommit=True) as connection:
        connection.execute("CHECKPOINT")  # also what no commit has waited for
        before = _position(connection)
        yield found
        connection.execute("CHECKPOINT")
        names = dict(connection.execute(RELATIONS, (place.schema,)).fetchall())
        for kind, blocks in connection.execute(RECORDS, (before, _position(connection))):
            for file in set(FILE.findall(blocks or "")):
                found[names.get(int(file), ""), kind] += 1


def _position(connection: psycopg.Connection) -> str:
    row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return row[0]


def records_of(found: Counter[tuple[str, str]], name: str) -> int:
    """The records of one table or index, without those of a vacuum."""
    other = ("VACUUM", "VISIBLE", "PRUNE")
    return sum(n for (table, kind), n in found.items() if table == name and kind not in other)


def observed(number: int) -> Observation:
    metadata: dict[str, JSON] = {"run_id": RUN, "tool": "bash", "call_id": "call_1"}
    return Observation(f"{RUN}.{number}", "s1", "a", EventType.TOOL_CALL, "ls", metadata)


async def test_an_observation_is_one_record_of_its_table(shared: Place) -> None:
    database = await shared.open(SCHEMA)
    try:
        store = MemoryStore(database)
        with wal_of(shared) as found:
            await store.add([observed(number) for number in range(5)])
        assert records_of(found, "memory_observations") == 5
        written = {name for name, _ in found if name.startswith("memory_")}
        assert written <= {
            "memory_observations", "memory_observations_pkey", "memory_observations_seq_seq",
            "memory_owners", "memory_ids", "memory_ages",
        }  # fmt: skip
        await store.add([observed(number) for number in (4, 5, 5)])
        for number in range(6):
            assert await store.get(f"{RUN}.{number}") == observed(number)
        count, size = await database.read(
            lambda c: c.execute(
                "SELECT count(*), max(length(rest)) FROM memory_observations"
            ).fetchone()
        )
    finally:
        await database.close()
    assert count == 6
    assert size < len(msgspec.json.encode(observed(0).metadata)) / 2


async def test_a_message_is_one_record_of_its_table(shared: Place) -> None:
    async with SessionStore(await shared.open(tables.SCHEMA)) as store:
        await store.create(Session("s1", "a"))
        run = await store.create_run("r1", "s1", "hi")
        with wal_of(shared) as found:
            messages = [(number, user(str(number))) for number in range(5)]
            await store.append(run, [], messages, RunUsage(), None)
        assert records_of(found, "messages") == 5
        await store.append(run, [], [(4, user("other")), (5, user("5"))], RunUsage(), None)
        stored = await store.messages("s1")
    texts = ("0", "1", "2", "3", "other", "5")
    assert stored == [(number, user(text)) for number, text in enumerate(texts)]


async def test_a_new_run_and_its_session_are_one_record_each(shared: Place) -> None:
    database = await shared.open(tables.SCHEMA, queue.SCHEMA, approvals.SCHEMA)
    runs = RunQueue(SessionStore(database), "holder")
    limits, entry = QueueLimits(9, 9, 9), QueuedRun(RUN, Session("s1", "a"), True, "hi", b"request")
    try:
        await runs.enqueue(
            "local", msgspec.structs.replace(entry, run_id="first"), limits, claim=True
        )
        with wal_of(shared) as found:
            new = msgspec.structs.replace(entry, session=Session("s2", "a"), key="key")
            stored = await runs.enqueue("local", new, limits, claim=True)
        assert stored.outcome is EnqueueOutcome.NEW
        again = await runs.enqueue("local", new, limits, claim=True)
        assert again.outcome is EnqueueOutcome.EXISTING and again.run is not None
    finally:
        await database.close()
    for table in ("runs", "sessions", "queue_keys", "step_writers"):
        assert records_of(found, table) == 1, table


async def test_closing_an_account_changes_no_index(shared: Place) -> None:
    async with opened_ledger(shared, lambda: 1000.0) as ledger:
        await ledger.open("run", {"calls": Limit(5)}, {})
        await ledger.flush()
        with wal_of(shared) as found:
            ledger.close("run")
            await ledger.flush()
    assert found["ledger_accounts", "HOT_UPDATE"] == 1
    assert records_of(found, "ledger_accounts_pkey") == 0


async def test_a_receipt_is_stored_without_what_its_columns_have(shared: Place) -> None:
    key = DeviceKey(bytes(range(32)))
    facts = CallFacts(
        agent_id="pi", boot_id="b" * 16, request_id=f"{RUN}.1.0.1", run_id=RUN, tenant="local",
        epoch=1, tool="bash", tool_hash="1b48985c5f7d4498", arguments={}, started_at=1.0,
        ended_at=2.0,
    )  # fmt: skip
    receipt = new_receipt(facts, {"status": "success", "result": "ok"}, key.public_key)
    chained = msgspec.structs.replace(receipt, chain="4661f6fb94de14c9", counter=7, prev="ab" * 32)
    signed = key.sign(chained)
    stored = stored_receipt(chained, signed, 3.0)
    older = msgspec.structs.replace(
        receipts.SCHEMA,
        migrations=receipts.SCHEMA.migrations[:2],
        postgres_migrations=receipts.SCHEMA.postgres_migrations[:2],
    )
    await (await shared.open(older)).close()
    async with ReceiptStore(await shared.open(receipts.SCHEMA)) as store:
        with wal_of(shared) as found:
            store.add_later(stored)
            await store.database.flush()
        assert records_of(found, "receipts") == 1
        store.add_later(stored)
        await store.add(stored)
        assert await store.list_receipts() == [stored]
        size = await store.database.read(
            lambda c: c.execute("SELECT length(body) FROM receipts").fetchone()[0]
        )
    assert size < len(signed.body) / 2
