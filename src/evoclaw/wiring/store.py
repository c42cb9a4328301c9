"""Opens the one database of the orchestrator, and the stores in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Required, TypedDict

if TYPE_CHECKING:
    from evoclaw.orchestrator.overview.metrics import MetricsReader
    from evoclaw.store.calls.commands import CommandStore
    from evoclaw.store.calls.receipts import ReceiptStore
    from evoclaw.store.databases.blob_cipher import BlobCipher
    from evoclaw.store.databases.database import Database, Schema
    from evoclaw.store.governance.approvals import ApprovalStore
    from evoclaw.store.governance.ledger import StoredLedger
    from evoclaw.store.sessions.sessions import SessionStore
    from evoclaw.trust.pairing import Devices

DATABASE_FILE = "evoclaw.db"
"""The SQLite database, in the data folder."""
PASSWORD_VARIABLE = "EVOCLAW_STORE_PASSWORD"


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of an orchestrator, all in one database."""

    database: Database
    """For the stores that are not listed here; every schema is applied to it."""
    sessions: SessionStore
    commands: CommandStore
    approvals: ApprovalStore
    ledger: StoredLedger
    receipts: ReceiptStore
    devices: Devices
    """The edges that joined; with SQLite they are in a folder of their own."""


@asynccontextmanager
async def open_stores(env: Mapping[str, str]) -> AsyncGenerator[Stores]:
    """Open every store over one connection, so that related writes share a transaction."""
    from evoclaw.store.calls.commands import CommandStore
    from evoclaw.store.calls.receipts import ReceiptStore
    from evoclaw.store.governance.approvals import ApprovalStore
    from evoclaw.store.governance.ledger import StoredLedger
    from evoclaw.store.sessions.sessions import SessionStore
    from evoclaw.wiring.record_key import check_shared_key

    async with (
        connect_database(env, *all_schemas()) as database,
        open_devices(env, database=database) as devices,
    ):
        await check_shared_key(database)
        approvals = ApprovalStore(database)
        await approvals.prune()
        # No wait for the disk here: `Database.flush` is awaited before the reserved work starts.
        async with StoredLedger(database, database.time, wait=False) as ledger:
            await ledger.start()
            yield Stores(
                database,
                SessionStore(database),
                CommandStore(database),
                approvals,
                ledger,
                ReceiptStore(database),
                devices,
            )


@asynccontextmanager
async def open_devices(
    env: Mapping[str, str], *, database: Database | None = None
) -> AsyncGenerator[Devices]:
    """The edges that joined: in the data folder, or in a shared PostgreSQL."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.orchestrator.fleet.shared_devices import SharedDeviceRepository
    from evoclaw.store.governance.devices import SCHEMA, DeviceStore
    from evoclaw.trust.pairing import Devices
    from evoclaw.wiring.settings import orchestrator_settings

    folder = default_data_folder(env) / "pairing"
    if not orchestrator_settings(env).store.url:
        yield Devices(folder)
        return
    async with connect_database(env, SCHEMA, existing=database) as connected:
        devices = SharedDeviceRepository(DeviceStore(connected))
        await devices.import_folder(folder)
        await devices.refresh()
        yield Devices(devices)


@asynccontextmanager
async def open_sessions(env: Mapping[str, str]) -> AsyncGenerator[SessionStore]:
    """The session store alone, for a process that needs no other store."""
    from evoclaw.store.runs import queue
    from evoclaw.store.sessions import tables as session_tables
    from evoclaw.store.sessions.sessions import SessionStore

    async with connect_database(env, session_tables.SCHEMA, queue.SCHEMA) as database:
        yield SessionStore(database)


@asynccontextmanager
async def open_metrics(env: Mapping[str, str]) -> AsyncGenerator[MetricsReader]:
    """The metrics of stored records, for a process that only reads them."""
    from evoclaw.orchestrator.overview.metrics import MetricsReader
    from evoclaw.store.metrics import tables as metrics_tables
    from evoclaw.store.metrics.store import MetricsStore
    from evoclaw.store.sessions import tables as session_tables

    async with connect_database(env, session_tables.SCHEMA, metrics_tables.SCHEMA) as database:
        yield MetricsReader(MetricsStore(database))


def all_schemas() -> tuple[Schema, ...]:
    """The schema of every store of an orchestrator."""
    from evoclaw.store import channels, evaluations, genomes, memory, notifications
    from evoclaw.store.calls import command_tables, receipts
    from evoclaw.store.governance import approvals, devices, ledger, rates, stops, tokens
    from evoclaw.store.metrics import tables as metrics_tables
    from evoclaw.store.runs import queue
    from evoclaw.store.sessions import canvases, ratings
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
        canvases.SCHEMA,
        ratings.SCHEMA,
        rates.SCHEMA,
        devices.SCHEMA,
        stops.SCHEMA,
        notifications.SCHEMA,
        genomes.SCHEMA,
        evaluations.SCHEMA,
    )


@asynccontextmanager
async def connect_database(
    env: Mapping[str, str],
    *schemas: Schema,
    existing: Database | None = None,
    durable: bool = True,
    cipher: BlobCipher | None = None,
) -> AsyncGenerator[Database]:
    """Connect to the database, or use the connection that this process has already.

    Args:
        env: Says where the settings of the store are.
        *schemas: The schemas that are used.
        existing: A connection that is open already; it is not closed here.
        durable: Whether a write survives a power cut once it has returned.
        cipher: Used instead of the one of the settings.
    """
    if existing is not None:
        yield existing
        return
    from evoclaw.store.databases.migrations import open_database
    from evoclaw.wiring.record_key import record_cipher

    cipher = cipher or record_cipher(env)
    database = await open_database(
        **_database_location(env), schemas=schemas, durable=durable, cipher=cipher
    )
    try:
        yield database
    finally:
        await database.close()


class _DatabaseLocation(TypedDict, total=False):
    location: Required[Path | str]
    schema: str
    password: str


def _database_location(env: Mapping[str, str]) -> _DatabaseLocation:
    from evoclaw.config.paths import default_data_folder
    from evoclaw.wiring.settings import orchestrator_settings

    home, settings = default_data_folder(env), orchestrator_settings(env).store
    if not settings.url:
        return _DatabaseLocation(location=home / DATABASE_FILE)
    from evoclaw.store.databases.postgres_connection import read_password

    password = env.get(PASSWORD_VARIABLE, "")
    if settings.password_file:
        password = read_password(settings.password_file)
    return _DatabaseLocation(location=settings.url, schema=settings.schema, password=password)
