"""Two `evoclaw up` on one PostgreSQL: what one drives is begun, watched and told through the other.

Each test asks through the one that does not drive the run, whichever of the two that is.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from secrets import token_hex

import aiohttp
import pytest
import pytest_asyncio

from evoclaw.core.messages import JSON
from tests.api.test_runs import Event, all_events, next_event, watching
from tests.support.model_server import ModelServer, model_server
from tests.support.postgres import Postgres, why_no_postgres
from tests.support.service import Client
from tests.support.up_process import (
    PATIENCE,
    SETTINGS,
    UpProcess,
    ok,
    session_texts,
    start_run,
    wait_for_state,
)
from tests.support.waiting import until

CAREFUL = """
[[agents]]
id = "careful"
capabilities = ["*"]
autonomy = "supervised"
"""
SHOW = """\
call todowrite {"todos": [{"content": "show it"}]}
call canvas {"action": "show", "content": "<b>%s</b>", "title": "%s"}
say shown"""
"""A call that needs an approval, and one that needs none."""
QUESTION = f"call question {json.dumps({'question': 'Which colour?'})}\nsay thank you"
module = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Here:
    """Two orchestrators that share their store, and those who ask them."""

    ups: list[UpProcess]
    owners: list[Client]
    models: ModelServer

    async def driver(self, run_id: str) -> int:
        """Which of them drives the only run that goes on."""
        found = [0, 0]

        async def one_does() -> bool:
            found[:] = [await _live(owner) for owner in self.owners]
            return sum(found) == 1

        await until(one_does, PATIENCE, f"{run_id} is driven by one of them")
        return found.index(1)

    async def apart(self, run_id: str) -> tuple[Client, Client]:
        """Who drives the only run that goes on, and the other one."""
        driver = await self.driver(run_id)
        return self.owners[driver], self.owners[1 - driver]

    async def idle(self) -> None:
        """Wait until nothing goes on anywhere."""

        async def none_does() -> bool:
            return not any([await _live(owner) for owner in self.owners])

        await until(none_does, PATIENCE, "nothing goes on")


async def _live(owner: Client) -> int:
    text = (await owner.get("/metrics")).body.decode()
    found = re.search(r"^evoclaw_runs_live(?:\{[^}]*\})? ([0-9.]+)$", text, re.MULTILINE)
    assert found is not None, text
    return int(float(found[1]))


@pytest.fixture(name="server", scope="module")
def _server() -> Generator[Postgres]:
    if reason := why_no_postgres():
        pytest.skip(reason)
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest_asyncio.fixture(name="here", scope="module", loop_scope="module")
async def _here(server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Here]:
    schema, ups = f"test_{token_hex(6)}", list[UpProcess]()
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(model_server())
        patience = aiohttp.ClientTimeout(PATIENCE)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=patience, connector=aiohttp.TCPConnector(limit=0))
        )
        for name in ("one", "two"):
            up = UpProcess(tmp_path_factory.mktemp(name), models, http)
            up.configure(SETTINGS + CAREFUL)
            up.shell.env |= {"EVOCLAW_STORE_URL": server.url, "EVOCLAW_STORE_SCHEMA": schema}
            ups.append(up)
            stack.push_async_callback(_stop, up)
        owners = [await up.start() for up in ups]
        yield Here(ups, owners, models)
    for up in ups:
        assert "Traceback" not in up.output(), up.output()


async def _stop(up: UpProcess) -> None:
    if up.running:
        await up.stop()


def words(events: list[Event]) -> str:
    """What was said, piece by piece."""
    return "".join(one.data["event"]["text"] for one in events if one.event == "text_delta")


def numbered(count: int) -> str:
    return "".join(f"word{number} " for number in range(count))


async def seen(client: Client, path: str, count: int) -> list[Event]:
    """Watch until so many pieces of the reply were there."""
    found: list[Event] = []
    async with watching(client, path) as stream:
        while sum(one.event == "text_delta" for one in found) < count:
            event = await next_event(stream)
            assert event is not None
            found.append(event)
    return found


@module
async def test_a_reply_streams_through_the_other_orchestrator_without_gaps(here: Here) -> None:
    run_id = await start_run(here.owners[0], "wait pieces 40")
    driver, other = await here.apart(run_id)
    path = f"/v1/runs/{run_id}/events"
    await asyncio.wait_for(here.models.held["pieces"].wait(), PATIENCE)
    # The model is held up in the middle of its reply: nothing that matters was stored since.
    before = await seen(other, path, 20)
    assert words(before) == numbered(20)
    rest = asyncio.create_task(all_events(other, path, last_event_id=before[-1].id))
    here.models.gates["pieces"].set()
    events = before + await rest
    assert words(events) == numbered(40)
    assert events[-1].event == "run_finished"
    numbers = [int(event.id) for event in events]
    assert numbers == sorted(set(numbers))
    assert events == await all_events(driver, path)
    assert ok(await other.get(f"/v1/runs/{run_id}"))["text"] == numbered(40)


@module
async def test_a_message_posted_to_the_other_orchestrator_steers_the_run(here: Here) -> None:
    run_id = await start_run(here.owners[1], "wait steered 10")
    _, other = await here.apart(run_id)
    await asyncio.wait_for(here.models.held["steered"].wait(), PATIENCE)
    said = await other.post(f"/v1/runs/{run_id}/messages", {"message": "say heard you"})
    assert said.status == 202
    here.models.gates["steered"].set()
    view = await wait_for_state(other, run_id)

    async def answered() -> bool:
        # By this run; or by the next one, if it had just decided that it was done.
        return (await session_texts(other, view["session_id"]))[-2:] == [
            "say heard you",
            "heard you",
        ]

    await until(answered, PATIENCE, "what was said is answered")
    assert here.models.count("say heard you") == 1


@module
async def test_a_run_is_cancelled_through_the_other_orchestrator(here: Here) -> None:
    run_id = await start_run(here.owners[0], "wait cancelled 10")
    driver, other = await here.apart(run_id)
    await asyncio.wait_for(here.models.held["cancelled"].wait(), PATIENCE)
    gone = here.models.gone
    assert ok(await other.post(f"/v1/runs/{run_id}/cancel"))["cancelled"] is True
    assert (await wait_for_state(driver, run_id))["stop"] == "cancelled"
    await until(lambda: here.models.gone == gone + 1, say="the model's reply is not heard out")
    assert (await all_events(other, f"/v1/runs/{run_id}/events"))[-1].event == "run_finished"


@module
@pytest.mark.parametrize("door", [0, 1])
async def test_a_question_is_answered_through_either_orchestrator(here: Here, door: int) -> None:
    await here.idle()
    run_id = await start_run(here.owners[0], QUESTION)
    owner = here.owners[door]
    watched = asyncio.create_task(all_events(owner, f"/v1/runs/{run_id}/events?follow=true"))
    await wait_for_state(owner, run_id, "waiting")
    asked = ok(await owner.get("/v1/questions"))["items"]
    assert [one["run_id"] for one in asked] == [run_id]
    ok(await owner.post(f"/v1/runs/{run_id}/answer", {"text": "blue"}))
    events = await watched
    assert events[-1].data["event"]["text"] == "thank you"
    assert events == await all_events(here.owners[1 - door], f"/v1/runs/{run_id}/events")


@module
@pytest.mark.parametrize("door", [0, 1])
async def test_a_call_is_approved_and_its_canvas_read_through_either_orchestrator(
    here: Here, door: int
) -> None:
    await here.idle()
    run_id = await start_run(here.owners[0], SHOW % (door, door), agent="careful")
    owner, other = here.owners[door], here.owners[1 - door]
    waiting = await wait_for_state(owner, run_id, "waiting")
    found = ok(await owner.get(f"/v1/approvals?run_id={run_id}"))["items"]
    assert [one["tool"] for one in found] == ["todowrite"]
    ok(await owner.post(f"/v1/runs/{run_id}/approve"))
    view = await wait_for_state(other, run_id)
    assert (view["stop"], view["text"]) == ("completed", "shown")
    for one in here.owners:
        sheet = ok(await one.get(f"/v1/sessions/{waiting['session_id']}/canvas"))
        assert (sheet["content"], sheet["title"]) == (f"<b>{door}</b>", str(door))


@module
async def test_an_approval_from_the_command_line_reaches_both_orchestrators(here: Here) -> None:
    await here.idle()
    run_id = await start_run(here.owners[1], SHOW % ("typed", "typed"), agent="careful")
    await wait_for_state(here.owners[0], run_id, "waiting")
    (found,) = ok(await here.owners[0].get(f"/v1/approvals?run_id={run_id}"))["items"]
    # A process of the person's, which drives nothing and knows of neither.
    typed = await here.ups[0].shell.type("approvals", "approve", found["id"])
    assert typed.code == 0, typed.err
    for owner in here.owners:
        assert (await wait_for_state(owner, run_id))["text"] == "shown"


@module
async def test_one_idempotency_key_starts_one_run_through_both_orchestrators(here: Here) -> None:
    await here.idle()
    body, key = {"message": "say once"}, token_hex(8)
    answers = await asyncio.gather(
        *(one.post("/v1/runs", body, idempotency_key=key) for one in here.owners)
    )
    assert sorted(one.status for one in answers) == [200, 201]
    (run_id,) = {one.json["run_id"] for one in answers}
    for one in here.owners:
        assert (await wait_for_state(one, run_id))["text"] == "once"
    assert here.models.count("say once") == 1


@module
async def test_run_changes_on_one_orchestrator_are_streamed_by_the_other(here: Here) -> None:
    await here.idle()

    async def told(owner: Client, ready: asyncio.Event, wanted: str) -> JSON:
        """Watch what changes until a run that answers with a text has ended."""
        async with watching(owner, "/v1/events?topics=runs") as stream:
            while event := await next_event(stream):
                ready.set()
                for run in event.data["items"]:
                    if (run["state"], run.get("text")) == ("ended", wanted):
                        return run
        raise AssertionError("the feed ended")

    for number, owner in enumerate(here.owners):
        ready, wanted = asyncio.Event(), f"news {number}"
        watcher = asyncio.create_task(told(here.owners[1 - number], ready, wanted))
        await asyncio.wait_for(ready.wait(), PATIENCE)
        run_id = await start_run(owner, f"say {wanted}")
        assert (await asyncio.wait_for(watcher, PATIENCE))["run_id"] == run_id


@module
async def test_a_session_continues_through_the_other_orchestrator(here: Here) -> None:
    await here.idle()
    first = await start_run(here.owners[0], "wait first 4")
    session = ok(await here.owners[0].get(f"/v1/runs/{first}"))["session_id"]
    await asyncio.wait_for(here.models.held["first"].wait(), PATIENCE)
    second = await start_run(here.owners[1], "say second", session_id=session)
    assert ok(await here.owners[0].get(f"/v1/runs/{second}"))["state"] == "queued"
    third = await start_run(here.owners[0], "say third", session_id=session)
    assert ok(await here.owners[1].post(f"/v1/runs/{third}/cancel"))["cancelled"] is True
    assert (await wait_for_state(here.owners[0], third))["stop"] == "cancelled"
    here.models.gates["first"].set()
    views = [await wait_for_state(owner, second) for owner in here.owners]
    assert [view["text"] for view in views] == ["second", "second"]
    ended = ok(await here.owners[1].get(f"/v1/runs/{first}"))["ended_at"]
    assert ended <= views[0]["ended_at"]
    assert here.models.count("say third") == 0


@module
async def test_a_watch_continues_after_the_driving_orchestrator_is_killed(
    here: Here,
) -> None:
    """The last one: one of the two is gone after it."""
    await here.idle()
    run_id = await start_run(here.owners[0], "wait killed 10")
    await asyncio.wait_for(here.models.held["killed"].wait(), PATIENCE)
    driver = await here.driver(run_id)
    other, path = here.owners[1 - driver], f"/v1/runs/{run_id}/events"
    assert words(await seen(other, path, 5)) == numbered(5)
    watched = asyncio.create_task(all_events(other, path))
    await here.ups[driver].kill()
    here.models.gates["killed"].set()
    events = await asyncio.wait_for(watched, PATIENCE)
    assert events[-1].data["event"]["text"] == numbered(10)
    numbers = [int(event.id) for event in events]
    assert numbers == sorted(set(numbers))
    assert [event.event for event in events].count("run_resumed") == 1
    assert events == await all_events(other, path)
    assert here.models.count("wait killed") == 2, "a reply that was cut off is asked for anew"
