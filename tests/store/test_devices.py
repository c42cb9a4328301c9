"""Edges that joined, where several orchestrators share a store: one word of a person is enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.tools import Tool
from evoclaw.orchestrator.fleet.approved_tools import ApprovedTools, watch_approvals
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.fleet.shared_devices import SharedDeviceRepository
from evoclaw.store.databases.database import Database
from evoclaw.store.governance.devices import SCHEMA, DeviceStore
from evoclaw.transport.wire import Advert, AdvertisedTool, tool_hash
from evoclaw.trust.pairing import (
    Devices,
    DeviceState,
    PairingRefused,
    ToolsChange,
    ToolsComparison,
)
from tests.support.databases import Place
from tests.support.waiting import until

NOW = 1_000.0
TOOLS = [("read", "r1"), ("bash", "b1")]
READ, BASH = (Tool(name, "", {"type": "object"}) for name in ("read", "bash"))


@asynccontextmanager
async def shared(
    place: Place, *, folder: Path | None = None
) -> AsyncGenerator[tuple[Devices, Database]]:
    """The devices as one orchestrator has them, over a connection of its own."""
    database = await place.open(SCHEMA)
    try:
        book = SharedDeviceRepository(DeviceStore(database))
        if folder is not None:
            await book.import_folder(folder)
        await book.refresh()
        yield Devices(book), database
    finally:
        await database.close()


async def test_an_approval_is_seen_by_other_orchestrators_at_their_next_poll(place: Place) -> None:
    async with shared(place) as (one, _), shared(place) as (two, _):
        assert await one.compare_tools("pi", TOOLS, NOW) == ToolsComparison(
            ToolsChange.FIRST, ("bash", "read")
        )
        assert await two.refresh() == ["pi"]
        approved = await two.approve("pi", NOW + 1)
        assert approved.tools == ("bash", "read")
        assert await one.refresh() == ["pi"]
        assert one.get("pi") == approved
        assert await one.compare_tools("pi", TOOLS, NOW + 2) == ToolsComparison(ToolsChange.SAME)
        assert [await one.refresh(), await two.refresh(), await two.refresh()] == [[], ["pi"], []]
        await one.revoke("pi", NOW + 3)
        # Also who has not looked yet is told.
        assert await two.compare_tools("pi", TOOLS, NOW + 4) == ToolsComparison(ToolsChange.REVOKED)
        assert [device.state for device in two.all()] == [DeviceState.REVOKED]


async def test_approving_tools_that_changed_since_they_were_shown_is_refused(place: Place) -> None:
    async with shared(place) as (one, _), shared(place) as (two, _):
        await one.compare_tools("pi", TOOLS, NOW)
        seen = one.all()[0].surface
        await two.compare_tools("pi", [*TOOLS, ("rm", "!")], NOW)
        with pytest.raises(PairingRefused, match="have changed since you looked"):
            await one.approve("pi", NOW, seen=seen)
        with pytest.raises(ConfigError, match="unknown edge 'nobody'; known edges: pi"):
            await one.revoke("nobody", NOW)


async def test_concurrent_approvals_and_revocations_are_all_stored(place: Place) -> None:
    async with shared(place) as (one, _), shared(place) as (two, _):
        names = [f"edge {number}" for number in range(20)]
        both = [books.compare_tools(name, TOOLS, NOW) for name in names for books in (one, two)]
        await asyncio.gather(*both)
        await asyncio.gather(*(one.approve(name, NOW) for name in names[::2]))
        await asyncio.gather(*(two.revoke(name, NOW) for name in names[1::2]))
        for books in (one, two):
            await books.refresh()
            states = [device.state for device in books.all() if device.agent_id in names]
            assert states.count(DeviceState.APPROVED) == states.count(DeviceState.REVOKED) == 10


async def test_an_unchanged_edge_causes_no_commit(place: Place) -> None:
    async with shared(place) as (devices, database):
        await devices.compare_tools("pi", TOOLS, NOW)
        before = database.commits
        for _ in range(5):
            await devices.compare_tools("pi", TOOLS, NOW + 1)
        assert database.commits == before


async def test_old_device_files_are_imported_and_revoked_devices_stay_revoked(
    place: Place, tmp_path: Path
) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    for folder in (first, second):
        for name in ("pi", "lamp"):
            await Devices(folder).compare_tools(name, TOOLS, NOW)
            await Devices(folder).approve(name, NOW)
    await Devices(second).revoke("lamp", NOW)
    await Devices(second).compare_tools("door", TOOLS, NOW)
    async with shared(place, folder=first) as (devices, _):
        states = {device.agent_id: str(device.state) for device in devices.all()}
        assert states == {"lamp": "approved", "pi": "approved"}
    for _ in range(2):
        async with shared(place, folder=second) as (devices, _):
            states = {device.agent_id: str(device.state) for device in devices.all()}
            assert states == {"door": "pending", "lamp": "revoked", "pi": "approved"}
            await devices.approve("lamp", NOW)  # what was taken in is not taken in again
            await devices.revoke("lamp", NOW)
    assert [path.name for path in second.glob("devices.json*")] == ["devices.json.taken-in"]
    (second / "devices.json").write_text("{")
    with pytest.raises(ConfigError, match="restore it from a backup"):
        async with shared(place, folder=second):
            pass


async def until_offered(fleet: Fleet, *names: str) -> None:
    await until(lambda: list(fleet.member("pi").tools.names) == list(names), 30)


async def test_a_running_orchestrator_applies_approvals_made_at_another(place: Place) -> None:
    hashes = {tool.name: tool_hash(tool) for tool in (READ, BASH)}
    async with shared(place) as (here, _), shared(place) as (there, _):
        permitted = ApprovedTools(here)
        fleet = Fleet(permit=permitted)
        refs = [AdvertisedTool(name, hash=hash_) for name, hash_ in hashes.items()]
        fleet.on_advert(Advert("pi", "", tools=refs))
        abandoned: list[str] = []

        async def abandon(agent_id: str) -> None:
            abandoned.append(agent_id)

        async with watch_approvals(here, permitted, fleet, abandon=abandon, interval_s=0.01):
            await fleet.set_tools("pi", [READ, BASH], hashes)
            assert "not approved: bash, read" in fleet.member("pi").problem
            await there.refresh()
            await there.approve("pi", NOW)
            await until_offered(fleet, "read", "bash")
            assert fleet.member("pi").problem == ""
            fleet.on_life_sign("pi", "boot", 1)
            await there.revoke("pi", NOW)
            await until_offered(fleet)
            assert "revoked" in fleet.member("pi").problem
            # Without waiting for the broker's will: the broker may have been restarted meanwhile.
            await until(lambda: not fleet.is_online("pi"), 30)
            await until(lambda: abandoned == ["pi"], 30)
            # After a new invitation its tools are fetched again.
            assert not fleet.outdated("pi")
            await there.invite("pi", NOW)
            await until(lambda: fleet.outdated("pi"), 30)
            await fleet.set_tools("pi", [READ], hashes)
            assert list(fleet.member("pi").tools.names) == ["read"]


async def test_no_new_tool_is_offered_while_the_store_is_unavailable(place: Place) -> None:
    async with shared(place) as (devices, database):
        fleet = Fleet(permit=ApprovedTools(devices))
        await database.close()
        with pytest.raises(EvoClawError):
            await fleet.set_tools("pi", [READ], {"read": "r1"})
        assert not fleet.member("pi").tools.names and fleet.member("pi").fetched_hashes == {}
