"""One database of many parts: files of earlier versions are taken in, damage is found."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.store.calls import command_tables
from evoclaw.store.calls.commands import CommandStore
from evoclaw.store.databases.database import DamagedStore, Schema
from evoclaw.store.databases.parts import open_database
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.sessions import Session, SessionStore
from tests.support.databases import SCHEMAS, Place
from tests.support.stores import flip

SESSIONS, COMMANDS = session_tables.SCHEMA, command_tables.SCHEMA


def old_files(home: Path) -> dict[str, Path]:
    return {SESSIONS.name: home / "sessions.db", COMMANDS.name: home / "orchestrator.db"}


def listed(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def make_old(path: Path, schema: Schema, version: int, *statements: str) -> None:
    """A file as an earlier version left it, its last writes still in the log."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA application_id={schema.mark}")
        for step in schema.steps[:version]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version={version}")
        for statement in statements:
            connection.execute(statement)


async def test_old_files_are_taken_in_once_and_set_aside(tmp_path: Path) -> None:
    async with await SessionStore.open(tmp_path / "sessions.db") as store:
        await store.create(Session("s1", "a"))
        await store.begin("r1", "s1", "hi")
    make_old(
        tmp_path / "orchestrator.db",
        COMMANDS,
        2,
        "INSERT INTO commands (request_id, agent_id, run_id, payload, state) "
        "VALUES ('c1', 'pi', 'r1', x'00000000', 'queued')",
        "INSERT INTO notes VALUES ('c1', 1.0, x'00000000')",
    )
    for _ in range(2):
        database = await open_database(tmp_path / "evoclaw.db", SCHEMAS, old=old_files(tmp_path))
        run = await SessionStore(database).run("r1")
        assert run is not None and run.asked == "hi"
        commands = CommandStore(database)
        assert [row.request_id for row in await commands.wanted("pi", 0.0)] == ["c1"]
        assert len(await commands.notes("c1")) == 1
        await database.close()
    names = sorted(file.name.partition(".taken-in-")[0] for file in listed(tmp_path))
    assert names == ["evoclaw.db", "orchestrator.db", "sessions.db"]
    assert not any(file.exists() for file in old_files(tmp_path).values())


async def test_each_part_takes_in_its_file_when_it_is_first_used(tmp_path: Path) -> None:
    async with await SessionStore.open(tmp_path / "sessions.db") as store:
        await store.create(Session("s1", "a"))
    old = old_files(tmp_path)
    await (await open_database(tmp_path / "evoclaw.db", (COMMANDS,), old=old)).close()
    assert (tmp_path / "sessions.db").exists()
    database = await open_database(tmp_path / "evoclaw.db", (SESSIONS,), old=old)
    assert await SessionStore(database).session("s1") is not None
    await database.close()
    assert not (tmp_path / "sessions.db").exists()


async def test_an_old_file_that_is_still_used_is_left_alone(tmp_path: Path) -> None:
    old = old_files(tmp_path)
    async with await SessionStore.open(tmp_path / "sessions.db") as store:
        await store.create(Session("s1", "a"))
        with pytest.raises(ConfigError, match="still used"):
            await open_database(tmp_path / "evoclaw.db", (SESSIONS,), old=old)
        await store.create(Session("s2", "a"))
    database = await open_database(tmp_path / "evoclaw.db", (SESSIONS,), old=old)
    assert await SessionStore(database).session("s2") is not None
    await database.close()


async def test_fault_27_a_damaged_old_file_is_never_begun_anew_without(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with await SessionStore.open(path) as store:
        await store.create(Session("s1", "agent-with-a-name"))
    flip(path, path.read_bytes().index(b'"agent":"agent-with') * 8 + 80)
    damaged = path.read_bytes()
    for _ in range(2):
        with pytest.raises(DamagedStore, match=r"sessions\.db"):
            await open_database(tmp_path / "evoclaw.db", (SESSIONS,), old=old_files(tmp_path))
    assert path.read_bytes() == damaged


async def test_fault_27_a_flipped_bit_is_found_by_whoever_uses_the_part(tmp_path: Path) -> None:
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


async def test_a_table_that_is_missing_is_damage(tmp_path: Path) -> None:
    place = Place(tmp_path / "evoclaw.db")
    await (await place.open()).close()
    with closing(sqlite3.connect(tmp_path / "evoclaw.db")) as connection:
        connection.execute("DROP TABLE todos")
    await (await place.open(COMMANDS)).close()
    with pytest.raises(DamagedStore, match="tables"):
        await place.open(SESSIONS)


async def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    async with await SessionStore.open(tmp_path / "evoclaw.db"):
        pass
    with pytest.raises(ConfigError, match="is not a evoclaw database"):
        await Place(tmp_path / "evoclaw.db").open()
