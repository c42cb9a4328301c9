"""One `tools/call` to its end: tasks are polled, questions are shown to a person, time is limited.

The clock of a call stops while a person is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Literal, TypeVar, cast

from mcp import types
from mcp.client import ClientExtension, ClientSession
from mcp.client.extension import ClaimContext, ResultClaim
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, TypeAdapter, ValidationError

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.ports import Progress
from evoclaw.executors.mcp.elicitation import AskPerson, ServerQuestions
from evoclaw.executors.mcp.offers import (
    MAX_NOTE_CHARS,
    PERSON_TIMEOUT_S,
    OfferedTool,
    one_line,
)
from evoclaw.executors.mcp.resources import use_extra

MAX_INPUT_ROUNDS = 10
"""How often a server may ask for more input during one call."""
POLL_INTERVAL_S = (0.1, 1.0, 5.0)
"""Between two polls of a task: the shortest, that of a server which names none, the longest."""
CANCEL_TASK_TIMEOUT_S = 3.0
MAX_PROGRESS_NOTES = 500
"""Progress notes that are passed on for one call."""
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
T = TypeVar("T")


class TaskHandle(types.Result):
    """The answer of a server that runs a call as a task (2026-07-28)."""

    result_type: Literal["task"] = "task"
    task_id: str
    poll_interval_ms: float | None = None


class TasksExtension(ClientExtension):
    """Tells servers that they may answer a call with a task; `McpToolCall` follows it."""

    identifier = TASKS_EXTENSION

    def claims(self) -> list[ResultClaim[Any]]:
        """The answer that a task begins with."""
        return [ResultClaim(result_type="task", model=TaskHandle, resolve=_resolved_elsewhere)]


async def _resolved_elsewhere(handle: TaskHandle, context: ClaimContext) -> types.CallToolResult:
    raise NotImplementedError  # only the SDK's `call_tool` resolves claims


_ANSWER: TypeAdapter[types.CallToolResult | types.InputRequiredResult | TaskHandle] = TypeAdapter(
    TaskHandle | types.CallToolResult | types.InputRequiredResult
)
_RESULT: TypeAdapter[types.CallToolResult] = TypeAdapter(types.CallToolResult)
_RAW: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


class _TaskParams(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class _TaskRequest(
    types.Request[_TaskParams, Literal["tasks/get", "tasks/result", "tasks/update", "tasks/cancel"]]
):
    name_param = "taskId"


class CallClock:
    """The time limit of one call; it stops while a person is asked."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._clock: asyncio.Timeout | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Raise `TimeoutError` when the time is up."""
        async with asyncio.timeout(self.timeout) as self._clock:
            yield

    @contextmanager
    def paused(self) -> Generator[None]:
        """Stop the clock during the block; a person has their own limit."""
        clock, loop = self._clock, asyncio.get_running_loop()
        if clock is None or (due := clock.when()) is None:
            yield
            return
        left = due - loop.time()
        clock.reschedule(loop.time() + PERSON_TIMEOUT_S)
        try:
            yield
        finally:
            if not clock.expired():
                clock.reschedule(loop.time() + left)


