"""Receipts put together: the book that checks and keeps them, and this machine's own signer."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.executors.receipted import Sign
    from evoclaw.orchestrator.archive import ReceiptArchive
    from evoclaw.orchestrator.receipts import Breach, ReceiptBook
    from evoclaw.store.commands import CommandStore

logger = logging.getLogger(__name__)
BOOK, KEY = "receipts.db", "device.key"
RECENT = 3600.0
"""Seconds before a start in which a crash may have kept receipts out of the book."""


@asynccontextmanager
async def open_receipts(env: Mapping[str, str]) -> AsyncGenerator[ReceiptArchive]:
    """The receipts of this machine, and the commands that they are of."""
    from evoclaw.config import default_data_folder
    from evoclaw.orchestrator.archive import ReceiptArchive
    from evoclaw.store.commands import CommandStore
    from evoclaw.store.receipts import ReceiptStore

    home = default_data_folder(env)
    async with (
        await ReceiptStore.open(home / BOOK) as store,
        await CommandStore.open(home / "orchestrator.db") as commands,
    ):
        yield ReceiptArchive(store, commands)


@asynccontextmanager
async def open_book(
    home: Path,
    commands: CommandStore,
    *,
    required: bool = False,
    noted: Callable[[Breach], None] | None = None,
) -> AsyncGenerator[ReceiptBook]:
    """An orchestrator's book of receipts, with what a crash kept out of it put in."""
    from evoclaw.orchestrator.receipts import ReceiptBook
    from evoclaw.store.receipts import ReceiptStore, settled_since

    async with await ReceiptStore.open(home / BOOK) as store:
        book = ReceiptBook(store, required=required, noted=noted or _warn)
        await book.repair(await settled_since(commands.database, time.time() - RECENT))
        try:
            yield book
        finally:
            await book.close()


@asynccontextmanager
async def open_signer(home: Path) -> AsyncGenerator[Sign]:
    """Who signs what ran on this machine itself, with its own key."""
    from evoclaw.governance.receipts import DeviceKey
    from evoclaw.orchestrator.signing import LocalReceipts
    from evoclaw.store.receipts import ReceiptStore

    # Its own word about itself need not outlive a power cut: no wait for the disk at every call.
    async with await ReceiptStore.open(home / BOOK, durable=False) as store:
        key = DeviceKey.load_or_create(home / KEY)
        yield LocalReceipts(key, store, token_hex(8)).sign


def _warn(breach: Breach) -> None:
    logger.warning("receipts of %s: %s: %s", breach.agent_id, breach.kind, breach.text)
