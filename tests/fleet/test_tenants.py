"""Tenants that share an edge: each is told of what it asked for, and of nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.calls import prepare
from evoclaw.core.errors import ToolFailure
from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON, ErrorKind, ToolCall, ToolResult
from evoclaw.core.tools import Context
from evoclaw.core.toolset import Toolset
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.fleet.jobs import JobNotFound
from evoclaw.tools.nodes import DeviceJobs, jobs
from tests.support.fleet import FleetHarness, new_id, open_fleet

ACME, UMBRELLA = Principal("acme", "bob"), Principal("umbrella", "bob")


async def use(here: FleetHarness, who: Principal, **arguments: JSON) -> ToolResult:
    """Have the tool `jobs` used on behalf of somebody."""
    executor = LocalExecutor([jobs], given={DeviceJobs: here.orchestrator.jobs()})
    asked = ToolCall("c", "jobs", msgspec.json.encode({"node": "pi", **arguments}).decode())
    context = Context(principal=who)
    call = prepare(asked, Toolset.of(executor.tools()), request_id=new_id(), context=context)
    assert not isinstance(call, ToolResult), call
    async with asyncio.timeout(20):
        try:
            return await executor.execute(call, lambda text: None)
        except ToolFailure as problem:
            return call.failed(problem.kind, problem.message)


async def test_fault_56_a_job_of_another_tenant_is_neither_listed_nor_read_nor_cancelled(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        begun = await here.orchestrator.start_job("pi", "hold", {"text": "a"}, principal=ACME)
        job_id = str(begun.details["job_id"])
        assert job_id in (await use(here, ACME, action="list")).text
        assert (await use(here, UMBRELLA, action="list")).text == "No job is running there."
        for action in ("read", "wait", "cancel"):
            guessed = await use(here, UMBRELLA, action=action, job_id=job_id)
            unknown = await use(here, UMBRELLA, action=action, job_id="never")
            assert guessed.error is unknown.error is ErrorKind.NOT_FOUND
            assert guessed.text == unknown.text.replace("never", job_id)
        assert (await here.orchestrator.job("pi", job_id, tenant="acme")).state == "running"
        with pytest.raises(JobNotFound):
            await here.orchestrator.job("pi", job_id)
        here.marks.gate.set()
        assert (await use(here, ACME, action="wait", job_id=job_id)).text == "held a"


async def test_fault_56_a_result_is_returned_only_to_the_requesting_tenant(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        edge, plain = here.orchestrator.edge("pi"), here.call("mark", text="a")
        own, other = (
            msgspec.structs.replace(plain, context=Context(principal=who))
            for who in (ACME, UMBRELLA)
        )
        assert (await edge.execute(own, lambda text: None)).text == "marked a"
        assert (await edge.execute(own, lambda text: None)).text == "marked a", "asked again"
        with pytest.raises(ToolFailure, match="use another id"):
            await edge.execute(other, lambda text: None)
        assert here.marks.made == ["a"]
        kept = await here.store.of("acme").get(own.request_id)
        assert kept is not None and kept.outcome is not None
        assert await here.store.of("umbrella").get(own.request_id) is None
