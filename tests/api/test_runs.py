"""Runs over HTTP: begun once, watched, steered, answered, cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import StreamReader

from evoclaw.api.settings import ServerSettings
from evoclaw.core.events import Record, RunFinished
from evoclaw.core.messages import JSON
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.sessions.recordings import read_recording
from evoclaw.store.sessions.sessions import Session
from tests.support.service import Client, running_service

RUNNER = ("runs:read", "runs:write")
QUESTION = {"question": "Which one?", "options": ["red", "blue"]}


class Event(msgspec.Struct):
    id: str = ""
    event: str = ""
    data: JSON = None


async def next_event(stream: StreamReader) -> Event | None:
    """The next event; None at the end. Comments are read over."""
    found = Event()
    while line := await stream.readline():
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if not name and found.event:
            return found
        if name in ("id", "event"):
            setattr(found, name, value)
        elif name == "data":
            found.data = msgspec.json.decode(value)
    return None


@asynccontextmanager
async def watching(client: Client, path: str, **headers: str) -> AsyncGenerator[StreamReader]:
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.http.get(client.url + path, headers=client.headers(more)) as response:
        assert response.status == 200, await response.text()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield response.content


async def all_events(client: Client, path: str, **headers: str) -> list[Event]:
    async with watching(client, path, **headers) as stream:
        found: list[Event] = []
        while (event := await next_event(stream)) is not None:
            found.append(event)
        return found


async def begun(client: Client, message: str = "go", **more: JSON) -> str:
    answer = await client.post("/v1/runs", {"message": message, **more})
    assert answer.status == 201, answer.body
    return str(answer.json["run_id"])


async def test_a_run_is_started_and_its_answer_read(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(says("four"))) as up:
        ann = await up.client_with(*RUNNER)
        answer = await ann.post("/v1/runs", {"message": "what is 2 + 2?"})
        assert answer.status == 201, answer.body
        assert answer.headers["location"] == f"/v1/runs/{answer.json['run_id']}"
        found = await ann.until(f"/v1/runs/{answer.json['run_id']}", "state", "ended")
        assert (found["text"], found["stop"], found["owner"]) == ("four", "completed", "ann")


async def test_run_events_are_streamed_and_can_be_resumed_by_event_id(tmp_path: Path) -> None:
    model = Scripted(calls(("work", {"what": "it"})), says("done"))
    async with running_service(tmp_path, model) as up:
        ann = await up.client_with(*RUNNER)
        path = f"/v1/runs/{await begun(ann)}"
        events = await all_events(ann, f"{path}/events")
        assert [event.event for event in events][0] == "run_started"
        assert events[-1].event == "run_finished"
        numbers = [int(event.id) for event in events]
        assert numbers == sorted(set(numbers))
        assert all(event.data["seq"] == int(event.id) for event in events)
        middle = events[len(events) // 2]
        for headers, query in (({"last_event_id": middle.id}, ""), ({}, f"?after={middle.id}")):
            rest = await all_events(ann, f"{path}/events{query}", **headers)
            assert [event.id for event in rest] == [
                event.id for event in events if int(event.id) > int(middle.id)
            ]


async def test_the_records_of_a_run_download_as_a_recording(tmp_path: Path) -> None:
    model = Scripted(calls(("work", {"what": "it"})), says("done"))
    async with running_service(tmp_path, model) as up:
        ann = await up.client_with(*RUNNER)
        run_id = await begun(ann)
        await ann.until(f"/v1/runs/{run_id}", "state", "ended")
        answer = await ann.get(f"/v1/runs/{run_id}/records")
        assert answer.headers["content-type"] == "application/x-ndjson"
    file = tmp_path / "run.jsonl"
    file.write_bytes(answer.body)
    records = read_recording(file)
    assert isinstance(records[-1].event, RunFinished)
    assert all(isinstance(record, Record) for record in records)


async def test_fault_65_one_idempotency_key_is_one_run_concurrently_and_after_restart(
    tmp_path: Path,
) -> None:
    body = {"message": "only once"}
    async with running_service(tmp_path, Scripted(says("done"))) as up:
        token = await up.house.token(*RUNNER)
        ann = up.client(token)
        asked = [ann.post("/v1/runs", body, idempotency_key="k1") for _ in range(20)]
        answers = await asyncio.gather(*asked)
        assert sorted(answer.status for answer in answers) == [200] * 19 + [201]
        ids = {answer.json["run_id"] for answer in answers}
        assert len(ids) == 1
        await ann.until(f"/v1/runs/{next(iter(ids))}", "state", "ended")
    async with running_service(tmp_path, Scripted()) as up:
        ann = up.client(token)
        again = await ann.post("/v1/runs", body, idempotency_key="k1")
        assert (again.status, again.json["run_id"], again.json["text"]) == (200, *ids, "done")
        other = await ann.post("/v1/runs", {"message": "another"}, idempotency_key="k1")
        assert (other.status, other.code) == (409, "key_reused")
        assert len((await ann.get("/v1/runs")).json["items"]) == 1


async def test_a_run_in_progress_can_be_steered_and_an_ended_one_cannot(tmp_path: Path) -> None:
    model = Scripted(calls(("work", {"what": "it"})), says("done"), says("as you say"))
    async with running_service(tmp_path, model) as up:
        up.house.may_go_on.clear()
        ann = await up.client_with(*RUNNER)
        run_id = await begun(ann)
        async with watching(ann, f"/v1/runs/{run_id}/events") as stream:
            while (event := await next_event(stream)) is not None and event.event != "call_started":
                pass
            said = await ann.post(f"/v1/runs/{run_id}/messages", {"message": "make it blue"})
            assert said.status == 202, said.body
            up.house.may_go_on.set()
            kinds: list[str] = []
            while (event := await next_event(stream)) is not None:
                kinds.append(event.event)
        assert "prompted" in kinds
        assert kinds[-1] == "run_finished"
        late = await ann.post(f"/v1/runs/{run_id}/messages", {"message": "too late"})
        assert (late.status, late.code) == (409, "ended")
        gone = await ann.post(f"/v1/runs/{run_id}/cancel")
        assert gone.json == {"cancelled": False}


async def test_a_cancelled_run_ends(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(calls(("work", {})), says("never"))) as up:
        up.house.may_go_on.clear()
        ann = await up.client_with(*RUNNER)
        run_id = await begun(ann)
        async with watching(ann, f"/v1/runs/{run_id}/events") as stream:
            while (event := await next_event(stream)) is not None and event.event != "call_started":
                pass
            assert (await ann.post(f"/v1/runs/{run_id}/cancel")).json == {"cancelled": True}
        found = await ann.until(f"/v1/runs/{run_id}", "state", "ended")
        assert found["stop"] == "cancelled"
        assert not up.house.ran


async def test_only_a_human_token_can_approve_a_waiting_call(tmp_path: Path) -> None:
    model = Scripted(calls(("work", {"what": "it"})), says("done"))
    async with running_service(tmp_path, model, rules=Autonomy(Level.SUPERVISED)) as up:
        program = await up.client_with("admin")
        person = await up.client_with("human", "runs:read", "approvals:read")
        run_id = await begun(program)
        await program.until(f"/v1/runs/{run_id}", "state", "waiting")
        refused = await program.post(f"/v1/runs/{run_id}/approve")
        assert (refused.status, refused.code) == (403, "forbidden")
        (waits,) = (await person.get(f"/v1/approvals?run_id={run_id}")).json["items"]
        assert (waits["tool"], waits["standing"]) == ("work", "waiting")
        told = await program.post(f"/v1/approvals/{waits['id']}/answer", {"decision": "once"})
        assert told.status == 403
        assert not up.house.ran
        approved = await person.post(f"/v1/runs/{run_id}/approve", {"reason": "fine"})
        assert approved.status == 200, approved.body
        assert approved.json["answered_by"] == "ann"
        found = await person.until(f"/v1/runs/{run_id}", "state", "ended")
        assert (found["text"], up.house.ran) == ("done", ["it"])
        again = await person.post(f"/v1/approvals/{waits['id']}/answer", {"decision": "deny"})
        assert (again.status, again.code) == (409, "not_waiting")


async def test_a_denied_call_never_runs(tmp_path: Path) -> None:
    model = Scripted(calls(("work", {"what": "it"})), says("then not"))
    async with running_service(tmp_path, model, rules=Autonomy(Level.SUPERVISED)) as up:
        person = await up.client_with("human", *RUNNER)
        run_id = await begun(person)
        await person.until(f"/v1/runs/{run_id}", "state", "waiting")
        assert (await person.post(f"/v1/runs/{run_id}/deny", {"reason": "no"})).status == 200
        found = await person.until(f"/v1/runs/{run_id}", "state", "ended")
        assert (found["text"], up.house.ran) == ("then not", [])


async def test_a_run_continues_after_its_question_is_answered(tmp_path: Path) -> None:
    model = Scripted(calls(("question", QUESTION)), says("blue it is"))
    async with running_service(tmp_path, model) as up:
        person = await up.client_with("human", "approvals:read", *RUNNER)
        run_id = await begun(person)
        await person.until(f"/v1/runs/{run_id}", "state", "waiting")
        (asked,) = (await person.get("/v1/questions")).json["items"]
        assert (asked["run_id"], asked["options"]) == (run_id, ["red", "blue"])
        answer = await person.post(f"/v1/runs/{run_id}/answer", {"chosen": ["blue"]})
        assert answer.status == 200, answer.body
        found = await person.until(f"/v1/runs/{run_id}", "state", "ended")
        assert found["text"] == "blue it is"
        again = await person.post(f"/v1/runs/{run_id}/answer", {"chosen": ["red"]})
        assert (again.status, again.code) == (409, "nothing_waits")


async def test_run_pages_contain_each_run_once(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(*[says("ok")] * 5)) as up:
        ann = await up.client_with(*RUNNER)
        made = [await begun(ann, f"number {number}") for number in range(5)]
        found: list[str] = []
        before = ""
        for _ in range(4):
            page = (await ann.get(f"/v1/runs?limit=2&before={before}")).json
            found += [item["run_id"] for item in page["items"]]
            before = page["next"]
            if not before:
                break
        assert found == made[::-1]


async def test_max_turns_of_a_request_limits_the_run(tmp_path: Path) -> None:
    model = Scripted(*[calls(("work", {"what": str(number)})) for number in range(3)], says("end"))
    async with running_service(tmp_path, model) as up:
        ann = await up.client_with(*RUNNER)
        run_id = await begun(ann, max_turns=2)
        found = await ann.until(f"/v1/runs/{run_id}", "state", "ended")
        assert found["stop"] == "max_iterations"
        assert len(up.house.ran) == 2


async def test_a_draining_server_refuses_new_runs_with_retry_after(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path, Scripted()) as up:
        ann = await up.client_with(*RUNNER)
        assert (await ann.get("/health/ready")).status == 200
        await up.house.runs.drain(0)
        answer = await ann.post("/v1/runs", {"message": "go"})
        assert (answer.status, answer.code) == (503, "draining")
        assert int(answer.headers["retry-after"]) > 0
        ready = await ann.get("/health/ready")
        assert (ready.status, ready.json["parts"]["runs"]) == (503, "draining")


async def test_an_event_stream_sends_heartbeats_and_a_closing_event(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, heartbeat_s=0.05, stop_within_s=1)
    model = Scripted(calls(("work", {})), says("done"))
    async with running_service(tmp_path, model, settings=settings) as up:
        up.house.may_go_on.clear()
        ann = await up.client_with(*RUNNER)
        run_id = await begun(ann)
        url = f"{ann.url}/v1/runs/{run_id}/events"
        response = await ann.http.get(url, headers=ann.headers())
        while (line := await response.content.readline()) != b": still here\n":
            assert line
        up.app.state["watchers"].closing.set()
        rest = (await response.content.read()).decode()
        assert "event: closing" in rest
        up.house.may_go_on.set()


async def test_watchers_over_the_limit_are_refused_and_open_ones_stay(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, watchers_per_caller=1, stop_within_s=1)
    async with running_service(
        tmp_path, Scripted(calls(("work", {})), says("x")), settings=settings
    ) as up:
        up.house.may_go_on.clear()
        ann, bob = await up.client_with(*RUNNER), await up.client_with(*RUNNER)
        path = f"/v1/runs/{await begun(ann)}/events"
        async with watching(ann, path) as stream:
            assert (await next_event(stream)) is not None
            refused = await ann.get(path)
            assert (refused.status, refused.code) == (429, "too_many_watchers")
            async with watching(bob, path) as other:
                assert (await next_event(other)) is not None
            up.house.may_go_on.set()
            told = ""
            while (event := await next_event(stream)) is not None:
                told = event.event
        assert told == "run_finished"
        figures = await up.client_with("metrics:read")
        async with asyncio.timeout(30):
            while b"evoclaw_http_watchers 0" not in (await figures.get("/metrics")).body:
                pass


async def test_child_runs_are_listed_by_parent_run(tmp_path: Path) -> None:
    async with running_service(tmp_path) as up:
        ann = await up.client_with(*RUNNER)
        top = (await ann.post("/v1/runs", {"message": "hello"})).json
        store = up.house.talks.store
        for number in range(3):
            session = Session(f"below-{number}", "helper", owner="ann")
            await store.create(session)
            below = {"parent_run": top["run_id"], "root_run": top["run_id"]}
            await store.create_run(f"b{number}", session.id, "do it", **below)

        found = (await ann.get(f"/v1/runs?parent_run={top['run_id']}&limit=2")).json
        rest = (await ann.get(f"/v1/runs?parent_run={top['run_id']}&before={found['next']}")).json

        assert [one["run_id"] for one in (*found["items"], *rest["items"])] == ["b2", "b1", "b0"]
        assert (await ann.get("/v1/runs?parent_run=b0")).json["items"] == []
        bob = await up.client_with(*RUNNER, user="bob")
        assert (await bob.get(f"/v1/runs?parent_run={top['run_id']}")).json["items"] == []
