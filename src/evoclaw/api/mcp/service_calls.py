"""The service's tools for MCP clients: every call is a durable run, and every run is a task."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, cast

import msgspec
from mcp import types
from msgspec import Struct

from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.mcp.forms import (
    approval_decision,
    approval_message,
    approval_schema,
    question_answer,
    question_message,
    question_schema,
)
from evoclaw.api.mcp.requests import FormSchema, McpRequest, form_request
from evoclaw.api.mcp.tasks import TaskView
from evoclaw.api.mcp_server import to_mcp_result
from evoclaw.api.problems import ApiError, require
from evoclaw.api.routes import approvals, runs, sessions
from evoclaw.api.routes.tools_skills_memory import tools_for
from evoclaw.core.events import CallOutput, CallStarted, StopReason
from evoclaw.core.messages import ErrorKind
from evoclaw.core.tools import Tool
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.orchestrator.people.questions import Question
from evoclaw.orchestrator.runs.requests import RunRequest, RunStatus, RunView, decode_run_request
from evoclaw.orchestrator.runs.single_calls import call_result, is_single_call, single_call_request
from evoclaw.orchestrator.sanitizing import one_line

logger = logging.getLogger(__name__)
TASK_AFTER_S = 5.0
"""A call that takes longer becomes a task, for clients that declare the extension for tasks."""
PAGE_SIZE = 50
MAX_MESSAGE_CHARS = 200
"""Of the message of a task."""
ASK_AGENT = Tool(
    "ask_agent",
    "Give an agent of EvoClaw a task in plain words, and get its answer. The agent works with the "
    "tools and machines that it has.",
    {
        "type": "object",
        "properties": {
            "message": {"type": "string", "minLength": 1, "description": "The task"},
            "agent": {"type": "string", "description": "The agent; the default agent if omitted"},
            "session_id": {
                "type": "string",
                "description": "Continue this session instead of starting a new one",
            },
        },
        "required": ["message"],
        "additionalProperties": False,
    },
)


class _AgentTask(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `ask_agent`."""

    message: str
    agent: str = ""
    session_id: str = ""


class _Form(Struct, frozen=True):
    """What a run waits for, as a form."""

    message: str
    schema: FormSchema
    question: Question | None = None
    """None: an approval."""
    id: str = ""


