"""Builds the receipt verifier, the receipt archive and the signer of this machine."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.executors.call_steps import Sign
    from evoclaw.orchestrator.receipts.archive import ReceiptArchive
    from evoclaw.orchestrator.receipts.verifier import ReceiptBreach, ReceiptVerifier
    from evoclaw.store.calls.commands import CommandStore
    from evoclaw.store.databases.database import Database

logger = logging.getLogger(__name__)
DEVICE_KEY_FILE = "device.key"
REPAIR_WINDOW_S = 3600.0
"""Seconds before a start in which a crash may have lost receipts of stored results."""


@asynccontextmanager
async def open_receipts(env: Mapping[str, str]) -> AsyncGenerator[ReceiptArchive]:
    """The archive of receipts with their commands."""
    from evoclaw.orchestrator.receipts.archive import ReceiptArchive
    from evoclaw.store.calls import command_tables, receipts
    from evoclaw.store.calls.commands import CommandStore
    from evoclaw.wiring.store import connect_database

    parts = (receipts.SCHEMA, command_tables.SCHEMA)
    async with connect_database(env, *parts) as database:
        yield ReceiptArchive(receipts.ReceiptStore(database), CommandStore(database))


@asynccontextmanager
async def open_receipt_verifier(
    commands: CommandStore, *, required: bool
) -> AsyncGenerator[ReceiptVerifier]:
    """The verifier of receipts, after repairing what a crash left out."""
    from evoclaw.orchestrator.receipts.verifier import ReceiptVerifier
    from evoclaw.store.calls.receipts import ReceiptStore

    store = ReceiptStore(commands.database)
    verifier = ReceiptVerifier(store, required=required, on_breach=_warn)
    await verifier.repair(time.time() - REPAIR_WINDOW_S)
    try:
        yield verifier
    finally:
        await verifier.close()


@asynccontextmanager
async def open_signer(
    env: Mapping[str, str], *, database: Database | None = None
) -> AsyncGenerator[Sign]:
    """The signer of calls that ran on this machine, with the device key of the machine.

    Args:
        env: Says where the settings of the store are.
        database: The connection, if this process has one: then storing the result waits for the
            disk, and its receipt does not.
    """
    from evoclaw.config.paths import default_data_folder
    from evoclaw.orchestrator.receipts.signer import LocalReceiptSigner
    from evoclaw.store.calls.receipts import SCHEMA, ReceiptStore
    from evoclaw.trust.receipts import DeviceKey
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import connect_database

    shared = bool(orchestrator_settings(env).store.url)
    # A receipt of this machine about itself need not survive a power cut: no wait per call.
    async with connect_database(env, SCHEMA, existing=database, durable=False) as connected:
        key = DeviceKey.load_or_create(default_data_folder(env) / DEVICE_KEY_FILE)
        store, alone = ReceiptStore(connected), database is None
        yield LocalReceiptSigner(key, store, token_hex(8), shared=shared, wait=alone).sign


def _warn(breach: ReceiptBreach) -> None:
    logger.warning("receipts of %s: %s: %s", breach.agent_id, breach.kind, breach.text)
