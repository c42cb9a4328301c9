"""Finds and deletes the rows whose encrypted values need a key that is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evoclaw.store.databases.blob_cipher import KEY_ID_BYTES, SEALED_PREFIX
from evoclaw.store.databases.database import Connection, Database, Schema


async def count_unreadable(database: Database, schemas: Sequence[Schema]) -> dict[str, int]:
    """How many rows of each table cannot be read with the key of the database."""

    def work(connection: Connection) -> dict[str, int]:
        return {
            table: connection.execute(f"SELECT count(*) FROM {rows}", values).fetchone()[0]
            for table, rows, values in _unreadable(database, schemas)
        }

    found = await database.read(work)
    return {table: count for table, count in found.items() if count}


async def delete_unreadable(database: Database, schemas: Sequence[Schema]) -> None:
    """Delete these rows, in one transaction."""

    def work(connection: Connection) -> None:
        for _, rows, values in _unreadable(database, schemas):
            connection.execute(f"DELETE FROM {rows}", values)
        for schema in schemas:
            for _, statements in schema.derived_tables if schema.sealed else ():
                for statement in statements:
                    connection.execute(statement)

    await database.write(work)


def _unreadable(
    database: Database, schemas: Sequence[Schema]
) -> Iterator[tuple[str, str, Sequence[bytes]]]:
    """Each table with encrypted columns, its rows for `FROM`, and the values of that."""
    size = len(SEALED_PREFIX)
    condition = f"(substr({{0}}, 1, {size}) = ? AND substr({{0}}, {size + 1}, {KEY_ID_BYTES}) <> ?)"
    ours = (SEALED_PREFIX, bytes.fromhex(database.cipher.key_id))
    for schema in schemas:
        for table, columns in schema.checksummed if schema.sealed else ():
            conditions = " OR ".join(condition.format(column) for column in columns)
            yield table, f"{table} WHERE {conditions}", ours * len(columns)
