"""Jobs: begun at once, going on by themselves, asked for later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.calls import prepare
from evoclaw.core.events import CallFinished, Event
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import JSON, ErrorKind, ToolCall, ToolResult, user
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Executor, Ports, Progress
from evoclaw.core.state import new_run
from evoclaw.core.toolset import Toolset
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.permissions import Permissions
from evoclaw.orchestrator.fleet.command_cleanup import (
    GIVE_UP_MARGIN_S,
    CommandCleanup,
    wait_deadline,
)
from evoclaw.orchestrator.fleet.jobs import EdgeJob, JobNotFound
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.tools.define import tool
from evoclaw.tools.nodes import DeviceJobs, jobs
from evoclaw.transport.wire import Command, encode
from tests.support.fleet import (
    QUICK,
    BrokerListener,
    FleetHarness,
    new_id,
    open_fleet,
    tool_command,
)
from tests.support.waiting import until


async def begin(
    here: FleetHarness, name: str = "hold", *, seconds: float = 3600.0, idle: float | None = None
) -> str:
    """Begin a job; its id."""
    orchestrator = here.orchestrator
    result = await orchestrator.start_job("pi", name, {"text": "a"}, seconds=seconds, idle=idle)
    assert result.error is None, result.text
    assert result.details["state"] == "running"
    return str(result.details["job_id"])


async def ended(here: FleetHarness, job_id: str) -> EdgeJob:
    """How a job ended, when it has."""
    await here.wait_for_state(job_id, "settled")
    return await here.orchestrator.job("pi", job_id)


async def listed_jobs(here: FleetHarness) -> list[JSON]:
    return (await here.orchestrator.query("pi", "job", {"action": "list"})).result["jobs"]


async def test_a_job_is_confirmed_when_it_starts_and_its_result_is_stored(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        job_id = await begin(here)
        running = await here.orchestrator.job("pi", job_id)
        assert (running.state, running.ended) == ("running", False)
        assert running.details["tool"] == "hold"
        (listed,) = await listed_jobs(here)
        assert (listed["job_id"], listed["background"]) == (job_id, True)
        here.marks.gate.set()
        done = await ended(here, job_id)
        assert (done.state, done.ended) == ("succeeded", True)
        assert done.result is not None and done.result.text == "held a"
        assert await listed_jobs(here) == []
        assert here.marks.made == ["a"]


async def test_a_job_survives_an_orchestrator_crash_and_a_lost_link(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        job_id = await begin(here)
        await here.crash()
        here.pi.link.drop()
        await here.open()
        await here.wait_online()
        assert (await here.orchestrator.job("pi", job_id)).state == "running"
        here.pi.link.drop()
        await until(lambda: here.orchestrator.fleet.is_online("pi"))
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: edge.is_welcomed)
        assert edge.calls.in_flight == 1, "a hello does not end what is going on"
        here.marks.gate.set()
        assert (await ended(here, job_id)).state == "succeeded"
        assert here.marks.made == ["a"]


async def test_a_job_that_ended_while_the_orchestrator_was_down_is_reported_later(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        job_id = await begin(here)
        await here.crash()
        here.marks.gate.set()
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: edge.reports.unacknowledged == [job_id])
        await here.open()
        assert (await ended(here, job_id)).state == "succeeded"


async def test_a_job_interrupted_by_an_edge_restart_has_an_unknown_outcome(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        job_id = await begin(here)
        await here.pi.crash()
        await here.pi.start()
        done = await ended(here, job_id)
        assert (done.state, done.ended) == ("unknown", True)
        assert done.result is not None and "may have happened" in done.result.text
        assert here.marks.made == ["a"]


async def test_a_job_can_be_cancelled(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        job_id = await begin(here)
        payload: dict[str, JSON] = {"action": "cancel", "job_id": job_id}
        answer = (await here.orchestrator.query("pi", "job", payload)).result
        assert answer["cancelled"] is True
        assert (await ended(here, job_id)).state == "cancelled"
        again = (await here.orchestrator.query("pi", "job", payload)).result
        assert (again["cancelled"], again["state"]) == (False, "cancelled")


async def test_a_job_ends_at_its_own_timeout_which_may_exceed_its_tools(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        job_id = await begin(here, seconds=0.3)
        assert (await ended(here, job_id)).state == "timeout"
        for seconds, given in ((7200.0, 7200.0), (1e9, 86_400.0)):
            row = await here.row(await begin(here, seconds=seconds))
            command = msgspec.json.decode(row.payload, type=Command)
            assert command.payload["timeout_ms"] == given * 1000
            assert row.expires_at is not None
            assert wait_deadline(command) > row.expires_at + given, "nobody gives it up before"
        unsaid = tool_command("hold", text="a", background=True, expires_at=5.0)
        assert wait_deadline(unsaid) > 86_400


@tool("shell", timeout=5)
async def chatter(progress: Progress, text: str) -> str:
    """Say something now and then, and at last nothing."""
    for n in range(4):
        progress(f"{text} {n}\n")
        await asyncio.sleep(0.3)  # far less than it may be silent, on a busy machine too
    await asyncio.sleep(60)
    return "never"


async def test_a_job_without_output_for_too_long_times_out(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, tools=[chatter]) as here:
        loop = asyncio.get_running_loop()
        began = loop.time()
        job_id = await begin(here, "chatter", idle=1.0)

        async def spoke() -> bool:
            job = await here.orchestrator.job("pi", job_id)
            return "a 3" in str(job.details.get("output"))

        await until(spoke)
        done = await ended(here, job_id)
        assert done.state == "timeout"
        assert done.result is not None
        assert "wrote no output for 1s" in done.result.text and "a 3" in done.result.text
        assert loop.time() - began > 1.5, "not while it spoke"


async def test_jobs_use_no_call_slots_and_have_their_own_limit(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(QUICK, concurrency=1, queue=0, jobs=2)
    async with open_fleet(tmp_path, limits=limits) as here:
        await begin(here)
        await begin(here)
        third = await here.orchestrator.start_job("pi", "hold", {"text": "c"})
        assert third.error is ErrorKind.QUEUE_FULL
        assert (await here.run_tool("mark", text="b")).error is None


async def test_a_job_requested_twice_starts_once(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        command = tool_command("hold", text="a", background=True)
        here.publish_command(command)
        await here.marks.waiting.wait()
        here.publish_command(command)
        await until(lambda: len(ear.reports()) >= 2)
        assert here.marks.made == ["a"]
        assert ear.results_of(command.request_id) == [], "it has not ended"


async def test_an_unknown_job_is_reported_as_not_found(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        with pytest.raises(JobNotFound):
            await here.orchestrator.job("pi", "nothing")
        job_id = await begin(here)
        with pytest.raises(JobNotFound):
            await here.orchestrator.job("desk", job_id)
        answer = await here.orchestrator.query("pi", "job", {"action": "read", "job_id": "nothing"})
        assert answer.error_type == "not_found"
        odd = await here.orchestrator.query("pi", "job", {"action": "dance"})
        assert odd.error_type == "invalid_params"
        unfit = await here.orchestrator.start_job("pi", "hold", {"wrong": 1})
        assert unfit.error is ErrorKind.INVALID_PARAMS


async def test_command_cleanup_closes_overdue_commands_as_unknown_or_expired(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path, start=False) as here:
        now = here.orchestrator.requests.clock()
        old, young = new_id(), new_id()
        for request_id, expires_at in ((old, now - 500), (young, now - 5)):
            command = tool_command("mark", request_id, text="a", expires_at=expires_at)
            await here.store.put(request_id, "pi", "run", encode(command), expires_at, sent=True)
        unsent = new_id()
        await here.store.put(unsent, "pi", "run", encode(tool_command("mark", unsent)), now - 1)
        await CommandCleanup(here.store, here.orchestrator.requests).clean_up()
        assert [await here.state(one) for one in (old, young, unsent)] == [
            "settled",
            "sent",
            "expired",
        ]
        assert (await here.orchestrator.job("pi", old)).state == "unknown"
        assert (await here.orchestrator.job("pi", unsent)).state == "expired"
        assert GIVE_UP_MARGIN_S < 500


def tools_of(here: FleetHarness) -> Executor:
    """What the model of an orchestrator is offered."""
    given: dict[type, object] = {DeviceJobs: here.orchestrator.jobs()}
    asking = here.orchestrator.edge_call(frozenset({"*"}))
    return Pipeline([asking, LocalExecutor([jobs], given=given)])


async def use(here: FleetHarness, name: str, request_id: str = "", **arguments: JSON) -> ToolResult:
    executor = tools_of(here)
    asked = ToolCall("c", name, msgspec.json.encode(arguments).decode())
    tools = Toolset.of(executor.tools())
    call = prepare(asked, tools, request_id=request_id or new_id(), resumed=bool(request_id))
    assert not isinstance(call, ToolResult), call
    async with asyncio.timeout(20):
        return await executor.execute(call, lambda text: None)


async def test_a_run_starts_a_job_and_waits_for_it_without_model_requests(tmp_path: Path) -> None:
    run_id = "ab" * 16
    job: dict[str, JSON] = {"agent_id": "pi", "action": "hold", "background": True}
    model = Scripted(
        calls(("edge_call", job | {"params": {"text": "a"}})),
        calls(("jobs", {"action": "list", "node": "pi"})),
        calls(("jobs", {"action": "wait", "node": "pi", "job_id": f"{run_id}.1.0.1"})),
        says("It was held."),
    )
    async with open_fleet(tmp_path) as here:
        ports = Ports(model, tools_of(here), Permissions(frozenset({"*"})))
        state = new_run((user("hold a while"),), run_id)
        running = asyncio.create_task(finished(run_loop(state, ports, LoopSettings())))
        await until(lambda: len(model.requests) == 3)
        await here.marks.waiting.wait()
        assert not running.done()
        here.marks.gate.set()
        async with asyncio.timeout(20):
            results = await running
    assert len(model.requests) == 4, "nothing was asked of the model while it waited"
    begun, listed, held = results
    assert begun.details["job_id"] == f"{run_id}.1.0.1"
    assert f"{run_id}.1.0.1" in listed.text and "running" in listed.text
    assert held.text == "held a"
    assert here.marks.made == ["a"]


async def finished(events: AsyncIterator[Event]) -> list[ToolResult]:
    return [event.result async for event in events if isinstance(event, CallFinished)]


async def test_waiting_for_a_job_is_resumed_after_an_orchestrator_restart(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        job_id = await begin(here)
        waiting = new_id()
        before = asyncio.create_task(
            use(here, "jobs", waiting, action="wait", node="pi", job_id=job_id)
        )
        await asyncio.sleep(0)
        await here.crash()
        before.cancel()
        await asyncio.wait([before])
        await here.open()
        await here.wait_online()
        again = asyncio.create_task(
            use(here, "jobs", waiting, action="wait", node="pi", job_id=job_id)
        )
        here.marks.gate.set()
        assert (await again).text == "held a"
        assert here.marks.made == ["a"]


async def test_the_jobs_tool_reads_and_cancels_a_job(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        job_id = await begin(here)
        stands = await use(here, "jobs", action="read", node="pi", job_id=job_id)
        assert "is running" in stands.text
        ended_by = await use(here, "jobs", action="cancel", node="pi", job_id=job_id)
        assert ended_by.details["cancelled"] is True
        result = await use(here, "jobs", action="wait", node="pi", job_id=job_id)
        assert result.error is ErrorKind.CANCELLED
        for action in ("read", "wait", "cancel"):
            refused = await use(here, "jobs", action=action, node="pi", job_id="nothing")
            assert refused.error is ErrorKind.NOT_FOUND
        asked = await use(here, "edge_call", agent_id="pi", query="how are you?", background=True)
        assert "Only a tool of the agent" in asked.text
