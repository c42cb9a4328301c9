"""What runs hold is encrypted where there is a key, and readable as before where there was none."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import RecordingError
from evoclaw.core.events import Record, TextDelta
from evoclaw.core.messages import user
from evoclaw.store.calls import command_tables
from evoclaw.store.calls.commands import CommandStore
from evoclaw.store.databases.blob_cipher import BlobCipher, SealedValue
from evoclaw.store.databases.database import StoreError
from evoclaw.store.databases.export_import import export_to, import_from
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.sessions import tables
from evoclaw.store.sessions.recordings import Recording, read_recording, reopen_recording
from evoclaw.store.sessions.sessions import SessionStore
from evoclaw.store.sessions.tables import RunUsage, Session

SECRET = "hunter2-and-more"
KEY, OTHER = BlobCipher(b"k" * 32, "a.key"), BlobCipher(b"o" * 32, "b.key")


def test_a_value_can_be_read_with_its_key_only() -> None:
    sealed = KEY.seal(SECRET.encode())
    assert SECRET.encode() not in sealed
    assert KEY.open(sealed, "x") == SECRET.encode()
    assert KEY.seal(SECRET.encode()) == sealed, "so that a repeated value is recognised"
    for other, problem in ((OTHER, "b.key is another one"), (BlobCipher(), "has no key")):
        with pytest.raises(SealedValue, match=problem):
            other.open(sealed, "x")
    assert KEY.open(b'{"plain":1}', "x") == b'{"plain":1}', "as from before there was a key"
    reading = BlobCipher(b"k" * 32, seals=False)
    assert reading.seal(b"a") == b"a" and reading.open(sealed, "x") == SECRET.encode()


def test_a_changed_value_is_refused() -> None:
    sealed = bytearray(KEY.seal(SECRET.encode()))
    sealed[-1] ^= 1
    with pytest.raises(SealedValue):
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