class McpToolCall:
    """A call of one tool, as a server answers it."""

    def __init__(
        self,
        server: str,
        call_id: str,
        clock: CallClock,
        progress: Progress,
        person: AskPerson | None,
    ) -> None:
        self._server, self._clock, self._progress = server, clock, progress
        self._questions = None if person is None else ServerQuestions(server, call_id, person)
        self._notes = 0

    async def send(
        self, session: ClientSession, tool: OfferedTool, arguments: dict[str, JSON]
    ) -> types.CallToolResult:
        """Send the call, answer what the server asks, and follow its task, if it makes one."""
        if tool.method != "tools/call":
            return await self._send_extra(session, tool.method, arguments)
        retention = round((self._clock.timeout + PERSON_TIMEOUT_S) * 1000)
        params = types.CallToolRequestParams(
            name=tool.remote,
            arguments=arguments,
            task=types.TaskMetadata(ttl=retention) if tool.as_task else None,
        )
        for _ in range(MAX_INPUT_ROUNDS):
            answer = await self._once(session, params)
            match answer:
                case types.CallToolResult():
                    return answer
                case TaskHandle():
                    return await self._follow(session, answer.task_id, answer.poll_interval_ms)
                case types.InputRequiredResult():
                    responses = await self._inputs(answer.input_requests or {})
                    params = params.model_copy(
                        update={
                            "input_responses": responses,
                            "request_state": answer.request_state,
                        }
                    )
        raise self._failure("asked for more input again and again")

    async def _send_extra(
        self, session: ClientSession, method: str, arguments: dict[str, JSON]
    ) -> types.CallToolResult:
        try:
            return await use_extra(session, method, arguments)
        except RuntimeError:  # how the SDK reports an unfinished result
            raise self._failure("asked for more input before it would answer") from None

    async def _once(
        self, session: ClientSession, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | TaskHandle:
        request = types.CallToolRequest(params=params)
        backstop = self._clock.timeout + PERSON_TIMEOUT_S
        try:
            return await session.send_request(
                request, _ANSWER, backstop, progress_callback=self._progress_notes()
            )
        except ValidationError as problem:
            # The SDK knows no tasks of 2025-11-25: the answer is in its complaint.
            given = problem.errors(include_url=False)[0].get("input")
            if params.task is None or not isinstance(given, Mapping):
                raise
            task = cast("Mapping[str, Any]", given).get("task")
            made = types.Task.model_validate(task)
            return TaskHandle(task_id=made.task_id, poll_interval_ms=made.poll_interval)

    async def _follow(
        self, session: ClientSession, task_id: str, interval_ms: float | None
    ) -> types.CallToolResult:
        """Poll a task until it ends; cancel it if the call is cancelled, or takes too long."""
        try:
            while True:
                state = await self._ask_task(session, "tasks/get", task_id)
                self._note(state.get("statusMessage"))
                status = state.get("status")
                if "result" in state:
                    return _RESULT.validate_python(state["result"], by_name=False)
                if status == "input_required" and "inputRequests" in state:
                    await self._update(session, task_id, state["inputRequests"])
                elif status == "failed" and "error" in state:
                    raise self._failure(f"failed: {_message(state['error'])}")
                elif status == "cancelled":
                    raise self._failure("cancelled the task")
                elif status != "working":
                    # Until 2025-11-25 the result has a request of its own, which waits for it.
                    raw = await self._ask_task(session, "tasks/result", task_id)
                    return _RESULT.validate_python(raw, by_name=False)
                interval_ms = state.get("pollIntervalMs", state.get("pollInterval", interval_ms))
                await asyncio.sleep(_interval(interval_ms))
        except asyncio.CancelledError:
            await _finish(self._cancel(session, task_id))
            raise

    async def _ask_task(
        self, session: ClientSession, method: str, task_id: str, **more: Any
    ) -> dict[str, Any]:
        params = _TaskParams(task_id=task_id, **more)
        request = _TaskRequest(method=cast("Any", method), params=params)
        backstop = self._clock.timeout + PERSON_TIMEOUT_S
        # A result type of ours: the SDK checks only the methods that it knows.
        adapter = cast("TypeAdapter[BaseModel]", _RAW)
        return cast("dict[str, Any]", await session.send_request(request, adapter, backstop))

    async def _update(self, session: ClientSession, task_id: str, asked: Any) -> None:
        requests = TypeAdapter(types.InputRequests).validate_python(asked, by_name=False)
        responses = {
            key: response.model_dump(by_alias=True, mode="json", exclude_none=True)
            for key, response in (await self._inputs(requests)).items()
        }
        await self._ask_task(session, "tasks/update", task_id, input_responses=responses)

    async def _cancel(self, session: ClientSession, task_id: str) -> None:
        with suppress(MCPError, ValidationError, TimeoutError):
            async with asyncio.timeout(CANCEL_TASK_TIMEOUT_S):
                await self._ask_task(session, "tasks/cancel", task_id)

    async def _inputs(self, requests: types.InputRequests) -> types.InputResponses:
        """Answer what a server asks with an unfinished result: only a person may be asked."""
        found: types.InputResponses = {}
        for key, request in requests.items():
            if not isinstance(request, types.ElicitRequest):
                raise self._failure(
                    "asked for your model or your folders, which servers may not use"
                )
            found[key] = await self.elicit(request.params)
        return found

    async def elicit(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Show a question of the server to the person; nobody declines it if there is none."""
        if self._questions is None:
            return types.ElicitResult(action="cancel")
        self._progress(f"{self._server} asks the user a question, and waits for the answer\n")
        with self._clock.paused(), suppress(TimeoutError):
            async with asyncio.timeout(PERSON_TIMEOUT_S):
                if isinstance(params, types.ElicitRequestURLParams):
                    done = await self._questions.confirm_url(params.message, params.url)
                    return types.ElicitResult(action="accept" if done else "decline")
                form = cast("Mapping[str, JSON]", params.requested_schema)
                filled = await self._questions.fill(params.message, form)
                if filled is None:
                    return types.ElicitResult(action="decline")
                return types.ElicitResult(action="accept", content=dict(filled))
        return types.ElicitResult(action="cancel")

    def _progress_notes(self) -> ProgressFnT:
        async def pass_on(progress: float, total: float | None, message: str | None) -> None:
            count = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
            self._note(f"{count} {message or ''}")

        return pass_on

    def _note(self, text: object) -> None:
        if isinstance(text, str) and text and self._notes < MAX_PROGRESS_NOTES:
            self._notes += 1
            self._progress(one_line(text, MAX_NOTE_CHARS) + "\n")

    def _failure(self, what: str) -> ToolFailure:
        return ToolFailure(
            ErrorKind.EXECUTION_FAILED,
            f"Error: The MCP server {self._server!r} {what}. Continue without this tool or explain "
            "to the user.",
            mcp_server=self._server,
        )


def _interval(milliseconds: object) -> float:
    shortest, usual, longest = POLL_INTERVAL_S
    wanted = milliseconds / 1000 if isinstance(milliseconds, (int, float)) else usual
    return min(max(wanted, shortest), longest)


def _message(error: object) -> str:
    given = cast("Mapping[str, object]", error).get("message") if isinstance(error, dict) else ""
    return one_line(str(given), MAX_NOTE_CHARS)


async def _finish(work: Awaitable[None]) -> None:
    """Await a short work although this task was cancelled."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
