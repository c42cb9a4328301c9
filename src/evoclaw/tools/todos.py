"""The tools `todowrite` and `todoread`: the to-do list of a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal, Protocol, TypeAlias

from msgspec import Meta, Struct, to_builtins

from evoclaw.core.bound_tools import ToolOutput
from evoclaw.core.messages import TextBlock
from evoclaw.core.tools import ANY_RESOURCE
from evoclaw.tools.define import tool

MAX_TODOS = 200
"""Of one session."""

Status: TypeAlias = Literal["pending", "in_progress", "completed", "cancelled"]
Priority: TypeAlias = Literal["high", "medium", "low"]

STATUS_MARKS: dict[Status, str] = {
    "pending": " ",
    "in_progress": ">",
    "completed": "x",
    "cancelled": "-",
}


class Todo(Struct, frozen=True):
    """One thing to do."""

    content: Annotated[str, Meta(min_length=1, max_length=500)]
    status: Status = "pending"
    priority: Priority = "medium"


class TodoList(Protocol):
    """The to-do list of one session; it outlives the run."""

    async def read(self) -> Sequence[Todo]:
        """All items, in order."""
        ...

    async def replace(self, todos: Sequence[Todo]) -> None:
        """Replace the list."""
        ...


class InMemoryTodoList:
    """A list in memory: for tests, examples and runs without a store."""

    def __init__(self, todos: Sequence[Todo] = ()) -> None:
        self._todos = tuple(todos)

    async def read(self) -> Sequence[Todo]:
        """All items, in order."""
        return self._todos

    async def replace(self, todos: Sequence[Todo]) -> None:
        """Replace the list."""
        self._todos = tuple(todos)


@tool(
    "file_write",
    timeout=10,
    max_timeout=60,
    resources=(ANY_RESOURCE,),
    idempotent=True,
    acts=False,
)
async def todowrite(
    notes: TodoList, todos: Annotated[list[Todo], Meta(max_length=MAX_TODOS)]
) -> ToolOutput:
    """Write the todo list of this session; it is kept after this run.

    The new list replaces the old one: send all of it. Mark one todo `in_progress` before you
    start it, and `completed` as soon as it is done. An empty list clears it.

    Args:
        notes: The list of this session.
        todos: The whole list, in order.
    """
    await notes.replace(todos)
    return _todos_output(todos, "The list is empty now.")


@tool("file_read", timeout=10, max_timeout=60, effect="read", resources=(ANY_RESOURCE,))
async def todoread(
    notes: TodoList, status: Status | None = None, priority: Priority | None = None
) -> ToolOutput:
    """Read the todo list of this session.

    Args:
        notes: The list of this session.
        status: Only todos with this status.
        priority: Only todos with this priority.
    """
    todos = await notes.read()
    found = [todo for todo in todos if status in (None, todo.status)]
    found = [todo for todo in found if priority in (None, todo.priority)]
    if todos and not found:
        return _todos_output(found, f"None of the {len(todos)} todos match.")
    return _todos_output(found, "The list is empty.")


def _todos_output(todos: Sequence[Todo], empty: str) -> ToolOutput:
    counts = Counter(todo.status for todo in todos)
    head = ", ".join(f"{counts[status]} {status}" for status in STATUS_MARKS if counts[status])
    lines = [f"[{STATUS_MARKS[todo.status]}] {todo.content}{_priority(todo)}" for todo in todos]
    text = "\n".join([f"{head}:", *lines]) if todos else empty
    return ToolOutput((TextBlock(text),), {"todos": to_builtins(todos)})


def _priority(todo: Todo) -> str:
    return "" if todo.priority == "medium" else f" ({todo.priority})"
