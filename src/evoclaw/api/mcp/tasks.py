"""Tasks as MCP clients see them: the messages of 2025-11-25, and of the extension of 2026-07-28."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from mcp import types
from msgspec import Struct
from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from evoclaw.api.mcp.requests import McpRequest

POLL_INTERVAL_MS = 1_000
"""How often clients should ask for the state of a task."""
RELATED_TASK_KEY = "io.modelcontextprotocol/related-task"


class TaskView(Struct, frozen=True, kw_only=True):
    """The state of a task."""

    id: str
    status: types.TaskStatus
    message: str = ""
    """For people: what the task does or waits for."""
    created_at: float
    """Unix seconds."""
    updated_at: float
    """Unix seconds."""
    result: types.CallToolResult | None = None
    """What the call returned, once the task has completed."""
    forms: dict[str, types.InputRequest] = {}
    """What the user of the client must answer before the task continues."""


class McpTaskSource(Protocol):
    """Durable work that clients start, watch and cancel. Unknown ids raise `ApiError` 404."""

    async def create(self, request: McpRequest, params: types.CallToolRequestParams) -> TaskView:
        """Start a call of a tool as a task; it is stored when this returns."""
        ...

    async def get(self, request: McpRequest, task_id: str) -> TaskView:
        """The state of a task."""
        ...

    async def page(self, request: McpRequest, cursor: str) -> tuple[Sequence[TaskView], str]:
        """Some tasks, the newest first, and the cursor of the next page; empty on the last one."""
        ...

    async def result(self, request: McpRequest, task_id: str) -> types.CallToolResult:
        """Wait until a task ends, and return what its call returned."""
        ...

    async def answer(
        self, request: McpRequest, task_id: str, responses: types.InputResponses
    ) -> None:
        """Deliver answers of the user; those to unknown forms are ignored."""
        ...

    async def cancel(self, request: McpRequest, task_id: str) -> TaskView:
        """Cancel a task; `ApiError` 409 if it has ended."""
        ...


class TaskUpdateParams(types.RequestParams):
    """The parameters of `tasks/update` (2026-07-28)."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    task_id: str
    input_responses: types.InputResponses


def task_2025(view: TaskView) -> dict[str, Any]:
    """A task as revision 2025-11-25 has it."""
    failed = view.result is not None and view.result.is_error is True
    return {
        "taskId": view.id,
        "status": "failed" if failed and view.status == "completed" else view.status,
        **({"statusMessage": view.message} if view.message else {}),
        "createdAt": _iso(view.created_at),
        "lastUpdatedAt": _iso(view.updated_at),
        "ttl": None,
        "pollInterval": POLL_INTERVAL_MS,
    }


def task_2026(view: TaskView) -> dict[str, Any]:
    """A task as the extension of revision 2026-07-28 has it, without what depends on its status."""
    return {
        "taskId": view.id,
        "status": view.status,
        **({"statusMessage": view.message} if view.message else {}),
        "createdAt": _iso(view.created_at),
        "lastUpdatedAt": _iso(view.updated_at),
        "ttlMs": None,
        "pollIntervalMs": POLL_INTERVAL_MS,
    }


def detailed_task_2026(view: TaskView) -> dict[str, Any]:
    """A task of revision 2026-07-28, with its result or the forms to answer."""
    task = task_2026(view)
    if view.status == "completed" and view.result is not None:
        task["result"] = _dumped(view.result)
    if view.status == "input_required":
        task["inputRequests"] = {key: _dumped(form) for key, form in view.forms.items()}
    return task


def _dumped(model: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dumped


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
