"""The gauges of the service: of the fleet, the store, and which parts work."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families as families

from evoclaw.api.app import create_app
from evoclaw.api.server import serving
from evoclaw.api.settings import ServerSettings
from evoclaw.core.labels import Principal
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.observe.metrics import Metrics
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.overview.gauges import GaugeReader
from evoclaw.orchestrator.runs.requests import RunRequest
from evoclaw.providers.scripted import Scripted, calls
from evoclaw.store.databases.database import StoreError
from evoclaw.transport.wire import Heartbeat, Status
from tests.api.test_events import parts_of
from tests.api.test_runs import begun
from tests.support.service import (
    AGENT,
    Client,
    RunningService,
    ServiceHarness,
    build_service,
    running_service,
)


class Asked:
    """A process with metrics."""

    def __init__(self, up: RunningService) -> None:
        orchestrator = parts_of(up).orchestrator
        assert orchestrator is not None
        self.house: ServiceHarness = up.house
        self.fleet: Fleet = orchestrator.fleet
        self.now = 0.0
        self.gauges = GaugeReader(
            orchestrator, up.house.database, up.house.folder, lambda: 7, lambda: self.now
        )
        self.metrics = Metrics(self.gauges.gauges())
        self.problem = ""

    async def told(self) -> dict[str, float]:
        async def check() -> str:
            if self.problem == "raised":
                raise StoreError("away")
            return self.problem

        await self.gauges.refresh({"store": check})
        return {
            " ".join((sample.name, *sample.labels.values())): sample.value
            for family in families(self.metrics.render().decode())
            for sample in family.samples
        }


@asynccontextmanager
async def asking(folder: Path) -> AsyncGenerator[tuple[RunningService, Asked]]:
    model = Scripted(calls(("work", {"what": "it"})))
    async with running_service(folder, model, rules=Autonomy(Level.SUPERVISED)) as up:
        yield up, Asked(up)


async def test_edge_gauges_follow_heartbeats_and_offline_edges_have_no_load(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as (_, asked):
        asked.fleet.on_heartbeat("lamp", Heartbeat("b", 1, 2, 3, None, 5.0, 2.0, 60.0))
        found = await asked.told()
        assert found["evoclaw_runs_live"] == 7
        assert found["evoclaw_edge_memory_bytes lamp"] == 2 << 20
        assert found["evoclaw_edge_queued lamp"] == 3
        assert found["evoclaw_edge_last_seen_timestamp_seconds lamp"] > 1e9
        assert asked.fleet.on_status(Status("lamp", "offline", "b", 1), retained=False)
        found = await asked.told()
        assert (found["evoclaw_edge_online lamp"], found["evoclaw_edge_queued lamp"]) == (0, 0)
        assert found["evoclaw_edge_last_seen_timestamp_seconds lamp"] > 1e9


async def test_waiting_approvals_and_queued_runs_are_gauges_with_their_age(tmp_path: Path) -> None:
    async with asking(tmp_path) as (up, asked):
        assert (await asked.told())["evoclaw_approval_wait_seconds"] == 0
        ann = await up.client_with("*")
        run_id = await begun(ann)
        await ann.until(f"/v1/runs/{run_id}", "state", "waiting")
        (case,) = await asked.house.approvals.waiting()
        asked.now = case.request.asked_at + 90
        found = await asked.told()
        assert found["evoclaw_approvals_waiting"] == 1
        assert math.isclose(found["evoclaw_approval_wait_seconds"], 90)
        session = (await ann.get(f"/v1/runs/{run_id}")).json["session_id"]
        who, errand = Principal(user="ann"), RunRequest("next", session, agent=AGENT.name)
        await asked.house.runs.start(who, errand)
        assert (await asked.told())["evoclaw_runs_queued"] == 1


async def test_a_failing_component_is_not_ready_and_unknown_gauges_are_nan(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as (_, asked):
        assert (await asked.told())["evoclaw_part_ready store"] == 1
        for asked.problem in ("no room", "raised"):
            assert (await asked.told())["evoclaw_part_ready store"] == 0
        async with running_service(tmp_path / "other") as other:
            gone = Asked(other)
        found = await gone.told()
        assert math.isnan(found["evoclaw_runs_queued"])
        assert math.isnan(found["evoclaw_approval_wait_seconds"])


async def test_requests_are_counted_by_route_pattern(tmp_path: Path) -> None:
    settings, metrics = ServerSettings(port=0, stop_within_s=1), Metrics()

    async def figures() -> bytes:
        return metrics.render()

    async with build_service(tmp_path, settings=settings) as (house, _):
        parts = replace(house.parts(settings), on_response=metrics.http, metrics=figures)
        token = await house.token("*")
        async with serving(create_app(parts), settings) as url, ClientSession() as http:
            ann, nobody = Client(http, url, token), Client(http, url, "")
            for id_ in ("one", "two"):
                assert (await ann.get(f"/v1/runs/{id_}")).status == 404
            assert (await nobody.get("/v1/runs/three")).status == 401
            assert (await ann.get("/nowhere/at/all")).status == 404
            text = (await ann.get("/metrics")).body.decode()
    counted = {
        (sample.labels["route"], sample.labels["status"]): sample.value
        for family in families(text)
        for sample in family.samples
        if sample.name == "evoclaw_http_requests_total"
    }
    assert counted == {
        ("/v1/runs/{run_id}", "404"): 2,
        ("none", "401"): 1,
        ("none", "404"): 1,
    }
