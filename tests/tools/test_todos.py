from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.conflicts import conflict
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.toolset import Toolset
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.sessions.conversations import StoredTodos
from evoclaw.store.sessions.sessions import SessionStore
from evoclaw.tools.todos import InMemoryTodoList, Todo, TodoList, todoread, todowrite
from tests.support.tool_calls import call_of


async def use(bound: BoundTool, notes: TodoList, **arguments: JSON) -> ToolResult:
    executor = LocalExecutor([bound], given={TodoList: notes})
    async with asyncio.timeout(30):
        return await executor.execute(call_of(bound, **arguments), lambda _: None)


PLAN: list[JSON] = [
    {"content": "look", "status": "completed"},
    {"content": "build", "status": "in_progress", "priority": "high"},
    {"content": "test"},
]


async def test_todowrite_replaces_the_todo_list() -> None:
    todos = InMemoryTodoList([Todo("old")])
    result = await use(todowrite, todos, todos=PLAN)
    assert result.text == (
        "1 pending, 1 in_progress, 1 completed:\n[x] look\n[>] build (high)\n[ ] test"
    )
    assert result.details["todos"][1]["priority"] == "high"
    assert [todo.content for todo in await todos.read()] == ["look", "build", "test"]
    assert (await use(todowrite, todos, todos=[])).text == "The list is empty now."
    assert not await todos.read()


async def test_todoread_filters_by_status_and_priority() -> None:
    todos = InMemoryTodoList(msgspec.convert(PLAN, tuple[Todo, ...]))
    assert (await use(todoread, todos)).text.count("\n") == 3
    assert (await use(todoread, todos, status="pending")).text == "1 pending:\n[ ] test"
    assert "build" in (await use(todoread, todos, priority="high")).text
    none = await use(todoread, todos, status="cancelled")
    assert none.text == "None of the 3 todos match."
    assert (await use(todoread, InMemoryTodoList())).text == "The list is empty."


@pytest.mark.parametrize(
    "todos",
    [
        [{"content": ""}],
        [{"content": "x", "status": "done"}],
        [{"content": "x", "priority": "urgent"}],
        [{"content": "x", "owner": "me"}],
        [{"content": "x" * 501}],
        [{"content": "x"}] * 201,
        ["x"],
    ],
)
def test_an_invalid_todo_list_violates_the_schema(todos: JSON) -> None:
    found = Toolset([todowrite.tool]).find("todowrite")
    assert found is not None
    assert not found[1].is_valid({"todos": todos})


def test_todo_writes_are_serialized_and_reads_run_concurrently() -> None:
    write, read = call_of(todowrite, todos=[]), call_of(todoread)
    assert conflict(write, write) and conflict(write, read) and conflict(read, write)
    assert not conflict(read, read)
    assert todowrite.tool.permissions == {"file_write"}
    assert todoread.tool.permissions == {"file_read"}


async def test_stored_todos_survive_a_restart_and_belong_to_one_session(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sessions.db"
    async with await SessionStore.open(path, durable=False) as store:
        await use(todowrite, StoredTodos(store, "s1"), todos=PLAN)
    async with await SessionStore.open(path, durable=False) as store:
        assert "[>] build (high)" in (await use(todoread, StoredTodos(store, "s1"))).text
        assert (await use(todoread, StoredTodos(store, "s2"))).text == "The list is empty."
