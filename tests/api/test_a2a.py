"""A2A over HTTP: agent cards, tasks over durable runs, streams, and refusals."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from evoclaw.core.messages import JSON, ImageBlock
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.service import Client, running_service

CARD = "/.well-known/agent-card.json"
USED = ("agents:invoke",)
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def message(text: str = "Do it", id_: str = "m-1", **more: JSON) -> dict[str, JSON]:
    return {"messageId": id_, "role": "ROLE_USER", "parts": [{"text": text}], **more}


async def rpc(client: Client, method: str, path: str = "/a2a", **params: JSON) -> JSON:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = await client.post(path, body)
    assert answer.status == 200, answer.body
    assert answer.json["jsonrpc"] == "2.0" and answer.json["id"] == 1
    return answer.json


async def result(client: Client, method: str, path: str = "/a2a", **params: JSON) -> JSON:
    answer = await rpc(client, method, path, **params)
    assert "error" not in answer, answer
    return answer["result"]


async def error(client: Client, method: str, **params: JSON) -> tuple[int, str]:
    found = (await rpc(client, method, **params))["error"]
    return found["code"], found["data"][0]["reason"]


async def stream(client: Client, method: str, **params: JSON) -> list[JSON]:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    async with client.http.post(client.url + "/a2a", json=body, headers=client.headers()) as got:
        assert got.content_type == "text/event-stream", await got.text()
        lines = (await got.text()).splitlines()
    found = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert all(each["id"] == 7 for each in found)
    return [each["result"] for each in found]


def state(task: JSON) -> str:
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")


def answer_of(task: JSON) -> str:
    return "".join(part["text"] for part in task["artifacts"][0]["parts"])


def streamed_answer(events: Sequence[JSON]) -> str:
    text = ""
    for event in events:
        if "artifactUpdate" in event:
            piece = event["artifactUpdate"]["artifact"]["parts"][0]["text"]
            text = text + piece if event["artifactUpdate"].get("append") else piece
    return text


async def test_the_public_card_names_no_agent_and_the_extended_card_all(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        answer = await service.client("").get(CARD)
        card = answer.json
        assert answer.status == 200
        assert "helper" not in answer.body.decode()
        assert (await service.client("").get(f"/a2a{CARD}")).json == card
        assert card["capabilities"]["extendedAgentCard"]
        assert card["capabilities"]["pushNotifications"] is False
        assert card["supportedInterfaces"][0]["url"] == f"{service.url}/a2a"
        client = await service.client_with(*USED)
        extended = await result(client, "GetExtendedAgentCard")
        assert [skill["id"] for skill in extended["skills"]] == ["helper"]
        own = await client.get(f"/a2a/agents/helper{CARD}")
        assert own.json["name"] == "helper"
        assert own.json["supportedInterfaces"][0]["url"] == f"{service.url}/a2a/agents/helper"


@pytest.mark.parametrize(
    "path", ["/a2a", "/a2a/agents/helper", "/a2a/message:send", "/a2a/tasks/x:cancel"]
)
async def test_requests_without_a_token_are_refused(tmp_path: Path, path: str) -> None:
    async with running_service(tmp_path) as service:
        assert (await service.client("").post(path)).status == 401
        assert (await service.client("").get(f"/a2a/agents/helper{CARD}")).status == 401
        reader = await service.client_with("runs:read")
        assert (await reader.post(path)).status == 403


async def test_a_message_is_answered_by_a_task_that_can_be_read_again(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(says("Done."), says("Again."))) as service:
        client = await service.client_with(*USED)
        task = (await result(client, "SendMessage", message=message()))["task"]
        assert (state(task), answer_of(task)) == ("COMPLETED", "Done.")
        assert task["history"][0]["messageId"] == "m-1"
        assert await result(client, "GetTask", id=task["id"]) == task
        bare = await result(client, "GetTask", id=task["id"], historyLength=0)
        assert "history" not in bare
        run = await (await service.client_with()).get(f"/v1/runs/{task['id']}")
        assert run.json["session_id"] == task["contextId"]
        follow_up = message("And now?", "m-2", contextId=task["contextId"])
        second = (await result(client, "SendMessage", message=follow_up))["task"]
        assert second["contextId"] == task["contextId"] and second["id"] != task["id"]


async def test_the_same_message_again_is_the_same_task(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        client = await service.client_with(*USED)
        first = await result(client, "SendMessage", message=message())
        assert await result(client, "SendMessage", message=message()) == first
        other = message("Something else")
        assert await error(client, "SendMessage", message=other) == (-32602, "INVALID_PARAMS")


async def test_a_stream_begins_with_the_task_and_ends_with_its_state(tmp_path: Path) -> None:
    script = Scripted(calls(("work", {"what": "it"}), text="I begin."), says("All done."))
    async with running_service(tmp_path, script) as service:
        client = await service.client_with(*USED)
        events = await stream(client, "SendStreamingMessage", message=message())
        assert "task" in events[0]
        assert streamed_answer(events) == "All done."
        said = [
            event["statusUpdate"]["status"]["message"]["parts"][0]["text"]
            for event in events
            if "message" in event.get("statusUpdate", {}).get("status", {})
        ]
        assert said == ["I begin."]
        assert state(events[-1]["statusUpdate"]) == "COMPLETED"
        assert events[-2]["artifactUpdate"]["lastChunk"]


async def test_a_question_is_answered_by_a_message_to_the_task(tmp_path: Path) -> None:
    asked = {"question": "Which colour?", "options": ["red", "blue"]}
    script = Scripted(calls(("question", asked)), says("Painted."))
    async with running_service(tmp_path, script) as service:
        client = await service.client_with(*USED, "human")
        task = (await result(client, "SendMessage", message=message()))["task"]
        assert state(task) == "INPUT_REQUIRED"
        text, data = task["status"]["message"]["parts"]
        assert "Which colour?" in text["text"] and data["data"]["options"] == ["red", "blue"]
        program = await service.client_with(*USED)
        reply = message("blue", "m-2", taskId=task["id"])
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": reply}}
        refused = await program.post("/a2a", body)
        assert refused.status == 403 and "'human'" in refused.json["error"]["message"]
        done = (await result(client, "SendMessage", message=reply))["task"]
        assert (state(done), answer_of(done)) == ("COMPLETED", "Painted.")
        late = message("red", "m-3", taskId=task["id"])
        assert await error(client, "SendMessage", message=late) == (
            -32004,
            "UNSUPPORTED_OPERATION",
        )


@pytest.mark.parametrize(("said", "ran"), [("approve", ["it"]), ("Deny.", [])])
async def test_an_approval_is_answered_by_a_message_to_the_task(
    tmp_path: Path, said: str, ran: list[str]
) -> None:
    script = Scripted(calls(("work", {"what": "it"})), says("Finished."))
    rules = Autonomy(Level.SUPERVISED)
    async with running_service(tmp_path, script, rules=rules) as service:
        client = await service.client_with(*USED, "human")
        task = (await result(client, "SendMessage", message=message()))["task"]
        assert state(task) == "INPUT_REQUIRED", task
        assert task["status"]["message"]["parts"][1]["data"]["tool"] == "work"
        vague = message("hm, perhaps", "m-2", taskId=task["id"])
        assert await error(client, "SendMessage", message=vague) == (-32602, "INVALID_PARAMS")
        reply = message(said, "m-3", taskId=task["id"])
        events = await stream(client, "SendStreamingMessage", message=reply)
        assert state(events[-1]["statusUpdate"]) == "COMPLETED"
        assert service.house.ran == ran


async def test_a_task_is_cancelled_once(tmp_path: Path) -> None:
    script = Scripted(calls(("work", {"what": "it"})), says("Finished."))
    async with running_service(tmp_path, script) as service:
        service.house.may_go_on.clear()
        client = await service.client_with(*USED)
        options: JSON = {"returnImmediately": True}
        sent = await result(client, "SendMessage", message=message(), configuration=options)
        task = sent["task"]
        assert state(task) in ("SUBMITTED", "WORKING")
        found = await result(client, "CancelTask", id=task["id"])
        assert state(found) == "CANCELED"
        assert await error(client, "CancelTask", id=task["id"]) == (
            -32002,
            "TASK_NOT_CANCELABLE",
        )
        assert await error(client, "SubscribeToTask", id=task["id"]) == (
            -32004,
            "UNSUPPORTED_OPERATION",
        )


async def test_tasks_are_listed_by_page_state_and_context(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(*[says("ok")] * 5)) as service:
        client = await service.client_with(*USED)
        made = [
            (await result(client, "SendMessage", message=message("Go", f"m-{number}")))["task"]
            for number in range(5)
        ]
        first = await result(client, "ListTasks", pageSize=3)
        assert [task["id"] for task in first["tasks"]] == [task["id"] for task in made[:1:-1]]
        assert first["totalSize"] == 5 and "artifacts" not in first["tasks"][0]
        rest = await result(
            client, "ListTasks", pageToken=first["nextPageToken"], includeArtifacts=True
        )
        assert [task["id"] for task in rest["tasks"]] == [made[1]["id"], made[0]["id"]]
        assert rest["nextPageToken"] == "" and answer_of(rest["tasks"][0]) == "ok"
        of_one = await result(client, "ListTasks", contextId=made[2]["contextId"])
        assert [task["id"] for task in of_one["tasks"]] == [made[2]["id"]]
        working = await result(client, "ListTasks", status="TASK_STATE_WORKING")
        assert working["tasks"] == [] and working["totalSize"] == 0
        by_http = await client.get("/a2a/tasks?pageSize=2&status=TASK_STATE_COMPLETED")
        assert len(by_http.json["tasks"]) == 2
        assert await error(client, "ListTasks", pageToken="no") == (-32602, "INVALID_PARAMS")


async def test_tasks_of_others_do_not_exist(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(*[says("ok")] * 3)) as service:
        ann = await service.client_with(*USED)
        task = (await result(ann, "SendMessage", message=message()))["task"]
        for other in (
            await service.client_with(*USED, user="bob"),
            await service.client_with("*", tenant="other"),
        ):
            for method in ("GetTask", "CancelTask", "SubscribeToTask"):
                assert await error(other, method, id=task["id"]) == (-32001, "TASK_NOT_FOUND")
            assert (await result(other, "ListTasks"))["totalSize"] == 0
        bob = await service.client_with(*USED, user="bob")
        into = message("Hi", "m-9", contextId=task["contextId"])
        assert await error(bob, "SendMessage", message=into) == (-32602, "INVALID_PARAMS")
        foreign = await service.client_with(*USED, tenant="other")
        theirs = (await result(foreign, "SendMessage", message=message()))["task"]
        assert await result(foreign, "GetTask", id=theirs["id"]) == theirs


async def test_a_client_may_choose_the_id_of_a_new_context(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(*[says("ok")] * 3)) as service:
        client, chosen = await service.client_with(*USED), str(uuid4())
        for number in range(2):
            sent = message("Go", f"m-{number}", contextId=chosen)
            task = (await result(client, "SendMessage", message=sent))["task"]
            assert task["contextId"] == chosen
        assert (await result(client, "ListTasks", contextId=chosen))["totalSize"] == 2
        for bad in ("short", "a/b/c/d/e/f", "+" * 40):
            sent = message("Go", "m-8", contextId=bad)
            assert (await error(client, "SendMessage", message=sent))[0] == -32602


async def test_other_runs_are_tasks_only_for_a_token_that_may_read_runs(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(says("ok"))) as service:
        owner = await service.client_with()
        run = (await owner.post("/v1/runs", {"message": "Go"})).json["run_id"]
        await owner.until(f"/v1/runs/{run}", "state", "ended")
        invoker = await service.client_with(*USED)
        assert await error(invoker, "GetTask", id=run) == (-32001, "TASK_NOT_FOUND")
        assert (await result(invoker, "ListTasks"))["tasks"] == []
        reader = await service.client_with(*USED, "runs:read")
        assert state(await result(reader, "GetTask", id=run)) == "COMPLETED"


async def test_files_and_data_reach_the_model(tmp_path: Path) -> None:
    script = Scripted(says("Seen."))
    async with running_service(tmp_path, script) as service:
        client = await service.client_with(*USED)
        note = base64.b64encode(b"milk, eggs").decode()
        sent = message()
        sent["parts"] = [
            {"text": "Look"},
            {"data": {"limit": 3, "none": None}},
            {"raw": note, "mediaType": "text/plain", "filename": "list.txt"},
            {"raw": PIXEL, "mediaType": "image/png"},
        ]
        await result(client, "SendMessage", message=sent)
        asked: Any = script.requests[0].messages[-1]
        assert "Look" in asked.text and '{"limit":3,"none":null}' in asked.text
        assert 'The file "list.txt":\nmilk, eggs' in asked.text
        images = [block.media_type for block in asked.blocks if isinstance(block, ImageBlock)]
        assert images == ["image/png"]


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"url": "https://example.org/x.png"}, -32005),
        ({"raw": "AAAA", "mediaType": "application/zip"}, -32005),
        ({"raw": "AAAA", "mediaType": "image/png"}, -32005),
        ({"raw": "%%%", "mediaType": "text/plain"}, -32602),
        ({"text": "a", "data": 1}, -32602),
        ({}, -32602),
        ({"text": " "}, -32602),
        ({"text": "a\x00b"}, -32602),
    ],
)
async def test_parts_that_cannot_be_read_are_refused(tmp_path: Path, part: JSON, code: int) -> None:
    async with running_service(tmp_path) as service:
        client = await service.client_with(*USED)
        sent = message()
        sent["parts"] = [part]
        assert (await error(client, "SendMessage", message=sent))[0] == code


BAD_BODIES = [
    (b"[" * 2_000, -32700),
    (b"{" * 2_000, -32700),
    (b'{"a":' * 2_000 + b"1" + b"}" * 2_000, -32700),
    (b"", -32700),
    (b"\xff\xfe", -32700),
    (b"[]", -32600),
    (b"3", -32600),
    (b'{"jsonrpc":"1.0","id":1,"method":"GetTask"}', -32600),
    (b'{"jsonrpc":"2.0","method":"GetTask","params":{"id":"x"}}', -32600),
    (b'{"jsonrpc":"2.0","id":{},"method":"GetTask"}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":"Nothing"}', -32601),
    (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[1]}', -32602),
    (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":7}}', -32602),
    (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x\\u0000"}}', -32602),
    (b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{}}', -32602),
    (b'{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"pageSize":0}}', -32602),
    (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x","tenant":"t"}}', -32602),
    (b'{"jsonrpc":"2.0","id":1,"method":"ListTaskPushNotificationConfigs"}', -32003),
]


async def test_bad_input_is_a_protocol_error(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        client = await service.client_with(*USED)
        for body, code in BAD_BODIES:
            for path in ("/a2a", "/a2a/agents/helper"):
                async with client.http.post(
                    client.url + path, data=body, headers=client.headers()
                ) as got:
                    assert got.status == 200, body
                    assert (await got.json())["error"]["code"] == code, body
        for body, _ in BAD_BODIES[:7]:
            async with client.http.post(
                f"{client.url}/a2a/message:send", data=body, headers=client.headers()
            ) as got:
                assert got.status == 400, body
                assert "Traceback" not in await got.text()
        for path in ("/a2a/tasks/none", "/a2a/tasks/none:subscribe", "/a2a/agents/none/tasks"):
            assert (await client.get(path)).status in (400, 404), path
        assert (await client.get("/a2a/tasks/x/pushNotificationConfigs")).status == 400


async def test_other_versions_are_refused(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        client = await service.client_with(*USED)
        body: JSON = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
        for version, known in (("1.0", True), ("0.3", True), ("2.0", False), ("1.1", False)):
            answer = (await client.post("/a2a", body, a2a_version=version)).json
            assert ("result" in answer) is known, version
            assert known or answer["error"]["code"] == -32009
        assert (await client.get("/a2a/tasks", a2a_version="9.9")).status == 400


async def test_the_http_json_binding_has_the_same_operations(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(says("One."), says("Two."))) as service:
        client = await service.client_with(*USED)
        at = "/a2a/agents/helper"
        sent = (await client.post(f"{at}/message:send", {"message": message()})).json
        task = sent["task"]
        assert answer_of(task) == "One."
        found = await client.get(f"{at}/tasks/{task['id']}")
        assert found.json == task and found.headers["content-type"] == "application/a2a+json"
        refused = await client.post(f"{at}/tasks/{task['id']}:cancel")
        assert refused.status == 400
        assert refused.json["error"]["details"][0]["reason"] == "TASK_NOT_CANCELABLE"
        body = {"message": message("Go", "m-2")}
        async with client.http.post(
            f"{client.url}{at}/message:stream", json=body, headers=client.headers()
        ) as got:
            lines = (await got.text()).splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        assert streamed_answer(events) == "Two."
        card = await client.get(f"{at}/extendedAgentCard")
        assert card.json["name"] == "helper"


async def test_clients_of_0_3_are_answered_in_their_form(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(says("Old."), says("New."))) as service:
        client = await service.client_with(*USED)
        old: JSON = {
            "kind": "message",
            "messageId": "m-1",
            "role": "user",
            "parts": [{"kind": "text", "text": "Go"}],
        }
        task = await result(client, "message/send", message=old)
        assert (task["kind"], task["status"]["state"]) == ("task", "completed")
        assert task["artifacts"][0]["parts"] == [{"kind": "text", "text": "Old."}]
        assert task["history"][0]["role"] == "user"
        assert (await result(client, "tasks/get", id=task["id"])) == task
        events = await stream(client, "message/stream", message={**old, "messageId": "m-2"})
        assert [event["kind"] for event in events[:2]] == ["task", "status-update"]
        assert events[-1]["final"] and events[-1]["status"]["state"] == "completed"
        assert await error(client, "tasks/get", id="none") == (-32001, "TASK_NOT_FOUND")
