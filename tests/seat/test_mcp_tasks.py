"""Tasks of MCP clients, in a real `evoclaw up` that is killed and started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcp import Client

from tests.support.mcp_clients import Person, connected, create_task, send
from tests.support.up_process import PATIENCE, up_process
from tests.support.waiting import until

QUESTION = 'call question {"question": "Which colour?"}\nsay painted'


async def until_status(mcp: Client, task_id: str, wanted: str) -> None:
    async def reached() -> bool:
        return (await send(mcp, "tasks/get", taskId=task_id))["status"] == wanted

    await until(reached, PATIENCE, f"the task is {wanted}")


async def test_tasks_survive_a_kill_and_a_restart(tmp_path: Path) -> None:
    person = Person("accept", text="blue")
    options: dict[str, Any] = {"mode": "legacy", "elicitation_callback": person}
    async with up_process(tmp_path) as up:
        up.configure()
        owner = await up.start()
        async with connected(f"{owner.url}/mcp", owner.token, **options) as mcp:
            done = (await create_task(mcp, "ask_agent", message="say hello")).task_id
            await until_status(mcp, done, "completed")
            slow = (await create_task(mcp, "ask_agent", message="wait gate 4")).task_id
            await up.models.held["gate"].wait()
            asks = (await create_task(mcp, "ask_agent", message=QUESTION)).task_id
            await until_status(mcp, asks, "input_required")
            await up.kill()
        up.models.gates["gate"].set()
        owner = await up.start()
        async with connected(f"{owner.url}/mcp", owner.token, **options) as mcp:
            listed = [task["taskId"] for task in (await send(mcp, "tasks/list"))["tasks"]]
            hello = await send(mcp, "tasks/result", taskId=done)
            counted = await send(mcp, "tasks/result", taskId=slow)
            assert person.asked == []
            painted = await send(mcp, "tasks/result", taskId=asks)
    assert sorted(listed) == sorted([done, slow, asks])
    assert hello["content"][0]["text"] == "hello"
    assert len(counted["content"][0]["text"].split()) == 4
    assert painted["content"][0]["text"] == "painted" and len(person.asked) == 1
