"""The paired devices, for all orchestrators that share a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from evoclaw.store.databases.database import (
    Connection,
    Database,
    Schema,
    add_checksum,
    verify_checksum,
)

SCHEMA = Schema(
    "devices",
    (
        (
            """CREATE TABLE devices (
                agent_id TEXT PRIMARY KEY,
                state BLOB NOT NULL,
                revision INTEGER NOT NULL
            ) STRICT, WITHOUT ROWID""",
            "CREATE INDEX devices_revision ON devices (revision)",
        ),
    ),
    checksummed=(("devices", ("state",)),),
)
_PUT = """
INSERT INTO devices (agent_id, state, revision)
SELECT ?1, ?2, coalesce(max(revision), 0) + 1 FROM devices WHERE true
ON CONFLICT (agent_id) DO UPDATE SET state = excluded.state, revision = excluded.revision
"""


class DeviceStore:
    """The state of each device; every change gets a new, higher revision."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def since(self, revision: int) -> tuple[int, Mapping[str, bytes]]:
        """The last revision, and the devices that changed after a revision, by name."""

        def work(connection: Connection) -> tuple[int, dict[str, bytes]]:
            statement = "SELECT agent_id, state, revision FROM devices WHERE revision > ?"
            rows = connection.execute(statement, (revision,)).fetchall()
            found = {name: verify_checksum(state, self._database.name) for name, state, _ in rows}
            return max([number for *_, number in rows], default=revision), found

        return await self._database.read(work)

    async def change(self, agent_id: str, work: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the state of a device by the result of `work`, atomically; None leaves it."""

        def read(connection: Connection) -> bytes | None:
            statement = "SELECT state FROM devices WHERE agent_id = ?"
            row = connection.execute(statement, (agent_id,)).fetchone()
            return None if row is None else verify_checksum(row[0], self._database.name)

        def change(connection: Connection) -> None:
            after = work(read(connection))
            if after is not None:
                connection.execute(_PUT, (agent_id, add_checksum(after)))

        # Most devices are unchanged: a read is enough to see that.
        if work(await self._database.read(read)) is not None:
            await self._database.write(change)
