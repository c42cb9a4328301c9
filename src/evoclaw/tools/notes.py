"""The tools `todowrite` and `todoread`: the to-do list of a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal, Protocol, TypeAlias

from msgspec import Meta, Struct, to_builtins

from evoclaw.core.bound import Output
from evoclaw.core.messages import TextBlock
from evoclaw.core.tools import EVERYTHING
from evoclaw.tools.define import tool

MOST = 200
"""Of one session."""

Status: TypeAlias = Literal["pending", "in_progress", "completed", "cancelled"]
Priority: TypeAlias = Literal["high", "medium", "low"]

MARKS: dict[Status, str] = {
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


class Todos(Protocol):
    """The to-do list of one session; it outlives the run."""

    async def read(self) -> Sequence[Todo]:
        """All items, in order."""
        ...

    async def replace(self, todos: Sequence[Todo]) -> None:
        """Replace the list."""
        ...


class TodosInMemory:
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
    resources=(EVERYTHING,),
    idempotent=True,
    acts=False,
)
async def todowrite(notes: Todos, todos: Annotated[list[Todo], Meta(max_length=MOST)]) -> Output:
    """Write down what is to be done in this session, as a list that outlives this run.

    The list you give replaces the one there is: give all of it, with what changed. Mark one thing
    `in_progress` before you begin it and `completed` as soon as it is done. An empty list clears
    it.

    Args:
        notes: The list of this session.
        todos: The whole list, in order.
    """
    await notes.replace(todos)
    return _shown(todos, "The list is empty now.")


@tool("file_read", timeout=10, max_timeout=60, effect="read", resources=(EVERYTHING,))
async def todoread(
    notes: Todos, status: Status | None = None, priority: Priority | None = None
) -> Output:
    """Read what is to be done in this session.

    Args:
        notes: The list of this session.
        status: Only those that stand so.
        priority: Only those of this priority.
    """
    todos = await notes.read()
    found = [todo for todo in todos if status in (None, todo.status)]
    found = [todo for todo in found if priority in (None, todo.priority)]
    if todos and not found:
        return _shown(found, f"None of the {len(todos)} todos is like that.")
    return _shown(found, "The list is empty.")


def _shown(todos: Sequence[Todo], empty: str) -> Output:
    counts = Counter(todo.status for todo in todos)
    head = ", ".join(f"{counts[status]} {status}" for status in MARKS if counts[status])
    lines = [f"[{MARKS[todo.status]}] {todo.content}{_priority(todo)}" for todo in todos]
    text = "\n".join([f"{head}:", *lines]) if todos else empty
    return Output((TextBlock(text),), {"todos": to_builtins(todos)})


def _priority(todo: Todo) -> str:
    return "" if todo.priority == "medium" else f" ({todo.priority})"
