"""Everything as one file: the same from every database, whole or not at all."""

from __future__ import annotations

import zipfile
from pathlib import Path
from secrets import token_hex

import pytest

from evoclaw.core.commands import CommandPutKind
from evoclaw.core.events import Record, Replied, StopReason
from evoclaw.core.ledgers import Limit, Reservation
from evoclaw.core.messages import Reply, user
from evoclaw.store.calls.commands import CommandStore, QueueFull
from evoclaw.store.calls.receipts import ReceiptStore, StoredReceipt
from evoclaw.store.databases.database import Database
from evoclaw.store.databases.export_import import (
    MANIFEST_NAME,
    ImportRefused,
    export_to,
    import_from,
)
from evoclaw.store.governance.approvals import ApprovalClaim, ApprovalStore, StoredApproval
from evoclaw.store.governance.ledger import StoredLedger
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore
from tests.support.databases import SCHEMAS, Place


def now() -> float:
    return 1234.000001


async def fill(database: Database, tenant: str, runs: int = 3) -> None:
    """Something in every kind of store."""
    store = SessionStore(database, now, tenant)
    await store.create(Session("same", "ägent\n", "ann", "Title 🙂", capabilities=frozenset("ab")))
    for number in range(runs):
        run = await store.create_run(f"r{number}", "same", f"asked {number}", run_request=b"\0\xff")
        records = [
            Record(run.id, seq, 0.1 + seq, Replied(Reply(f"{tenant} {seq}"))) for seq in range(1, 9)
        ]
        cost = None if number else 0.30000000000000004
        said = [(number, user(f"{tenant} {number}"))]
        await store.append(
            run, records, said, RunUsage(1, 2, 1 << 40, 4, cost), StopReason.COMPLETED
        )
    await store.put_todos("same", b"[]")
    await store.questions.ask("r0.1", "same", b"?")
    await store.questions.answer("r0.1", b"!")
    commands = CommandStore(database, now)
    for number in range(3):
        await commands.put(f"{tenant}.{number}", "pi", "r0", bytes(range(256)), None, tenant=tenant)
    await commands.settle(f"{tenant}.0", "pi", b"outcome")
    await commands.settle(f"{tenant}.0", "pi", b"too late")
    row = StoredApproval(f"{tenant}-1", tenant, "r0.1.1", "sha", "scope", b"asked", 1e12)
    await ApprovalStore(database, now).claim(ApprovalClaim(row, 1, "us"))
    async with StoredLedger(database, now) as ledger:
        await ledger.start()
        await ledger.open(tenant, {"calls": Limit(10)}, {})
        assert isinstance(await ledger.reserve((tenant,), {"calls": 2}, f"{tenant}.h"), Reservation)
    receipts = ReceiptStore(database, now)
    await receipts.pin(f"{tenant}-pi", "key", "pairing")
    await receipts.add(
        StoredReceipt(
            "pi", "chain", 1, f"hash{tenant}", "", "r0.1", "r0", tenant, 1.5, "body", "signed"
        )
    )


async def moved(source: Place, file: Path, tenant: str = "") -> None:
    database = await source.open()
    try:
        await export_to(file, database, SCHEMAS, tenant=tenant)
    finally:
        await database.close()


async def taken_in(place: Place, file: Path, *, keep: bool = False) -> None:
    database = await place.open()
    try:
        await import_from(file, database, SCHEMAS, existing="keep" if keep else "refuse")
    finally:
        await database.close()


async def test_exports_round_trip_byte_for_byte_between_sqlite_and_postgres(
    tmp_path: Path, postgres_url: str
) -> None:
    first, second, third = (tmp_path / f"{n}.zip" for n in range(3))
    source = Place(tmp_path / "source.db")
    between, back = Place(postgres_url, f"test_{token_hex(6)}"), Place(tmp_path / "back.db")
    database = await source.open()
    for tenant in ("local", "acme"):
        await fill(database, tenant)
    await database.close()
    await moved(source, first)
    await taken_in(between, first)
    await moved(between, second)
    await taken_in(back, second)
    await moved(back, third)
    assert first.read_bytes() == second.read_bytes() == third.read_bytes()
    assert first.stat().st_mode & 0o777 == 0o600


async def test_an_imported_store_can_be_used_and_extended(place: Place, tmp_path: Path) -> None:
    source, file = Place(tmp_path / "source.db"), tmp_path / "all.zip"
    database = await source.open()
    await fill(database, "local")
    await database.close()
    await moved(source, file)
    await taken_in(place, file)
    database = await place.open()
    store = SessionStore(database, now)
    assert [run.id for run in await store.runs()] == ["r2", "r1", "r0"]
    assert await store.run_request("r1") == b"\0\xff"
    assert len(await store.records("r1")) == 8
    await store.create_run("r3", "same", "more")
    assert [run.id for run in await store.runs()] == ["r3", "r2", "r1", "r0"], "behind the others"
    commands = CommandStore(database, now)
    with pytest.raises(QueueFull):
        await commands.put("new", "pi", "r", b"", None, cap=2)
    assert (await commands.put("new", "pi", "r", b"", None, cap=3)).kind is CommandPutKind.NEW
    assert [note.outcome for note in await commands.late_outcomes("local.0")] == [b"too late"]
    await database.close()


async def test_one_tenant_can_be_imported_next_to_other_tenants(
    place: Place, tmp_path: Path
) -> None:
    source, file = Place(tmp_path / "source.db"), tmp_path / "acme.zip"
    database = await source.open()
    for tenant in ("local", "acme"):
        await fill(database, tenant)
    await database.close()
    await moved(source, file, "acme")
    assert b"local 1" not in b"".join(
        zipfile.ZipFile(file).read(name) for name in zipfile.ZipFile(file).namelist()
    )
    database = await place.open()
    await fill(database, "other", runs=5)
    await database.close()
    await taken_in(place, file)
    with pytest.raises(ImportRefused, match="already"):
        await taken_in(place, file)
    await taken_in(place, file, keep=True)
    database = await place.open()
    for tenant, count in (("acme", 3), ("other", 5)):
        store = SessionStore(database, now, tenant)
        runs = await store.runs()
        assert [run.id for run in runs] == [f"r{n}" for n in reversed(range(count))]
        last = await store.last_record("r1")
        assert last is not None and isinstance(last.event, Replied)
        assert last.event.reply.text == f"{tenant} 8"
    assert len(await CommandStore(database).of("acme").waiting()) == 2
    await database.close()


@pytest.mark.parametrize("harm", ["row", "cut", "version", "missing"])
async def test_a_damaged_export_file_is_refused_and_changes_nothing(
    place: Place, tmp_path: Path, harm: str
) -> None:
    source, file = Place(tmp_path / "source.db"), tmp_path / "all.zip"
    database = await source.open()
    await fill(database, "local")
    await database.close()
    await moved(source, file)
    bad = tmp_path / "bad.zip"
    if harm == "cut":
        bad.write_bytes(file.read_bytes()[:-200])
    else:
        with zipfile.ZipFile(file) as old, zipfile.ZipFile(bad, "w") as new:
            for name in old.namelist():
                data = old.read(name)
                if harm == "row" and name.endswith("/records.jsonl"):
                    data = data.replace(b"b64", b"b46", 1)
                if harm == "version" and name == MANIFEST_NAME:
                    data = data.replace(b'"version":1', b'"version":9')
                if not (harm == "missing" and name.endswith("/runs.jsonl")):
                    new.writestr(name, data)
    with pytest.raises(ImportRefused):
        await taken_in(place, bad)
    database = await place.open()
    assert await SessionStore(database).runs() == []
    await database.close()
