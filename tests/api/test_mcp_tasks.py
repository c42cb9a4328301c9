from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp import Client, types
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError

from evoclaw.api.mcp.service_calls import ServiceCalls
from evoclaw.governance.autonomy import Autonomy, Level
from tests.support.mcp_clients import Person, connected, create_task, send
from tests.support.service import LIMIT, running_service
from tests.support.waiting import until

pytestmark = pytest.mark.process


class TaskClient(ClientExtension):
    """Declares the extension for tasks, and keeps the task that a call became."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.created: list[ClaimedTask] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        async def resolve(task: ClaimedTask, context: ClaimContext) -> types.CallToolResult:
            self.created.append(task)
            return types.CallToolResult(content=[])

        return [ResultClaim(result_type="task", model=ClaimedTask, resolve=resolve)]


class ClaimedTask(types.Result):
    """What a call returns that became a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str


async def until_status(mcp: Client, task_id: str, wanted: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def reached() -> bool:
        found.update(await send(mcp, "tasks/get", taskId=task_id))
        return found["status"] == wanted

    await until(reached, LIMIT, f"the task is {wanted}")
    return found


async def test_a_call_of_the_revision_2025_11_25_is_a_task(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        service.house.may_go_on.clear()
        token = await service.house.token()
        async with connected(f"{service.url}/mcp", token, mode="legacy") as mcp:
            declared = mcp.server_capabilities.tasks
            tools = (await mcp.list_tools()).tools
            started = await create_task(mcp, "work", what="it")
            task_id = started.task_id
            working = await send(mcp, "tasks/get", taskId=task_id)
            waiting = asyncio.create_task(send(mcp, "tasks/result", taskId=task_id))
            service.house.may_go_on.set()
            result = await waiting
            done = await until_status(mcp, task_id, "completed")
            listed = await send(mcp, "tasks/list")
            with pytest.raises(MCPError, match="ended already"):
                await send(mcp, "tasks/cancel", taskId=task_id)
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                with pytest.raises(MCPError, match="There is no such run"):
                    await send(mcp, method, taskId="nothing")

    assert declared is not None and declared.list is not None and declared.cancel is not None
    assert {tool.execution.task_support for tool in tools if tool.execution} == {"optional"}
    assert started.status == working["status"] == "working"
    types.GetTaskResult.model_validate(done)
    types.ListTasksResult.model_validate(listed)
    assert result["content"][0]["text"] == "worked on it" and not result["isError"]
    assert result["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": task_id}
    assert done["createdAt"] <= done["lastUpdatedAt"]
    assert [task["taskId"] for task in listed["tasks"]] == [task_id]


async def test_a_task_is_cancelled(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        service.house.may_go_on.clear()
        token = await service.house.token()
        async with connected(f"{service.url}/mcp", token, mode="legacy") as mcp:
            task_id = (await create_task(mcp, "work")).task_id
            cancelled = await send(mcp, "tasks/cancel", taskId=task_id)
            ended = await until_status(mcp, task_id, "cancelled")
            with pytest.raises(MCPError, match="was cancelled"):
                await send(mcp, "tasks/result", taskId=task_id)
    assert cancelled["status"] == ended["status"] == "cancelled"
    assert service.house.ran == []


async def test_tasks_of_others_do_not_exist(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        url = f"{service.url}/mcp"
        async with connected(url, await service.house.token(), mode="legacy") as mcp:
            started = await create_task(mcp, "work")
        other = await service.house.token("runs:read", "runs:write", user="bob")
        async with connected(url, other, mode="legacy") as mcp:
            assert (await send(mcp, "tasks/list"))["tasks"] == []
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                with pytest.raises(MCPError, match="There is no such run"):
                    await send(mcp, method, taskId=started.task_id)


async def test_the_result_of_a_task_asks_the_user(tmp_path: Path) -> None:
    person = Person("accept", decision="once")
    async with running_service(tmp_path, rules=Autonomy(Level.SUPERVISED)) as service:
        options = {"mode": "legacy", "elicitation_callback": person}
        async with connected(f"{service.url}/mcp", await service.house.token(), **options) as mcp:
            task_id = (await create_task(mcp, "work", what="it")).task_id
            await until_status(mcp, task_id, "input_required")
            result = await send(mcp, "tasks/result", taskId=task_id)
    assert result["content"][0]["text"] == "worked on it"
    assert len(person.asked) == 1


async def test_a_slow_call_becomes_a_task_of_the_extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServiceCalls.__init__, "__kwdefaults__", {"task_after_s": 0.05})
    tasks = TaskClient()
    async with running_service(tmp_path) as service:
        service.house.may_go_on.clear()
        url, token = f"{service.url}/mcp", await service.house.token()
        async with connected(url, token, extensions=[tasks]) as mcp:
            await mcp.call_tool("work", {"what": "it"})
            (task,) = tasks.created
            working = await send(mcp, "tasks/get", taskId=task.task_id)
            service.house.may_go_on.set()
            done = await until_status(mcp, task.task_id, "completed")
            assert await send(mcp, "tasks/cancel", taskId=task.task_id) == {
                "resultType": "complete",
                "_meta": done["_meta"],
            }
            for method in ("tasks/list", "tasks/result"):
                with pytest.raises(MCPError, match="Method not found"):
                    await send(mcp, method, taskId=task.task_id)
            with pytest.raises(MCPError, match="There is no such run"):
                await send(mcp, "tasks/get", taskId="nothing")
        async with connected(url, token) as mcp:
            with pytest.raises(MCPError, match="must declare the extension"):
                await send(mcp, "tasks/get", taskId=task.task_id)
    assert (task.status, working["status"]) == ("working", "working")
    assert done["result"]["content"][0]["text"] == "worked on it"
    assert done["resultType"] == "complete"


async def test_a_task_of_the_extension_gets_answers_by_tasks_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServiceCalls.__init__, "__kwdefaults__", {"task_after_s": 0.0})
    tasks = TaskClient()
    async with running_service(tmp_path, rules=Autonomy(Level.SUPERVISED)) as service:
        options: dict[str, Any] = {
            "extensions": [tasks],
            "elicitation_callback": Person("decline"),
        }
        async with connected(f"{service.url}/mcp", await service.house.token(), **options) as mcp:
            await mcp.call_tool("work", {"what": "it"})
            (task,) = tasks.created
            waiting = await until_status(mcp, task.task_id, "input_required")
            (key,) = waiting["inputRequests"]
            answer = {"action": "accept", "content": {"decision": "once"}}
            await send(
                mcp,
                "tasks/update",
                taskId=task.task_id,
                inputResponses={key: answer, "unknown": answer},
            )
            done = await until_status(mcp, task.task_id, "completed")
    assert waiting["inputRequests"][key]["method"] == "elicitation/create"
    assert done["result"]["content"][0]["text"] == "worked on it"


async def test_a_task_request_with_the_name_of_another_task_is_refused(tmp_path: Path) -> None:
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {
            "extensions": {"io.modelcontextprotocol/tasks": {}}
        },
    }
    async with running_service(tmp_path) as service:
        client = await service.client_with("*")
        run = (await client.post("/v1/runs", {"message": "hello"})).json["run_id"]
        asked: dict[str, Any] = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tasks/get",
            "params": {"taskId": run, "_meta": meta},
        }
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp_protocol_version": "2026-07-28",
            "mcp_method": "tasks/get",
        }
        right = await client.post("/mcp", asked, mcp_name=run, **headers)
        wrong = await client.post("/mcp", asked, mcp_name="another", **headers)
    assert (right.status, wrong.status) == (200, 400)
    assert wrong.json["error"]["code"] == -32_020
