"""Receipts put together: the book that checks and keeps them, and this machine's own signer."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.executors.receipt_step import Sign
    from evoclaw.orchestrator.receipts.archive import ReceiptArchive
    from evoclaw.orchestrator.receipts.verifier import ReceiptBreach, ReceiptVerifier
    from evoclaw.store.calls.commands import CommandStore
    from evoclaw.store.databases.database import Database

logger = logging.getLogger(__name__)
KEY = "device.key"
RECENT = 3600.0
"""Seconds before a start in which a crash may have kept receipts out of the book."""


@asynccontextmanager
async def open_receipts(
    env: Mapping[str, str], *, database: Database | None = None
) -> AsyncGenerator[ReceiptArchive]:
    """The receipts of this machine, and the commands that they are of."""
    from evoclaw.orchestrator.receipts.archive import ReceiptArchive
    from evoclaw.store.calls import command_tables, receipts
    from evoclaw.store.calls.commands import CommandStore
    from evoclaw.wiring.store import opened

    parts = (receipts.SCHEMA, command_tables.SCHEMA)
    async with opened(env, *parts, given=database) as kept:
        yield ReceiptArchive(receipts.ReceiptStore(kept), CommandStore(kept))


@asynccontextmanager
async def open_book(
    commands: CommandStore,
    *,
    required: bool = False,
    noted: Callable[[ReceiptBreach], None] | None = None,
) -> AsyncGenerator[ReceiptVerifier]:
    """The book of receipts beside the commands, with what a crash kept out of it put in."""
    from evoclaw.orchestrator.receipts.verifier import ReceiptVerifier
    from evoclaw.store.calls.receipts import ReceiptStore

    store = ReceiptStore(commands.database)
    book = ReceiptVerifier(store, required=required, on_breach=noted or _warn)
    await book.repair(time.time() - RECENT)
    try:
        yield book
    finally:
        await book.close()


@asynccontextmanager
async def open_signer(
    env: Mapping[str, str], *, database: Database | None = None
) -> AsyncGenerator[Sign]:
    """Who signs what ran on this machine itself, with its own key.

    Args:
        env: Says where the receipts are kept.
        database: The same, if this process has it open: then whoever keeps the result of a call
            waits for the disk, and its receipt need not.
    """
    from evoclaw.config.places import default_data_folder
    from evoclaw.orchestrator.receipts.signer import LocalReceiptSigner
    from evoclaw.store.calls.receipts import SCHEMA, ReceiptStore
    from evoclaw.trust.receipts import DeviceKey
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import opened

    shared = bool(orchestrator_settings(env).store.url)
    # Its own word about itself need not outlive a power cut: no wait for the disk at every call.
    async with opened(env, SCHEMA, given=database, durable=False) as kept:
        key = DeviceKey.load_or_create(default_data_folder(env) / KEY)
        store, alone = ReceiptStore(kept), database is None
        yield LocalReceiptSigner(key, store, token_hex(8), shared=shared, wait=alone).sign


def _warn(breach: ReceiptBreach) -> None:
    logger.warning("receipts of %s: %s: %s", breach.agent_id, breach.kind, breach.text)
