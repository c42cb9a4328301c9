"""The tools of an edge over HTTP: as it describes them, and to the operator alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.api.routes import fleet as fleet_routes
from evoclaw.core.tools import Effect, Tool
from evoclaw.transport.wire import Advert
from evoclaw.trust.pairing import Devices
from tests.api.test_events import fleet_of
from tests.support.fleet import open_fleet
from tests.support.service import running_service

SHINE = Tool("shine", "Shines.", {"type": "object"}, effect=Effect.WRITE)


async def test_the_tools_of_an_edge_are_listed_as_advertised(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        ann, fleet = await up.client_with("fleet:read"), fleet_of(up)
        fleet.on_advert(Advert("lamp", "shines"))
        await fleet.set_tools("lamp", [SHINE], {})

        (tool,) = (await ann.get("/v1/fleet/lamp/tools")).json["items"]
        assert (tool["name"], tool["effect"], tool["parameters"]) == (
            "shine", "write", {"type": "object"},
        )  # fmt: skip
        assert (await ann.get("/v1/fleet/nobody/tools")).status == 404
        assert (
            await (await up.client_with("tools:read")).get("/v1/fleet/lamp/tools")
        ).status == 403
        other = await up.client_with("*", tenant="other")
        assert (await other.get("/v1/fleet/lamp/tools")).status == 404


async def test_an_edge_that_never_connected_has_no_tools(tmp_path: Path) -> None:
    await Devices(tmp_path).compare_tools("pi", [("read", "h1")], 1.0)
    async with running_service(tmp_path) as up:
        ann = await up.client_with("fleet:read")
        assert (await ann.get("/v1/fleet/pi/tools")).json == {"items": []}


async def test_a_ping_that_an_edge_does_not_answer_is_no_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_routes, "PING_TIMEOUT_S", 0.2)
    async with (
        open_fleet(tmp_path) as here,
        running_service(tmp_path, fleet=here.orchestrator) as up,
    ):
        ann = await up.client_with("fleet:read", "fleet:write")
        assert (await ann.post("/v1/fleet/pi/ping")).status == 200
        here.link.drop_next("ping", count=1000)
        silent = await ann.post("/v1/fleet/pi/ping")
        assert (silent.status, silent.code) == (409, "no_answer")
        assert "'pi' did not answer within 0.2s" in silent.json["error"]["message"]
