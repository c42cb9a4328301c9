"""Opens the one database of the orchestrator, and the stores in it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Required, TypedDict

if TYPE_CHECKING:
    from evoclaw.orchestrator.overview.metrics import MetricsReader
    from evoclaw.store.calls.commands import CommandStore
    from evoclaw.store.calls.receipts import ReceiptStore
    from evoclaw.store.databases.database import Database, Schema
    from evoclaw.store.databases.moving import Manifest
    from evoclaw.store.governing.approvals import ApprovalStore
    from evoclaw.store.governing.ledger import StoredLedger
    from evoclaw.store.sessions.sessions import SessionStore
    from evoclaw.trust.pairing import Devices

FILE = "evoclaw.db"
"""The SQLite database, in the data folder."""
PASSWORD = "EVOCLAW_STORE_PASSWORD"


@dataclass(frozen=True, slots=True)
class Stored:
    """The stores of an orchestrator, all in one database."""

    database: Database
    """For the stores that are not listed here; every schema is applied to it."""
    sessions: SessionStore
    commands: CommandStore
    approvals: ApprovalStore
    ledger: StoredLedger
    receipts: ReceiptStore
    devices: Devices
    """The edges that joined; beside SQLite they are in a folder of their own."""


@asynccontextmanager
async def open_store(env: Mapping[str, str]) -> AsyncGenerator[Stored]:
    """Open every store over one connection, so that related writes share a transaction."""
    from evoclaw.store.calls.commands import CommandStore
    from evoclaw.store.calls.receipts import ReceiptStore
    from evoclaw.store.governing.approvals import ApprovalStore
    from evoclaw.store.governing.ledger import StoredLedger
    from evoclaw.store.sessions.sessions import SessionStore

    async with (
        opened(env, *every_part()) as database,
        open_devices(env, database=database) as devices,
    ):
        approvals = ApprovalStore(database)
        await approvals.tidy()
        # No wait for the disk here: `flush` in runtime.py waits before the reserved work starts.
        async with StoredLedger(database, clock_of(database), wait=False) as ledger:
            await ledger.begin()
            yield Stored(
                database,
                SessionStore(database),
                CommandStore(database),
                approvals,
                ledger,
                ReceiptStore(database),
                devices,
            )


def clock_of(database: Database) -> Callable[[], float]:
    """The clock of a database: the PostgreSQL server's, or that of this machine for SQLite."""
    if database.dialect == "sqlite":
        return time.time
    from evoclaw.store.databases.postgres import PostgresDatabase

    return database.time if isinstance(database, PostgresDatabase) else time.time


@asynccontextmanager
async def open_devices(
    env: Mapping[str, str], *, database: Database | None = None
) -> AsyncGenerator[Devices]:
    """The edges that joined: in the data folder, or in a shared PostgreSQL."""
    from evoclaw.config.places import default_data_folder
    from evoclaw.store.governing.devices import SCHEMA, DeviceStore
    from evoclaw.trust.pairing import Devices
    from evoclaw.trust.shared_devices import SharedBook
    from evoclaw.wiring.settings import orchestrator_settings

    folder = default_data_folder(env) / "pairing"
    if not orchestrator_settings(env).store.url:
        yield Devices(folder)
        return
    async with opened(env, SCHEMA, given=database) as connected:
        devices = SharedBook(DeviceStore(connected))
        await devices.take_in(folder)
        await devices.look()
        yield Devices(devices)


@asynccontextmanager
async def open_sessions(env: Mapping[str, str]) -> AsyncGenerator[SessionStore]:
    """The session store alone, for a process that needs no other store."""
    from evoclaw.store.runs import queue
    from evoclaw.store.sessions import tables as session_tables
    from evoclaw.store.sessions.sessions import SessionStore

    async with opened(env, session_tables.SCHEMA, queue.SCHEMA) as database:
        yield SessionStore(database)


@asynccontextmanager
async def open_figures(env: Mapping[str, str]) -> AsyncGenerator[MetricsReader]:
    """The metrics of stored records, for a process that only reads them."""
    from evoclaw.orchestrator.overview.metrics import MetricsReader
    from evoclaw.store.metrics import tables as metrics_tables
    from evoclaw.store.metrics.store import MetricsStore
    from evoclaw.store.sessions import tables as session_tables

    async with opened(env, session_tables.SCHEMA, metrics_tables.SCHEMA) as database:
        yield MetricsReader(MetricsStore(database))


@asynccontextmanager
async def open_moving(env: Mapping[str, str]) -> AsyncGenerator[Moving]:
    """The whole store, to be exported or imported."""
    parts = every_part()
    async with opened(env, *parts) as database:
        yield Moving(database, parts)


@dataclass(frozen=True, slots=True)
class Moving:
    """Exports and imports the whole store."""

    database: Database
    parts: tuple[Schema, ...]

    async def write(self, file: Path, *, tenant: str = "") -> Manifest:
        """Write everything, or the data of one tenant, into a new file."""
        from evoclaw.store.databases.moving import export_to

        return await export_to(file, self.database, self.parts, tenant=tenant)

    async def read(self, file: Path, *, existing: Literal["refuse", "keep"] = "refuse") -> Manifest:
        """Read a file that `export_to` wrote: all of it, or nothing."""
        from evoclaw.store.databases.moving import import_from

        return await import_from(file, self.database, self.parts, existing=existing)


def every_part() -> tuple[Schema, ...]:
    """The schema of every store of an orchestrator."""
    from evoclaw.store import channels, memory
    from evoclaw.store.calls import command_tables, receipts
    from evoclaw.store.governing import approvals, devices, ledger, rates, stops, tokens
    from evoclaw.store.metrics import tables as metrics_tables
    from evoclaw.store.runs import queue
    from evoclaw.store.sessions import sheets
    from evoclaw.store.sessions import tables as session_tables
    from evoclaw.store.workflows import tables as workflow_tables

    return (
        session_tables.SCHEMA,
        command_tables.SCHEMA,
        approvals.SCHEMA,
        ledger.SCHEMA,
        receipts.SCHEMA,
        queue.SCHEMA,
        memory.SCHEMA,
        workflow_tables.SCHEMA,
        tokens.SCHEMA,
        channels.SCHEMA,
        metrics_tables.SCHEMA,
        sheets.SCHEMA,
        rates.SCHEMA,
        devices.SCHEMA,
        stops.SCHEMA,
    )


@asynccontextmanager
async def opened(
    env: Mapping[str, str],
    *parts: Schema,
    given: Database | None = None,
    durable: bool = True,
) -> AsyncGenerator[Database]:
    """Connect to the database, or use the connection that this process has already.

    Args:
        env: Says where the settings of the store are.
        parts: The schemas that are used.
        given: A connection that is open already; it is not closed here.
        durable: Whether a write survives a power cut once it has returned.
    """
    if given is not None:
        yield given
        return
    from evoclaw.store.databases.parts import open_database

    database = await open_database(**_where(env), schemas=parts, durable=durable)
    try:
        yield database
    finally:
        await database.close()


class _Where(TypedDict, total=False):
    place: Required[Path | str]
    schema: str
    password: str


def _where(env: Mapping[str, str]) -> _Where:
    from evoclaw.config.places import default_data_folder
    from evoclaw.wiring.settings import orchestrator_settings

    home, settings = default_data_folder(env), orchestrator_settings(env).store
    if not settings.url:
        return _Where(place=home / FILE)
    from evoclaw.store.databases.postgres_link import read_password

    password = env.get(PASSWORD, "")
    if settings.password_file:
        password = read_password(settings.password_file)
    return _Where(place=settings.url, schema=settings.schema, password=password)
