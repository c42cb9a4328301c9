"""What runs hold is encrypted where there is a key, and readable as before where there was none."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.canvases import CanvasSheet
from evoclaw.core.errors import RecordingError
from evoclaw.core.events import Record, TextDelta
from evoclaw.core.messages import user
from evoclaw.store import channels
from evoclaw.store.calls import command_tables
from evoclaw.store.calls.commands import CommandStore
from evoclaw.store.calls.journal import CallState, Journal, JournalEntry
from evoclaw.store.channels import ChannelStore, NewInboundMessage
from evoclaw.store.databases.blob_cipher import BlobCipher, SealedValue
from evoclaw.store.databases.database import Database, StoreError
from evoclaw.store.databases.export_import import export_to, import_from
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.databases.unreadable_rows import count_unreadable, delete_unreadable
from evoclaw.store.governance import approvals
from evoclaw.store.governance.approvals import ApprovalClaim, ApprovalStore, StoredApproval
from evoclaw.store.runs import queue
from evoclaw.store.runs.inbox import Inbox
from evoclaw.store.sessions import canvases, ratings, tables
from evoclaw.store.sessions.canvases import StoredCanvases
from evoclaw.store.sessions.ratings import RatingStore
from evoclaw.store.sessions.recordings import Recording, read_recording, reopen_recording
from evoclaw.store.sessions.sessions import SessionStore
from evoclaw.store.sessions.tables import RunUsage, Session
from evoclaw.store.workflows import tables as workflow_tables
from evoclaw.store.workflows.tables import NewWorkflow, WorkflowUpdate
from evoclaw.store.workflows.workflows import WorkflowStore
from tests.support.databases import Place

SECRET = "hunter2-and-more"
KEY, OTHER = BlobCipher(b"k" * 32, "a.key"), BlobCipher(b"o" * 32, "b.key")


def test_a_value_can_be_read_with_its_key_only() -> None:
    sealed = KEY.seal(SECRET.encode())
    assert SECRET.encode() not in sealed
    assert KEY.open(sealed, "x") == SECRET.encode()
    assert KEY.seal(SECRET.encode()) == sealed, "so that a repeated value is recognised"
    for other, problem in ((OTHER, "b.key is another one"), (BlobCipher(), "there is no key")):
        with pytest.raises(SealedValue, match=problem):
            other.open(sealed, "x")
    assert KEY.open(b'{"plain":1}', "x") == b'{"plain":1}', "as from before there was a key"
    reading = BlobCipher(b"k" * 32, seals=False)
    assert reading.seal(b"a") == b"a" and reading.open(sealed, "x") == SECRET.encode()


def test_a_changed_value_is_refused() -> None:
    sealed = bytearray(KEY.seal(SECRET.encode()))
    sealed[-1] ^= 1
    with pytest.raises(SealedValue, match="changed or damaged"):
        KEY.open(bytes(sealed), "x")


def _records(text: str) -> list[Record]:
    return [Record("r1", seq, 0.5, TextDelta(f"{text} {seq}")) for seq in range(1, 4)]


def test_a_recording_is_encrypted_line_by_line_and_continued_as_it_was_started(
    tmp_path: Path,
) -> None:
    records = _records(SECRET)
    for name, cipher in (("sealed", KEY), ("plain", BlobCipher())):
        path = tmp_path / name
        recording = Recording(path, cipher=cipher)
        for record in records:
            recording.receive(record)
        recording.close()
        assert (SECRET.encode() in path.read_bytes()) == (name == "plain")
        assert read_recording(path, cipher=KEY) == records
        found, again = reopen_recording(path, cipher=KEY)
        again.receive(records[0])
        again.close()
        assert found == records
        kinds = {line.startswith(b'{"sealed"') for line in path.read_bytes().splitlines()}
        assert kinds == {name == "sealed"}
        assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(RecordingError, match="key"):
        read_recording(tmp_path / "sealed")


async def test_sessions_and_commands_are_stored_encrypted_and_exported_plain(
    tmp_path: Path,
) -> None:
    schemas = (tables.SCHEMA, command_tables.SCHEMA)
    database = await open_database(tmp_path / "a.db", schemas=schemas, cipher=KEY)
    sessions, commands = SessionStore(database), CommandStore(database)
    await sessions.create(Session("s1", "a"))
    run = await sessions.create_run("r1", "s1", SECRET)
    await sessions.append(run, _records(SECRET), [(0, user(SECRET))], RunUsage(), None)
    await commands.put("c1", "pi", "r1", SECRET.encode(), 1e12)
    assert await commands.settle("c1", "pi", SECRET.encode()) == "first"
    assert await commands.settle("c1", "pi", SECRET.encode()) == "again"
    assert await commands.late_outcomes("c1") == [], "the same outcome is no news"
    assert await sessions.records("r1") == _records(SECRET)
    row = await commands.get("c1")
    assert row is not None and row.outcome == SECRET.encode()
    await export_to(tmp_path / "export.zip", database, schemas)
    await database.close()
    assert SECRET.encode() not in (tmp_path / "a.db").read_bytes()

    other = await open_database(tmp_path / "b.db", schemas=schemas)
    await import_from(tmp_path / "export.zip", other, schemas)
    assert await SessionStore(other).messages("s1") == [(0, user(SECRET))]
    await other.close()

    without = await open_database(tmp_path / "a.db", schemas=schemas)
    with pytest.raises((SealedValue, StoreError), match="key"):
        await SessionStore(without).messages("s1")
    await without.close()


SCHEMAS = (
    tables.SCHEMA,
    queue.SCHEMA,
    approvals.SCHEMA,
    workflow_tables.SCHEMA,
    channels.SCHEMA,
    canvases.SCHEMA,
    ratings.SCHEMA,
)


async def _store_everywhere(database: Database) -> None:
    """Store the secret in every column that holds what users, models or tools wrote."""
    secret = SECRET.encode()
    sessions = SessionStore(database)
    await sessions.create(Session("s1", "a", title=SECRET))
    await sessions.create_run("r1", "s1", SECRET, run_request=secret)
    await sessions.put_todos("s1", secret)
    await sessions.questions.ask("q1", "s1", secret)
    await sessions.questions.answer("q1", secret)
    await Inbox(sessions).add_message("local", "r1", secret)
    asked = StoredApproval("a1", "local", "r1.1.0.1", "sha", "scope", secret, 1e12)
    await ApprovalStore(database).claim(ApprovalClaim(asked, 1, "us"))
    await ApprovalStore(database).answer("a1", "local", "once", secret)
    workflows = WorkflowStore(database)
    await workflows.create(NewWorkflow("w1", "w", "digest", secret, secret))
    await workflows.claim("us", 60, 1)
    await workflows.append("w1", "us", 1, [secret], WorkflowUpdate("completed", secret))
    letters = ChannelStore(database)
    new = NewInboundMessage("local", "mail", "ann", "m1", "c", "sha", secret, "s1")
    letter, _ = await letters.add_message(new)
    await letters.add_delivery(letter, "d1", secret)
    await RatingStore(database).put("local", "s1", "r1", secret)
    await StoredCanvases(database, "here").of("local", "s1").show(CanvasSheet(SECRET, "html"))


async def _read_everywhere(database: Database) -> list[object]:
    sessions, workflows = SessionStore(database), WorkflowStore(database)
    question = await sessions.questions.get("q1")
    approval = await ApprovalStore(database).get("a1", "local")
    session, workflow = await sessions.session("s1"), await workflows.get("w1")
    (delivery,) = await ChannelStore(database).deliveries("local", "due")
    sheet = await StoredCanvases(database, "here").of("local", "s1").current()
    assert question and approval and session and workflow and sheet
    return [
        *(session.title.encode(), await sessions.todos("s1"), question.question, question.answer),
        *(await Inbox(sessions).messages("local", "r1"), approval.asked, approval.answer),
        *(workflow.plan, workflow.outcome, [e.event for e in await workflows.events("w1")]),
        *(delivery.answer, delivery.message, sheet.content.encode()),
    ]


async def test_what_users_models_and_tools_wrote_is_encrypted_in_every_table(
    tmp_path: Path,
) -> None:
    secret = SECRET.encode()
    expected = [
        *(secret, secret, secret, secret, [secret], secret, secret, secret, secret),
        *([secret, secret], secret, secret, secret),
    ]
    for name, writer in (("plain", BlobCipher()), ("sealed", KEY)):
        file = tmp_path / name
        database = await open_database(file, schemas=SCHEMAS, cipher=writer)
        await _store_everywhere(database)
        await database.close()
        assert (secret in file.read_bytes()) == (name == "plain")
        database = await open_database(file, schemas=SCHEMAS, cipher=KEY)
        assert await _read_everywhere(database) == expected, "also what was stored before the key"
        await export_to(tmp_path / f"{name}.zip", database, SCHEMAS)
        await database.close()

    database = await open_database(tmp_path / "imported", schemas=SCHEMAS, cipher=KEY)
    await import_from(tmp_path / "plain.zip", database, SCHEMAS)
    assert await _read_everywhere(database) == expected
    await database.close()
    assert secret not in (tmp_path / "imported").read_bytes(), "an import is encrypted, too"


async def test_only_the_rows_of_a_lost_key_are_found_and_deleted(place: Place) -> None:
    database = await place.open(*SCHEMAS, cipher=OTHER)
    await _store_everywhere(database)
    await database.close()
    database = await place.open(*SCHEMAS, cipher=KEY)
    try:
        await SessionStore(database).create(Session("s2", "a", title=SECRET))
        found = await count_unreadable(database, SCHEMAS)
        sealed = {table for schema in SCHEMAS for table, _ in schema.checksummed}
        assert found == dict.fromkeys(sealed - {"records", "messages", "tool_lists"}, 1) | {
            "workflow_events": 2
        }
        await delete_unreadable(database, SCHEMAS)
        assert await count_unreadable(database, SCHEMAS) == {}
        assert await SessionStore(database).session("s1") is None
        assert await SessionStore(database).session("s2") is not None
    finally:
        await database.close()


async def test_the_journal_of_an_edge_encrypts_commands_and_reports(tmp_path: Path) -> None:
    secret, path = SECRET.encode(), tmp_path / "journal.db"
    async with await Journal.open(path, cipher=KEY) as journal:
        await journal.receive(JournalEntry("c1", "r1", 1, "digest", secret), start="boot")
        await journal.finish("c1", CallState.SUCCEEDED, secret)
        row = await journal.get("c1")
        assert row is not None and (row.command, row.report) == (secret, secret)
    assert secret not in path.read_bytes()
    async with await Journal.open(path, cipher=OTHER) as journal:
        with pytest.raises(SealedValue, match=f"the key {KEY.key_id}"):
            await journal.get("c1")
