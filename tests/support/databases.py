"""Where the tests of the stores keep things: in a file, or in a schema of a PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from evoclaw.store.calls import command_tables, receipts
from evoclaw.store.databases.blob_cipher import BlobCipher
from evoclaw.store.databases.database import Database, Schema
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.governance import approvals, ledger
from evoclaw.store.governance.ledger import StoredLedger
from evoclaw.store.sessions import tables as session_tables

SCHEMAS = (
    session_tables.SCHEMA,
    command_tables.SCHEMA,
    approvals.SCHEMA,
    ledger.SCHEMA,
    receipts.SCHEMA,
)


@dataclass(frozen=True)
class Place:
    """One database, which may be opened more than once."""

    at: Path | str
    schema: str = "evoclaw"

    @classmethod
    def of(cls, at: str, schema: str) -> Place:
        """The same one, as another process was told of it."""
        return cls(at if "://" in at else Path(at), schema)

    @property
    def is_file(self) -> bool:
        """Whether it is SQLite's."""
        return isinstance(self.at, Path)

    async def open(
        self,
        *schemas: Schema,
        durable: bool = False,
        patience: float = 5.0,
        cipher: BlobCipher | None = None,
    ) -> Database:
        """Open it, for these kinds of store or for all."""
        return await open_database(
            self.at,
            schemas or SCHEMAS,
            schema=self.schema,
            durable=durable,
            reconnect_timeout_s=patience,
            cipher=cipher,
        )


@asynccontextmanager
async def opened_ledger(place: Place, clock: Callable[[], float]) -> AsyncGenerator[StoredLedger]:
    """A ledger in a database that holds more than it."""
    database = await place.open(ledger.SCHEMA)
    try:
        async with StoredLedger(database, clock) as books:
            await books.start()
            yield books
    finally:
        await database.close()


def hold_deferred_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit only when a caller waits: on a busy machine the timers of both databases are early."""
    module = "evoclaw.store.databases"
    monkeypatch.setattr(f"{module}.sqlite_worker.DEFERRED_COMMIT_DELAY_S", 60.0)
    monkeypatch.setattr(f"{module}.postgres_steps.DEFERRED_STEP_DELAY_S", 60.0)
