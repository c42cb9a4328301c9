"""What one call on an edge costs: statements, commits, waits for the disk, messages. No times."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from evoclaw.edge.device import DeviceLimits
from evoclaw.edge.receipts import Receipts
from evoclaw.store.calls import wal_sync
from evoclaw.store.databases.database import Database
from evoclaw.trust.receipts import DeviceKey
from tests.support.fleet import BrokerListener, FleetHarness, open_fleet
from tests.support.waiting import until

NOT_COUNTED = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "PRAGMA")


@asynccontextmanager
async def traced(database: Database) -> AsyncGenerator[list[str]]:
    """The statements of a database while the block runs."""
    said: list[str] = []
    await database.read(lambda c: cast("Any", c).set_trace_callback(said.append))
    try:
        yield said
    finally:
        await database.read(lambda c: cast("Any", c).set_trace_callback(None))


def counted(statements: list[str]) -> list[str]:
    return [one for one in statements if not one.lstrip().startswith(NOT_COUNTED)]


async def all_acknowledged(here: FleetHarness) -> None:
    edge = here.pi.edge
    assert edge is not None
    await until(lambda: not edge.reports.unacknowledged)


@pytest.mark.parametrize("signed", [False, True])
async def test_a_call_takes_few_statements_on_each_side(tmp_path: Path, signed: bool) -> None:
    async with open_fleet(tmp_path, limits=DeviceLimits()) as here:
        edge = here.pi.edge
        assert edge is not None
        if signed:
            key = DeviceKey(bytes(range(32)))
            edge.reports.receipts = Receipts(key, edge.parts.identity, here.pi.executor)
        first = here.call("mark", text="first")
        run = first.run_id
        ask = here.orchestrator.edge("pi").execute
        await ask(first, lambda text: None)
        await all_acknowledged(here)
        async with traced(here.store.database) as asked, traced(here.pi.journal.database) as ran:
            for n in range(10):
                call = here.call("mark", text=str(n), request_id=f"{run}.{n + 2}.0.1")
                await ask(call, lambda text: None)
            await all_acknowledged(here)
    # Put and settle; received and ended; the rest are acknowledgements and a count now and then.
    assert len(counted(asked)) <= 10 * 2 + 4, counted(asked)
    reads = [one for one in counted(ran) if one.lstrip().startswith("SELECT")]
    writes = [one for one in counted(ran) if one not in reads]
    assert len(writes) <= 10 * (3 if signed else 2) + 3, writes
    assert not any("meta" in one or "fences" in one for one in reads), reads
    # Each step changes one row, which SQLite undoes by itself if it fails.
    assert not [one for one in asked if one.startswith("SAVEPOINT")]


async def test_the_edge_waits_for_the_disk_once_before_each_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[list[str]] = []

    async with open_fleet(tmp_path, limits=DeviceLimits(), start=False) as here:
        here.pi.durable = True

        def sync(file: int) -> None:
            synced.append(list(here.marks.made))
            os.fsync(file)

        monkeypatch.setattr(wal_sync, "_sync_file", sync)
        monkeypatch.setattr(wal_sync, "MAX_UNSYNCED_S", 1000.0)
        await here.pi.start()
        await here.wait_online()
        synced.clear()
        ask = here.orchestrator.edge("pi").execute
        for text in "abc":
            assert (await ask(here.call("mark", text=text), lambda text: None)).error is None
    assert synced[:3] == [[], ["a"], ["a", "b"]], "before the effect, and not after it"


async def test_many_results_share_one_acknowledgement(tmp_path: Path) -> None:
    async with (
        open_fleet(tmp_path, limits=DeviceLimits()) as here,
        BrokerListener(here.broker) as ear,
    ):
        ask = here.orchestrator.edge("pi").execute
        for n in range(20):
            await ask(here.call("mark", text=str(n)), lambda text: None)
        await all_acknowledged(here)
        sent = [one.payload for one in ear.heard if one.topic.endswith("/commands")]
    acks = [one for one in sent if b"result_ack" in one]
    assert sum(b'"tool":"mark"' in one for one in sent) >= 20
    assert len(acks) <= 3
