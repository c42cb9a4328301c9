"""Jobs: begun at once, going on by themselves, asked for later."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.ports import Progress
from evoclaw.orchestrator.jobs import Job, NoJob
from evoclaw.orchestrator.tidying import MARGIN, Tidying, last_moment
from evoclaw.tools.define import tool
from evoclaw.transport.wire import Command, encode
from tests.fleet.support import QUICK, Ear, House, house, new_id, tool_command, until


async def begin(here: House, name: str = "hold", **more: float) -> str:
    """Begin a job; its id."""
    result = await here.orchestrator.start_job("pi", name, {"text": "a"}, **more)
    assert result.error is None, result.text
    assert result.details["state"] == "running"
    return str(result.details["job_id"])


async def ended(here: House, job_id: str) -> Job:
    """How a job ended, when it has."""
    await here.reached(job_id, "settled")
    return await here.orchestrator.job("pi", job_id)


async def jobs(here: House) -> list[JSON]:
    return (await here.orchestrator.say("pi", "job", {"action": "list"})).result["jobs"]


async def test_a_job_is_answered_when_it_has_begun_and_its_result_is_kept(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        job_id = await begin(here)
        running = await here.orchestrator.job("pi", job_id)
        assert (running.state, running.ended) == ("running", False)
        assert running.details["tool"] == "hold"
        (listed,) = await jobs(here)
        assert (listed["job_id"], listed["background"]) == (job_id, True)
        here.marks.gate.set()
        done = await ended(here, job_id)
        assert (done.state, done.ended) == ("succeeded", True)
        assert done.result is not None and done.result.text == "held a"
        assert await jobs(here) == []
        assert here.marks.made == ["a"]


async def test_a_job_outlives_its_orchestrator_and_the_link(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        job_id = await begin(here)
        await here.crash()
        here.pi.link.drop()
        await here.open()
        await here.there()
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


async def test_a_job_that_ended_while_nobody_listened_is_told_when_somebody_does(
    tmp_path: Path,
) -> None:
    async with house(tmp_path) as here:
        job_id = await begin(here)
        await here.crash()
        here.marks.gate.set()
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: edge.reports.untold == [job_id])
        await here.open()
        assert (await ended(here, job_id)).state == "succeeded"


async def test_a_job_that_a_restart_of_its_device_cut_off_is_unknown(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        job_id = await begin(here)
        await here.pi.crash()
        await here.pi.start()
        done = await ended(here, job_id)
        assert (done.state, done.ended) == ("unknown", True)
        assert done.result is not None and "may have happened" in done.result.text
        assert here.marks.made == ["a"]


async def test_a_job_can_be_cancelled(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        job_id = await begin(here)
        payload: dict[str, JSON] = {"action": "cancel", "job_id": job_id}
        answer = (await here.orchestrator.say("pi", "job", payload)).result
        assert answer["cancelled"] is True
        assert (await ended(here, job_id)).state == "cancelled"
        again = (await here.orchestrator.say("pi", "job", payload)).result
        assert (again["cancelled"], again["state"]) == (False, "cancelled")


async def test_a_job_ends_at_its_deadline_which_may_be_far_beyond_its_tools(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        job_id = await begin(here, seconds=0.3)
        assert (await ended(here, job_id)).state == "timeout"
        for seconds, given in ((7200.0, 7200.0), (1e9, 86_400.0)):
            row = await here.row(await begin(here, seconds=seconds))
            command = msgspec.json.decode(row.payload, type=Command)
            assert command.payload["timeout_ms"] == given * 1000
            assert row.expires_at is not None
            assert last_moment(command) > row.expires_at + given, "nobody gives it up before"
        unsaid = tool_command("hold", text="a", background=True, expires_at=5.0)
        assert last_moment(unsaid) > 86_400


@tool("shell", timeout=5)
async def chatter(progress: Progress, text: str) -> str:
    """Say something now and then, and at last nothing."""
    for n in range(4):
        progress(f"{text} {n}\n")
        await asyncio.sleep(0.1)
    await asyncio.sleep(60)
    return "never"


async def test_a_job_that_says_nothing_for_too_long_is_ended(tmp_path: Path) -> None:
    async with house(tmp_path, tools=[chatter]) as here:
        loop = asyncio.get_running_loop()
        began = loop.time()
        job_id = await begin(here, "chatter", idle=0.3)

        async def spoke() -> bool:
            job = await here.orchestrator.job("pi", job_id)
            return "a 3" in str(job.details.get("output"))

        await until(spoke)
        done = await ended(here, job_id)
        assert done.state == "timeout"
        assert done.result is not None
        assert "said nothing for 0.3s" in done.result.text and "a 3" in done.result.text
        assert loop.time() - began > 0.5, "not while it spoke"


async def test_jobs_take_no_places_of_calls_and_are_not_more_than_allowed(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(QUICK, concurrency=1, queue=0, jobs=2)
    async with house(tmp_path, limits=limits) as here:
        await begin(here)
        await begin(here)
        third = await here.orchestrator.start_job("pi", "hold", {"text": "c"})
        assert third.error is ErrorKind.QUEUE_FULL
        assert (await here.ask("mark", text="b")).error is None


async def test_a_job_asked_for_twice_is_one_job(tmp_path: Path) -> None:
    async with house(tmp_path) as here, Ear(here.broker) as ear:
        command = tool_command("hold", text="a", background=True)
        here.tell(command)
        await here.marks.waiting.wait()
        here.tell(command)
        await until(lambda: len(ear.reports()) >= 2)
        assert here.marks.made == ["a"]
        assert ear.ends(command.request_id) == [], "it has not ended"


async def test_a_job_that_nobody_began_is_not_made_up(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        with pytest.raises(NoJob):
            await here.orchestrator.job("pi", "nothing")
        job_id = await begin(here)
        with pytest.raises(NoJob):
            await here.orchestrator.job("desk", job_id)
        answer = await here.orchestrator.say("pi", "job", {"action": "read", "job_id": "nothing"})
        assert answer.error_type == "not_found"
        odd = await here.orchestrator.say("pi", "job", {"action": "dance"})
        assert odd.error_type == "invalid_params"
        unfit = await here.orchestrator.start_job("pi", "hold", {"wrong": 1})
        assert unfit.error is ErrorKind.INVALID_PARAMS


async def test_what_nobody_waits_for_any_more_is_closed_as_unknown(tmp_path: Path) -> None:
    async with house(tmp_path, start=False) as here:
        now = here.orchestrator.requests.clock()
        old, young = new_id(), new_id()
        for request_id, expires_at in ((old, now - 500), (young, now - 5)):
            command = tool_command("mark", request_id, text="a", expires_at=expires_at)
            await here.store.put(request_id, "pi", "run", encode(command), expires_at, sent=True)
        unsent = new_id()
        await here.store.put(unsent, "pi", "run", encode(tool_command("mark", unsent)), now - 1)
        await Tidying(here.store, here.orchestrator.requests).tidy()
        assert [await here.state(one) for one in (old, young, unsent)] == [
            "settled",
            "sent",
            "expired",
        ]
        assert (await here.orchestrator.job("pi", old)).state == "unknown"
        assert (await here.orchestrator.job("pi", unsent)).state == "expired"
        assert MARGIN < 500
