"""One database of many parts: each is used by itself, and damage is found."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.store.calls import command_tables
from evoclaw.store.databases.database import DamagedStore
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.sessions import Session, SessionStore
from tests.support.databases import SCHEMAS, Place
from tests.support.stores import flip

SESSIONS, COMMANDS = session_tables.SCHEMA, command_tables.SCHEMA


def listed(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_fault_27_a_flipped_bit_is_found_when_its_schema_is_opened(tmp_path: Path) -> None:
    place = Place(tmp_path / "evoclaw.db")
    database = await place.open()
    await SessionStore(database).create(Session("s1", "agent-with-a-name"))
    await database.close()
    path = tmp_path / "evoclaw.db"
    flip(path, path.read_bytes().index(b'"agent":"agent-with') * 8 + 80)
    await (await place.open(COMMANDS)).close()
    with pytest.raises(DamagedStore):
        await place.open(SESSIONS)
    with pytest.raises(DamagedStore):
        await place.open()
    database = await open_database(path, SCHEMAS, set_aside=True)
    assert await SessionStore(database).session("s1") is None
    await database.close()
    assert any(".damaged-" in file.name for file in listed(tmp_path))


async def test_a_missing_table_is_reported_as_damage(tmp_path: Path) -> None:
    place = Place(tmp_path / "evoclaw.db")
    await (await place.open()).close()
    with closing(sqlite3.connect(tmp_path / "evoclaw.db")) as connection:
        connection.execute("DROP TABLE todos")
    await (await place.open(COMMANDS)).close()
    with pytest.raises(DamagedStore, match="tables"):
        await place.open(SESSIONS)


async def test_a_file_with_another_application_id_is_refused(tmp_path: Path) -> None:
    async with await SessionStore.open(tmp_path / "evoclaw.db"):
        pass
    with pytest.raises(ConfigError, match="is not a file of kind .evoclaw database."):
        await Place(tmp_path / "evoclaw.db").open()