class ServiceCalls:
    """Runs calls of MCP clients as runs of the service, under the scopes of the HTTP API."""

    def __init__(self, parts: ApiDependencies, *, task_after_s: float = TASK_AFTER_S) -> None:
        """Start and show runs with these dependencies."""
        self._parts, self._task_after_s = parts, task_after_s
        self._runs = require(parts.runs, "runs")
        self.closing = False
        """Whether the server stops: then requests end, and their runs continue later."""

    def tools(self, request: McpRequest) -> Sequence[Tool]:
        """The tools that the caller's token permits."""
        caller = request.caller
        if caller is None:
            return ()
        found = tools_for(self._parts, caller) if caller.may(TokenScope.TOOLS_EXECUTE) else ()
        own = (ASK_AGENT,) if caller.may(TokenScope.RUNS_WRITE) else ()
        return (*own, *(tool for tool in found if tool.name != ASK_AGENT.name))

    async def call(
        self, request: McpRequest, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | TaskView:
        """Run a call, and wait for its end; a slow one becomes a task if the client can use it."""
        if params.request_state:
            # The client continues a call whose user was asked; it can be one of its own runs only.
            caller = self._caller(request, params.name)
            run_id = (await runs.own_run(self._parts, caller, params.request_state)).run_id
            await self.answer(request, run_id, request.responses)
        else:
            caller, run_id = await self._start(request, params)
        work = asyncio.create_task(self._follow(request, caller, run_id))
        timeout = self._task_after_s if request.is_modern and request.has_tasks else None
        try:
            await asyncio.wait([work], timeout=timeout)
        except asyncio.CancelledError:
            work.cancel()
            await self._cancel(caller.tenant, run_id)
            raise
        if work.done():
            return work.result()
        work.cancel()
        await asyncio.wait([work])
        return await self._view(request, caller, run_id)

    async def create(self, request: McpRequest, params: types.CallToolRequestParams) -> TaskView:
        """Start a call as a task."""
        caller, run_id = await self._start(request, params)
        return await self._view(request, caller, run_id)

    async def get(self, request: McpRequest, task_id: str) -> TaskView:
        """The state of a run."""
        return await self._view(request, request.require_caller(TokenScope.RUNS_READ), task_id)

    async def page(self, request: McpRequest, cursor: str) -> tuple[Sequence[TaskView], str]:
        """The runs of the caller, the newest first."""
        caller = request.require_caller(TokenScope.RUNS_READ)
        page: runs.RunPage = await _route(
            runs.list_runs, self._parts, caller, before=cursor, limit=PAGE_SIZE
        )
        return [_task(view) for view in page.items], page.next

    async def result(self, request: McpRequest, task_id: str) -> types.CallToolResult:
        """Wait until a run ends; while it waits, the user of the client is asked."""
        caller = request.require_caller(TokenScope.RUNS_READ)
        await runs.check_own_run(self._parts, caller, task_id)
        outcome = await self._follow(request, caller, task_id)
        view = await runs.own_run(self._parts, caller, task_id)
        if view.stop is StopReason.CANCELLED:
            raise ApiError(409, "cancelled", "The task was cancelled. Start a new one.")
        assert isinstance(outcome, types.CallToolResult)
        return outcome

    async def answer(
        self, request: McpRequest, task_id: str, responses: types.InputResponses
    ) -> None:
        """Store the answers to approvals and questions of a run, which then continues."""
        caller = request.require_caller(TokenScope.HUMAN)
        view = await runs.own_run(self._parts, caller, task_id)
        waiting = await self._forms(caller, view)
        for key, response in responses.items():
            if key in waiting and isinstance(response, types.ElicitResult):
                await self._store_answer(caller, view, waiting[key], response)

    async def cancel(self, request: McpRequest, task_id: str) -> TaskView:
        """Cancel a run."""
        caller = request.require_caller(TokenScope.RUNS_WRITE)
        await runs.check_own_run(self._parts, caller, task_id)
        if not await self._runs.cancel(caller.tenant, task_id):
            raise ApiError(409, "ended", "The task has ended already; it cannot be cancelled.")
        view = await self._view(request, caller, task_id)
        # An active run ends as soon as its calls return; the request to cancel is stored.
        return msgspec.structs.replace(view, status="cancelled", forms={}, result=None)

    def _caller(self, request: McpRequest, tool: str) -> Caller:
        is_agent = tool == ASK_AGENT.name
        return request.require_caller(
            TokenScope.RUNS_WRITE if is_agent else TokenScope.TOOLS_EXECUTE
        )

    async def _start(
        self, request: McpRequest, params: types.CallToolRequestParams
    ) -> tuple[Caller, str]:
        caller = self._caller(request, params.name)
        arguments = params.arguments or {}
        if params.name == ASK_AGENT.name:
            run_request = await self._agent_request(caller, arguments)
        else:
            run_request = single_call_request(params.name, arguments)
        view, _ = await self._runs.start(caller.principal, run_request)
        return caller, view.run_id

    async def _agent_request(self, caller: Caller, arguments: dict[str, Any]) -> RunRequest:
        try:
            task = msgspec.convert(arguments, _AgentTask)
        except msgspec.ValidationError as problem:
            text = f"Invalid arguments for {ASK_AGENT.name!r}: {problem}."
            raise ApiError(422, "invalid", text) from None
        agent = task.agent
        if task.session_id:
            found = await sessions.own_session(self._parts, caller, task.session_id)
            agent = found.agent
        return RunRequest(message=task.message, agent=agent, session_id=task.session_id)

    async def _follow(
        self, request: McpRequest, caller: Caller, run_id: str
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Wait until a run ends, report what it does, and ask the user when it waits."""
        asked: set[str] = set()
        while True:
            records = self._runs.records(caller.tenant, run_id)
            async with aclosing(records):
                async for record in records:
                    match record.event:
                        case CallOutput(text=text):
                            await request.report(text)
                        case CallStarted(name=name):
                            await request.report(f"{one_line(name)} started")
                        case _:
                            pass
            view = await runs.own_run(self._parts, caller, run_id)
            if view.state is not RunStatus.WAITING:
                return await self._result(caller, view)
            forms = await self._answerable_forms(request, caller, view)
            if not forms.keys() - asked:
                return _still_waits(view)
            for key, form in forms.items():
                asked.add(key)
                response = await request.elicit(key, form.message, form.schema)
                if response is not None:
                    await self._store_answer(caller, view, form, response)
            if request.forms:
                return types.InputRequiredResult(input_requests=request.forms, request_state=run_id)

    async def _view(self, request: McpRequest, caller: Caller, run_id: str) -> TaskView:
        view = await runs.own_run(self._parts, caller, run_id)
        task = _task(view)
        if view.state is RunStatus.WAITING and caller.may(TokenScope.HUMAN):
            forms = await self._forms(caller, view)
            requests = {
                key: cast("types.InputRequest", form_request(form.message, form.schema))
                for key, form in forms.items()
            }
            return msgspec.structs.replace(task, forms=requests)
        if task.status == "completed":
            return msgspec.structs.replace(task, result=await self._result(caller, view))
        return task

    async def _result(self, caller: Caller, view: RunView) -> types.CallToolResult:
        assert self._parts.conversations is not None
        store = self._parts.conversations.of(caller.tenant).store
        if is_single_call(decode_run_request(await store.run_request(view.run_id))):
            found = await call_result(self._runs, caller.tenant, view.run_id)
            if found is not None:
                return to_mcp_result(found)
        is_error = view.stop is not StopReason.COMPLETED
        text = view.text or view.reason
        if is_error:
            text = f"Error: the run ended as {view.stop}: {view.reason or view.text}"
        return types.CallToolResult(
            content=[types.TextContent(text=text)],
            structured_content={
                "run_id": view.run_id,
                "session_id": view.session_id,
                "stop": str(view.stop),
            },
            is_error=is_error,
        )

    async def _answerable_forms(
        self, request: McpRequest, caller: Caller, view: RunView
    ) -> dict[str, _Form]:
        if not request.can_elicit or not caller.may(TokenScope.HUMAN):
            return {}
        return await self._forms(caller, view)

    async def _forms(self, caller: Caller, view: RunView) -> dict[str, _Form]:
        """What a run waits for, by a key that never changes."""
        found: dict[str, _Form] = {}
        if self._parts.approvals is not None:
            for case in await self._parts.approvals.waiting(caller.tenant):
                asking = case.request
                if asking.run_id == view.run_id:
                    message = approval_message(
                        asking.scope.tool, asking.arguments, asking.reason, asking.scope.machine
                    )
                    schema = approval_schema("once", "session", "deny")
                    found[f"approval:{asking.id}"] = _Form(message, schema, id=asking.id)
        assert self._parts.conversations is not None
        questions = self._parts.conversations.of(caller.tenant).questions
        for _, question in await questions.waiting(view.session_id):
            if approvals.run_id_of(question.id) == view.run_id:
                found[f"question:{question.id}"] = _Form(
                    question_message(question), question_schema(question), question, question.id
                )
        return found

    async def _store_answer(
        self, caller: Caller, view: RunView, form: _Form, response: types.ElicitResult
    ) -> None:
        """Answer as the routes of the HTTP API do."""
        try:
            if form.question is None:
                decision, reason = approval_decision(response)
                data = approvals.ApprovalDecision(
                    decision=cast("Any", str(decision)), reason=reason
                )
                await _route(
                    approvals.answer_approval, self._parts, caller, approval_id=form.id, data=data
                )
            elif (given := question_answer(form.question, response)) is not None:
                answer = approvals.QuestionAnswer(
                    question_id=form.id, chosen=given.chosen, text=given.text
                )
                await _route(
                    approvals.answer_in_run, self._parts, caller, run_id=view.run_id, data=answer
                )
        except ApiError as problem:
            # Another interface was faster, or the answer does not fit: the run waits or continues.
            logger.info("an answer for run %s was not used: %s", view.run_id, problem)

    async def _cancel(self, tenant: str, run_id: str) -> None:
        """Cancel the run of a cancelled request, unless it is this process that stops."""
        if not self.closing and not self._runs.draining:
            await asyncio.shield(asyncio.ensure_future(self._runs.cancel(tenant, run_id)))


async def _route(route: Any, parts: ApiDependencies, caller: Caller, **arguments: object) -> Any:
    return await route.fn(parts, caller, **arguments)


_STATUSES: dict[RunStatus, types.TaskStatus] = {
    RunStatus.QUEUED: "working",
    RunStatus.RUNNING: "working",
    RunStatus.WAITING: "input_required",
}


def _task(view: RunView) -> TaskView:
    ended = view.state is RunStatus.ENDED
    end = "cancelled" if view.stop is StopReason.CANCELLED else "completed"
    status: types.TaskStatus = end if ended else _STATUSES[view.state]
    return TaskView(
        id=view.run_id,
        status=status,
        message=one_line(view.reason or view.asked, MAX_MESSAGE_CHARS),
        created_at=view.began_at,
        updated_at=view.ended_at or time.time(),
    )


def _still_waits(view: RunView) -> types.CallToolResult:
    why = one_line(view.reason, 1_000) or "it waits for a person"
    text = (
        f"Error ({ErrorKind.PERMISSION_DENIED}): the run {view.run_id} waits for a person: {why}. "
        f"Read evoclaw://runs/{view.run_id} later."
    )
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
