"""The emergency stop, where several orchestrators share a store: what one is told, all obey."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.core.errors import EvoClawError
from evoclaw.governance.shared_stops import (
    SHARED_STOPS_FILE_NAME,
    StopNotShared,
    StopRegistry,
    sync_stops,
)
from evoclaw.governance.stops import Stop, StopFile, StopKind, Stops
from evoclaw.store.governance.stops import SCHEMA, StopStore
from evoclaw.wiring.oversight import open_stops, stop_files
from tests.support.databases import Place
from tests.support.ports import free_port
from tests.support.waiting import until

ALL = Stop(StopKind.ALL, reason="smoke", by="ann", at=1.0)
BASH = Stop(StopKind.TOOL, "bash", by="ann", at=2.0)


@asynccontextmanager
async def machine(place: Place, folder: Path) -> AsyncGenerator[tuple[StopRegistry, Stops]]:
    """One that shares the store, and what its runs obey."""
    own, mirror = StopFile(folder / "stops.json"), StopFile(folder / SHARED_STOPS_FILE_NAME)
    database = await place.open(SCHEMA)
    try:
        yield StopRegistry(own, mirror, StopStore(database)), Stops(own, mirror)
    finally:
        await database.close()


async def test_a_stop_applies_to_all_orchestrators_until_any_of_them_releases_it(
    place: Place, tmp_path: Path
) -> None:
    async with (
        machine(place, tmp_path / "one") as (one, here),
        machine(place, tmp_path / "two") as (two, there),
        sync_stops(two, interval_s=0.01),
    ):
        await one.put(ALL)
        assert here.cancelling_stop() == ALL, "at once where it was said"
        await until(lambda: there.cancelling_stop() == ALL, 30)
        assert one.stops() == two.stops() == (ALL,)
        await one.put(BASH)
        await until(lambda: set(two.stops()) == {ALL, BASH}, 30)
        assert await two.release(StopKind.ALL) == ALL
        assert there.cancelling_stop() is None and two.stops() == (BASH,)
        await one.refresh()
        assert here.cancelling_stop() is None and one.stops() == (BASH,)
        assert await two.release(StopKind.ALL) is None
        assert await one.release(StopKind.TOOL, "bash") == BASH
        await until(lambda: not two.stops(), 30)


async def test_a_starting_orchestrator_reads_stops_and_releases_made_before(
    place: Place, tmp_path: Path
) -> None:
    async with machine(place, tmp_path / "one") as (one, _):
        await one.put(ALL)
        async with (
            machine(place, tmp_path / "two") as (two, there),
            sync_stops(two, interval_s=60),
        ):
            assert there.cancelling_stop() == ALL
        await one.release(StopKind.ALL)
        async with (
            machine(place, tmp_path / "two") as (two, there),
            sync_stops(two, interval_s=60),
        ):
            assert there.cancelling_stop() is None


async def test_without_the_store_a_stop_holds_locally_and_no_release_is_possible(
    place: Place, tmp_path: Path
) -> None:
    folder = tmp_path / "one"
    async with machine(place, folder) as (board, here):
        await board.put(BASH)
    # The database is closed now.
    with pytest.raises(EvoClawError, match="stopped on this machine only"):
        await board.put(ALL)
    assert here.cancelling_stop() == ALL
    with pytest.raises(StopNotShared, match="nothing was released"):
        await board.release(StopKind.TOOL, "bash")
    assert set(board.stops()) == {ALL, BASH}
    async with machine(place, folder) as (board, here):
        await board.refresh()
        assert set(board.stops()) == {ALL, BASH}, "what was said here stays until released"
        assert await board.release(StopKind.ALL) == ALL


async def test_a_damaged_local_stop_file_stops_everything_until_it_is_reloaded(
    place: Place, tmp_path: Path
) -> None:
    async with machine(place, tmp_path / "one") as (board, here):
        await board.put(BASH)
        assert here.cancelling_stop() is None
        (tmp_path / "one" / SHARED_STOPS_FILE_NAME).write_text("{")
        assert here.cancelling_stop() is not None
        await board.refresh()
        assert here.cancelling_stop() is None and board.stops() == (BASH,)


async def test_a_machine_can_be_stopped_while_the_database_is_unreachable(tmp_path: Path) -> None:
    env = {
        "EVOCLAW_HOME": str(tmp_path),
        "EVOCLAW_STORE_URL": f"postgresql://nobody@127.0.0.1:{free_port()}/none",
    }
    async with open_stops(env) as board:
        with pytest.raises(StopNotShared, match="stopped on this machine"):
            await board.put(ALL)
        assert board.stops() == (ALL,)
    assert Stops(*stop_files(env)).cancelling_stop() == ALL
