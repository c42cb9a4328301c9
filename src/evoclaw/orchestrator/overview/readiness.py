"""Readiness checks of a service: its store, its broker and the provider of its default model."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.store.databases.database import Database

MIN_FREE_DISK_BYTES = 1 << 20
"""Free bytes on disk below which the store is not ready."""
ReadinessCheck: TypeAlias = Callable[[], Awaitable[str]]
"""Returns what is wrong with a component; empty if it is ready."""


def readiness_checks(
    database: Database, home: Path, orchestrator: Orchestrator, provider_problem: Callable[[], str]
) -> Mapping[str, ReadinessCheck]:
    """The readiness checks by component.

    Args:
        database: The store; the check writes an empty transaction.
        home: The data folder; the check needs free space on its disk.
        orchestrator: Must be connected to the broker.
        provider_problem: Why the default model is unavailable; empty if no problem is known.
    """

    async def store() -> str:
        await database.write(lambda connection: None)
        # An empty commit also succeeds on a full disk.
        is_full = shutil.disk_usage(home).free < MIN_FREE_DISK_BYTES
        return f"the disk of {home} is full: free some space" if is_full else ""

    async def broker() -> str:
        return "" if orchestrator.report_receiver.is_connected else "the broker is unreachable"

    async def provider() -> str:
        return provider_problem()

    return {"store": store, "broker": broker, "provider": provider}
