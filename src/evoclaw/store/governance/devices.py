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
from evoclaw.store.databases.steps import Procedure, Step

DEVICES_LOCK = "devices"
"""The name of the lock of all changes. It is held until the commit: revisions become visible in
their order, and no reader that remembers the last one misses a change."""
_PUT = """
INSERT INTO devices (agent_id, state, revision)
SELECT ?1, ?2, coalesce(max(revision), 0) + 1 FROM devices WHERE true
ON CONFLICT (agent_id) DO UPDATE SET state = excluded.state, revision = excluded.revision
"""


def _replace(connection: Connection, agent_id: str, before: bytes | None, after: bytes) -> bool:
    """Whether the device is as the caller read it, and was replaced."""
    find = "SELECT state FROM devices WHERE agent_id = ?"
    row = connection.execute(find, (agent_id,)).fetchone()
    if (None if row is None else row[0]) != before:
        return False
    connection.execute(_PUT, (agent_id, after))
    return True


REPLACE_DEVICE = Procedure(
    name="replace_device",
    sqlite=_replace,
    postgres="""
DECLARE
    now_stored bytea;
BEGIN
    SELECT state INTO now_stored FROM devices WHERE agent_id = a->>0;
    IF now_stored IS DISTINCT FROM decode(a->>1, 'base64') THEN
        RETURN to_jsonb(false);
    END IF;
    INSERT INTO devices (agent_id, state, revision)
    SELECT a->>0, decode(a->>2, 'base64'), coalesce(max(revision), 0) + 1 FROM devices
    ON CONFLICT (agent_id) DO UPDATE SET state = excluded.state, revision = excluded.revision;
    RETURN to_jsonb(true);
END
""",
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
    procedures=(REPLACE_DEVICE,),
)


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

        return await self._database.read(work, allow_stale=True)  # changes are never deferred

    async def change(self, agent_id: str, work: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the state of a device by the result of `work`, atomically; None leaves it."""

        def read(connection: Connection) -> bytes | None:
            statement = "SELECT state FROM devices WHERE agent_id = ?"
            row = connection.execute(statement, (agent_id,)).fetchone()
            return None if row is None else row[0]

        while True:
            before = await self._database.read(read)
            name = self._database.name
            after = work(None if before is None else verify_checksum(before, name))
            if after is None:
                return
            values = (agent_id, before, add_checksum(after))
            if await self._database.apply(Step(REPLACE_DEVICE, values, lock=DEVICES_LOCK)):
                return
