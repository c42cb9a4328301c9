"""The emergency stop on the fleet: dispatch refused, work ended, and edges that obey their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.chain import Chain
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.tools import Call, Tool
from evoclaw.governance.stops import (
    STOPS_FILE_NAME,
    Stop,
    StopFile,
    StopKind,
    Stops,
    cancel_on_stop,
)
from evoclaw.orchestrator.emergency_stop import StoppableGrants, enforce_stops
from evoclaw.transport.wire import Command
from tests.support.fleet import EVERYTHING, new_id, open_fleet
from tests.support.waiting import until

SMOKE = Stop(StopKind.AGENT, "pi", "it smokes")


def file(folder: Path) -> StopFile:
    return StopFile(folder / STOPS_FILE_NAME)


async def test_a_stopped_edge_is_granted_only_cancel_commands(
    tmp_path: Path,
) -> None:
    granting = StoppableGrants(Stops(file(tmp_path)), lambda agent_id, command, call: "grant")
    bash = Call("1", Tool("bash", "", {}, frozenset({"shell"})), {}, "r.1.0.1", 1.0)
    tool, cancel = Command("tool", {}, "r.1.0.1"), Command("cancel", {}, "c")
    assert granting("pi", tool, bash) == "grant"
    file(tmp_path).put(SMOKE)
    for command in (tool, Command("prompt", {}, "p"), Command("execute", {}, "e")):
        with pytest.raises(ToolFailure, match="it smokes") as refused:
            granting("pi", command, None)
        assert refused.value.kind is ErrorKind.PERMISSION_DENIED
    assert granting("pi", cancel, None) == "grant"
    assert granting("other", tool, bash) == "grant"
    file(tmp_path).put(Stop(StopKind.TOOL, "bash"))
    with pytest.raises(ToolFailure):
        granting("other", tool, bash)


async def test_a_stopped_edge_receives_no_calls_until_it_is_released(
    tmp_path: Path,
) -> None:
    grants = StoppableGrants(Stops(file(tmp_path)))
    async with open_fleet(tmp_path, "pi", "other", grants=grants) as here:
        file(tmp_path).put(SMOKE)
        refused = await here.run_tool("mark", text="a")
        assert refused.error is ErrorKind.PERMISSION_DENIED
        assert "a person stopped the agent pi (it smokes)" in refused.text
        with pytest.raises(ToolFailure, match="it smokes"):
            await here.orchestrator.start_job("pi", "mark", {"text": "b"})
        assert (await here.run_tool("mark", "other", text="c")).error is None
        file(tmp_path).release(StopKind.AGENT, "pi")
        assert (await here.run_tool("mark", text="d")).error is None
        assert here.marks.made == ["c", "d"]


async def test_stopping_an_edge_cancels_its_calls_and_jobs_but_not_those_of_others(
    tmp_path: Path,
) -> None:
    stops = Stops(file(tmp_path))
    async with (
        open_fleet(tmp_path, "pi", "other", grants=StoppableGrants(stops)) as here,
        enforce_stops(stops, here.orchestrator, here.store, interval_s=0.01),
    ):
        job = await here.orchestrator.start_job("pi", "hold", {"text": "job"})
        asked = here.start_tool("look", text="call", hold=True)
        spared = here.start_tool("look", "other", text="spared", hold=True)
        await until(lambda: len(here.marks.made) == 3)
        file(tmp_path).put(SMOKE)
        assert (await asked).error is ErrorKind.CANCELLED
        job_id = str(job.details["job_id"])
        await here.wait_for_state(job_id, "settled")
        ended = await here.orchestrator.job("pi", job_id)
        assert ended.state == "cancelled"
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: edge.calls.in_flight == 0)
        assert not spared.done()
        here.marks.gate.set()
        assert (await spared).error is None


async def test_a_stop_cancels_calls_queued_for_an_offline_edge(
    tmp_path: Path,
) -> None:
    stops = Stops(file(tmp_path))
    async with open_fleet(tmp_path, grants=StoppableGrants(stops)) as here:
        await here.pi.stop()
        await until(lambda: not here.orchestrator.fleet.online())
        request_id = new_id()
        asked = here.start_tool("mark", text="a", request_id=request_id)
        await here.wait_for_state(request_id, "queued")
        file(tmp_path).put(Stop(StopKind.ALL))
        async with enforce_stops(stops, here.orchestrator, here.store, interval_s=0.01):
            assert (await asked).error is ErrorKind.CANCELLED
        await here.pi.start()
        await here.wait_online("pi")
        assert here.marks.made == []


async def test_an_edge_enforces_its_local_stop(tmp_path: Path) -> None:
    own = Stops(file(tmp_path), agent="pi")
    async with open_fleet(tmp_path, policy=Chain((own, EVERYTHING))) as here:
        edge = here.pi.edge
        assert edge is not None

        def end_calls() -> None:
            for live in edge.calls.live:
                edge.calls.cancel(live.request_id)

        async with cancel_on_stop(own, end_calls, interval_s=0.01):
            asked = here.start_tool("hold", text="a")
            await here.marks.waiting.wait()
            file(tmp_path).put(SMOKE)
            assert (await asked).error is ErrorKind.CANCELLED
            refused = await here.run_tool("mark", text="b")
            assert refused.error is ErrorKind.PERMISSION_DENIED
            assert "it smokes" in refused.text
        assert here.marks.made == ["a"]
