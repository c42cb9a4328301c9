"""Opens the audit of this machine, and ships it to the cold tier."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.observe.audit.settings import AuditSettings
    from evoclaw.observe.audit.shipper import Shipper
    from evoclaw.observe.audit.writer import Audit

logger = logging.getLogger(__name__)
FINAL_SHIP_TIMEOUT_S = 2.0
"""Seconds to ship the last records at the end of a process; later ones ship what is left."""


def audit_location(env: Mapping[str, str]) -> tuple[Path, AuditSettings]:
    """The data folder, and the audit settings."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.wiring.settings import orchestrator_settings

    return default_data_folder(env), orchestrator_settings(env).audit


@asynccontextmanager
async def open_audit(
    folder: Path, settings: AuditSettings, env: Mapping[str, str], *, long_running: bool = False
) -> AsyncGenerator[Audit | None]:
    """The audit in a folder, signed when the block ends; None if it is disabled.

    Args:
        folder: The data folder.
        settings: The audit settings.
        env: The environment; its secrets are redacted.
        long_running: This process is long-running: it ships records to the cold tier as they come.
    """
    if not settings.enabled:
        yield None
        return
    from evoclaw.core.redaction import secrets_in
    from evoclaw.observe.audit import writer

    audit = writer.open_audit(folder, settings, secrets=secrets_in(env))
    shipping = asyncio.create_task(_keep_shipping(audit, folder, env)) if long_running else None
    try:
        yield audit
    finally:
        if shipping is not None:
            shipping.cancel()
            await asyncio.wait([shipping])
        await asyncio.to_thread(audit.close)
        await _ship_remaining(audit, folder, env)


async def _keep_shipping(audit: Audit, folder: Path, env: Mapping[str, str]) -> None:
    # Wait first: an idle device then never loads the shipper.
    await asyncio.sleep(audit.settings.ship_seconds)
    async with _shipper(audit, folder, env) as shipper:
        if shipper is not None:
            await shipper.keep_shipping()


async def _ship_remaining(audit: Audit, folder: Path, env: Mapping[str, str]) -> None:
    from evoclaw.observe.audit.settings import AuditError

    try:
        async with _shipper(audit, folder, env) as shipper, asyncio.timeout(FINAL_SHIP_TIMEOUT_S):
            if shipper is not None:
                await shipper.ship()
    except (TimeoutError, AuditError) as problem:
        logger.info(
            "audit not shipped to the cold tier yet, the next process ships it: %s", problem
        )


@asynccontextmanager
async def _shipper(
    audit: Audit, folder: Path, env: Mapping[str, str]
) -> AsyncGenerator[Shipper | None]:
    from evoclaw.observe.audit.cold import open_cold
    from evoclaw.observe.audit.shipper import Shipper

    cold = open_cold(folder, audit.settings, env)
    if cold is None:
        yield None
        return
    try:
        yield Shipper(audit.warm, cold, audit.settings)
    finally:
        await cold.close()
