"""Replaces a lost key of stored runs: what it encrypted is deleted, after a copy was kept."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from base64 import b64decode
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from evoclaw.store.databases.blob_cipher import BlobCipher


class LostData(Struct, frozen=True):
    """What cannot be read without the lost key."""

    key_id: str
    problem: str
    rows: dict[str, int]
    """By table of the store."""
    recordings: int
    """Files in the folder `runs`; they are never deleted."""


async def find_lost_data(env: Mapping[str, str]) -> LostData | None:
    """What the lost key encrypted; None if no key is lost. Changes nothing."""
    from evoclaw.store.databases.blob_cipher import BlobCipher
    from evoclaw.wiring.record_key import record_key

    key = record_key(env)
    problem = key.problem()
    present = key.path is not None and key.path.exists()
    cipher = key.load_or_create() if present else BlobCipher()
    rows = await _unreadable_rows(env, cipher, delete=False)
    recordings = await asyncio.to_thread(_count_recordings, key.folder / "runs", cipher.key_id)
    if not (problem or rows):
        return None
    text = problem or "the store has values that are encrypted with another key"
    return LostData(key.expected_id, text, rows, recordings)


async def renew_key(env: Mapping[str, str]) -> tuple[str, Path | None]:
    """Continue with a new key: the id of the key, and the copy of the old store with SQLite."""
    from evoclaw.store.databases.blob_cipher import BlobCipher
    from evoclaw.store.folder_lock import locked_folder
    from evoclaw.wiring.record_key import record_key
    from evoclaw.wiring.store import DATABASE_FILE

    key, copy = record_key(env), None
    with locked_folder(key.folder, f"`evoclaw up` runs with {key.folder}; stop it first"):
        store = key.folder / DATABASE_FILE
        if store.exists():
            copy = store.with_name(f"{DATABASE_FILE}.key-{key.expected_id or 'unknown'}")
            await asyncio.to_thread(_copy_store, store, copy)
        cipher = key.load_or_create() if key.seals else BlobCipher()
        await _unreadable_rows(env, cipher, delete=True)
        key.remember(cipher)  # last: until then the old key counts as lost
    return cipher.key_id, copy


async def _unreadable_rows(
    env: Mapping[str, str], cipher: BlobCipher, *, delete: bool
) -> dict[str, int]:
    from evoclaw.store.databases.unreadable_rows import count_unreadable, delete_unreadable
    from evoclaw.wiring.store import all_schemas, connect_database

    schemas = all_schemas()
    async with connect_database(env, *schemas, cipher=cipher) as database:
        if delete:
            await delete_unreadable(database, schemas)
        return await count_unreadable(database, schemas)


def _copy_store(store: Path, copy: Path) -> None:
    """Copy the SQLite file with its write-ahead log; readable by its owner only."""
    os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def _count_recordings(folder: Path, key_id: str) -> int:
    from evoclaw.store.databases.blob_cipher import (
        SEALED_LINE_END,
        SEALED_LINE_START,
        is_sealed_line,
        sealed_with,
    )

    count = 0
    for path in folder.glob("*.jsonl"):
        with path.open("rb") as file:
            line = file.readline().rstrip(b"\n")
        if is_sealed_line(line):
            inner = line.removeprefix(SEALED_LINE_START).removesuffix(SEALED_LINE_END)
            count += sealed_with(b64decode(inner)) != key_id
    return count
