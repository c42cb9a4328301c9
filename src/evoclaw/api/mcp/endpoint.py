"""The MCP endpoint: answers the requests of MCP clients from tools, resources, prompts and tasks.

It accepts revision 2026-07-28 and the older ones that begin with a handshake.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from mcp import types
from mcp.server import Server
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER
from mcp_types.jsonrpc import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from evoclaw.api.mcp.requests import OUTPUT_LEVEL, TASKS_EXTENSION, Context, McpRequest
from evoclaw.api.mcp.subscriptions import ResourceSubscriptions
from evoclaw.api.mcp.tasks import (
    RELATED_TASK_KEY,
    McpTaskSource,
    TaskUpdateParams,
    TaskView,
    detailed_task_2026,
    task_2025,
    task_2026,
)
from evoclaw.api.problems import ApiError
from evoclaw.core.errors import EvoClawError
from evoclaw.core.tools import Effect, Tool
from evoclaw.core.version import VERSION

logger = logging.getLogger(__name__)
RESOURCE_NOT_FOUND = -32_002
"""Of revisions before 2026-07-28; later ones answer `INVALID_PARAMS`."""
MAX_COMPLETIONS = 100
MAX_LOG_LEVELS = 1_000
"""Connections whose log level is remembered."""
INSTRUCTIONS = (
    "Tools on machines of EvoClaw. Policies judge each call before it runs; a refusal says what to "
    "do instead."
)
ToolOutcome: TypeAlias = types.CallToolResult | types.InputRequiredResult | TaskView
_Handler: TypeAlias = Callable[[Context, Any], Awaitable[HandlerResult]]


class McpToolSource(Protocol):
    """Tools for MCP clients."""

    def tools(self, request: McpRequest) -> Sequence[Tool]:
        """The tools that a client is offered."""
        ...

    async def call(self, request: McpRequest, params: types.CallToolRequestParams) -> ToolOutcome:
        """Run a call; failures of the tool are results, too.

        A client that declares the extension for tasks may get a task instead.
        """
        ...


class McpResourceSource(Protocol):
    """Resources for MCP clients. Unknown URIs raise `ApiError` 404."""

    async def page(self, request: McpRequest, cursor: str) -> tuple[Sequence[types.Resource], str]:
        """Some resources, and the cursor of the next page; empty on the last one."""
        ...

    def templates(self, request: McpRequest) -> Sequence[types.ResourceTemplate]:
        """The URI templates of further resources."""
        ...

    async def read(
        self, request: McpRequest, uri: str
    ) -> Sequence[types.TextResourceContents | types.BlobResourceContents]:
        """The contents of a resource."""
        ...

    async def complete(self, request: McpRequest, template: str, name: str) -> Sequence[str]:
        """The values of a variable of a template."""
        ...

    async def changes(self, request: McpRequest, uri: str) -> AsyncGenerator[None, None]:
        """Yield at every change of a resource, once it is checked that the client may read it."""
        ...


class McpPromptSource(Protocol):
    """Prompts for MCP clients. Unknown names raise `ApiError` 404."""

    async def prompts(self, request: McpRequest) -> Sequence[types.Prompt]:
        """The prompts that a client is offered."""
        ...

    async def get(
        self, request: McpRequest, name: str, arguments: dict[str, str]
    ) -> types.GetPromptResult:
        """The messages of a prompt."""
        ...

    async def complete(self, request: McpRequest, prompt: str, name: str) -> Sequence[str]:
        """The values of an argument of a prompt."""
        ...


class McpEndpoint:
    """Answers MCP requests; a source that is not given is not offered to clients."""

    def __init__(
        self,
        tools: McpToolSource,
        *,
        resources: McpResourceSource | None = None,
        prompts: McpPromptSource | None = None,
        tasks: McpTaskSource | None = None,
        to_api_error: Callable[[EvoClawError], ApiError] | None = None,
    ) -> None:
        """Choose what clients are offered.

        Args:
            tools: The tools.
            resources: What clients can read.
            prompts: What users of clients can choose from.
            tasks: The durable work of clients.
            to_api_error: Gives the errors of the sources a status, as the HTTP API does.
        """
        self._to_api_error = to_api_error or _failed
        self._tools, self._resources, self._prompts, self._tasks = tools, resources, prompts, tasks
        self._log_levels: OrderedDict[str, types.LoggingLevel] = OrderedDict()
        self.subscriptions = None if resources is None else ResourceSubscriptions(resources.changes)

    def server(self) -> Server[Any]:
        """The server object of the MCP SDK, for any transport."""
        server = _SdkServer(has_tasks=self._tasks is not None)
        server.middleware.append(self._to_protocol_errors)
        handlers: list[tuple[str, type[Any], _Handler]] = [
            ("tools/list", types.PaginatedRequestParams, self._list_tools),
            ("tools/call", types.CallToolRequestParams, self._call_tool),
            ("logging/setLevel", types.SetLevelRequestParams, self._set_log_level),
        ]
        if self._resources is not None and self.subscriptions is not None:
            handlers += [
                ("resources/list", types.PaginatedRequestParams, self._list_resources),
                ("resources/templates/list", types.PaginatedRequestParams, self._list_templates),
                ("resources/read", types.ReadResourceRequestParams, self._read_resource),
                ("resources/subscribe", types.SubscribeRequestParams, self._subscribe),
                ("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe),
                (
                    "subscriptions/listen",
                    types.SubscriptionsListenRequestParams,
                    self.subscriptions.listen,
                ),
            ]
        if self._prompts is not None:
            handlers += [
                ("prompts/list", types.PaginatedRequestParams, self._list_prompts),
                ("prompts/get", types.GetPromptRequestParams, self._get_prompt),
            ]
        if self._resources is not None or self._prompts is not None:
            handlers.append(("completion/complete", types.CompleteRequestParams, self._complete))
        if self._tasks is not None:
            server.middleware.append(self._create_task)
            handlers += [
                ("tasks/get", types.GetTaskRequestParams, self._get_task),
                ("tasks/result", types.GetTaskPayloadRequestParams, self._task_result),
                ("tasks/list", types.PaginatedRequestParams, self._list_tasks),
                ("tasks/update", TaskUpdateParams, self._update_task),
                ("tasks/cancel", types.CancelTaskRequestParams, self._cancel_task),
            ]
        for method, params_type, handler in handlers:
            server.add_request_handler(method, params_type, handler)
        return server

    def _request(self, context: Context, params: object = None) -> McpRequest:
        is_retry = isinstance(params, types.InputResponseRequestParams)
        request = McpRequest(context, (is_retry and params.input_responses) or {})
        request.log_level = self._log_levels.get(request.session_key, OUTPUT_LEVEL)
        return request

    async def _list_tools(self, context: Context, _: object) -> types.ListToolsResult:
        tools = self._tools.tools(self._request(context))
        execution = None if self._tasks is None else types.ToolExecution(task_support="optional")
        return types.ListToolsResult(tools=[to_mcp_tool(tool, execution) for tool in tools])

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> HandlerResult:
        outcome = await self._tools.call(self._request(context, params), params)
        if isinstance(outcome, TaskView):
            return {"resultType": "task", **task_2026(outcome)}
        return outcome

    async def _set_log_level(
        self, context: Context, params: types.SetLevelRequestParams
    ) -> types.EmptyResult:
        key = McpRequest(context).session_key
        self._log_levels[key] = params.level
        self._log_levels.move_to_end(key)
        if len(self._log_levels) > MAX_LOG_LEVELS:
            self._log_levels.popitem(last=False)
        return types.EmptyResult()

    async def _list_resources(
        self, context: Context, params: types.PaginatedRequestParams
    ) -> types.ListResourcesResult:
        assert self._resources is not None
        page, cursor = await self._resources.page(self._request(context), params.cursor or "")
        return types.ListResourcesResult(resources=list(page), next_cursor=cursor or None)

    async def _list_templates(
        self, context: Context, _: object
    ) -> types.ListResourceTemplatesResult:
        assert self._resources is not None
        found = self._resources.templates(self._request(context))
        return types.ListResourceTemplatesResult(resource_templates=list(found))

    async def _read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        assert self._resources is not None
        request = self._request(context, params)
        return types.ReadResourceResult(
            contents=list(await self._resources.read(request, params.uri))
        )

    async def _subscribe(
        self, context: Context, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        assert self.subscriptions is not None
        await self.subscriptions.add(self._request(context), params.uri)
        return types.EmptyResult()

    async def _unsubscribe(
        self, context: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        assert self.subscriptions is not None
        await self.subscriptions.remove(self._request(context), params.uri)
        return types.EmptyResult()

    async def _list_prompts(self, context: Context, _: object) -> types.ListPromptsResult:
        assert self._prompts is not None
        prompts = await self._prompts.prompts(self._request(context))
        return types.ListPromptsResult(prompts=list(prompts))

    async def _get_prompt(
        self, context: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        assert self._prompts is not None
        request = self._request(context, params)
        return await self._prompts.get(request, params.name, params.arguments or {})

    async def _complete(
        self, context: Context, params: types.CompleteRequestParams
    ) -> types.CompleteResult:
        request, argument, values = self._request(context), params.argument, ()
        match params.ref:
            case types.ResourceTemplateReference(uri=uri) if self._resources is not None:
                values = await self._resources.complete(request, uri, argument.name)
            case types.PromptReference(name=name) if self._prompts is not None:
                values = await self._prompts.complete(request, name, argument.name)
            case _:
                pass
        typed = argument.value.casefold()
        found = [value for value in values if value.casefold().startswith(typed)]
        return types.CompleteResult(
            completion=types.Completion(
                values=found[:MAX_COMPLETIONS],
                total=len(found),
                has_more=len(found) > MAX_COMPLETIONS,
            )
        )

    async def _to_protocol_errors(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Errors become errors of the protocol; the traceback of a bug stays in the log."""
        try:
            return await call_next(ctx)
        except EvoClawError as problem:
            error = self._to_api_error(problem)
            raise MCPError(_code(ctx, error), str(error), {"code": error.code}) from None
        except (MCPError, ValidationError):
            raise
        except Exception as bug:
            logger.exception("MCP request %r failed", ctx.method)
            text = "Internal error. See the server's log for the cause."
            raise MCPError(INTERNAL_ERROR, text) from bug

    async def _create_task(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answer a call that a client of 2025-11-25 wants as a task.

        Middleware: the SDK has no result type for it.
        """
        raw = ctx.params or {}
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        if ctx.method != "tools/call" or modern or raw.get("task") is None:
            return await call_next(ctx)
        assert self._tasks is not None
        params = types.CallToolRequestParams.model_validate(raw, by_name=False)
        view = await self._tasks.create(self._request(ctx, params), params)
        return {"task": task_2025(view)}

    def _task_request(self, context: Context, task_id: str) -> McpRequest:
        request = self._request(context)
        if request.is_modern and request.name_header not in (None, task_id):
            text = f"The header {MCP_NAME_HEADER} does not name the task of the request."
            raise MCPError(HEADER_MISMATCH, text)
        if request.is_modern and not request.has_tasks:
            raise MCPError(
                MISSING_REQUIRED_CLIENT_CAPABILITY,
                f"The client must declare the extension {TASKS_EXTENSION}.",
                {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}},
            )
        return request

    async def _get_task(
        self, context: Context, params: types.GetTaskRequestParams
    ) -> HandlerResult:
        assert self._tasks is not None
        request = self._task_request(context, params.task_id)
        view = await self._tasks.get(request, params.task_id)
        return detailed_task_2026(view) if request.is_modern else task_2025(view)

    async def _task_result(
        self, context: Context, params: types.GetTaskPayloadRequestParams
    ) -> HandlerResult:
        assert self._tasks is not None
        _only_before_2026(context)
        result = await self._tasks.result(self._request(context), params.task_id)
        dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        dumped.pop("resultType", None)
        return {**dumped, "_meta": {RELATED_TASK_KEY: {"taskId": params.task_id}}}

    async def _list_tasks(
        self, context: Context, params: types.PaginatedRequestParams
    ) -> HandlerResult:
        assert self._tasks is not None
        _only_before_2026(context)
        page, cursor = await self._tasks.page(self._request(context), params.cursor or "")
        found: dict[str, Any] = {"tasks": [task_2025(view) for view in page]}
        return {**found, "nextCursor": cursor} if cursor else found

    async def _update_task(self, context: Context, params: TaskUpdateParams) -> HandlerResult:
        assert self._tasks is not None
        request = self._task_request(context, params.task_id)
        if not request.is_modern:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", context.method)
        await self._tasks.answer(request, params.task_id, params.input_responses)
        return {}

    async def _cancel_task(
        self, context: Context, params: types.CancelTaskRequestParams
    ) -> HandlerResult:
        assert self._tasks is not None
        request = self._task_request(context, params.task_id)
        if not request.is_modern:
            return task_2025(await self._tasks.cancel(request, params.task_id))
        try:
            await self._tasks.cancel(request, params.task_id)
        except ApiError as problem:
            if problem.status != 409:  # a task that has ended is acknowledged, too
                raise
        return {}


class _SdkServer(Server[Any]):
    """The server of the SDK, which does not know tasks."""

    def __init__(self, *, has_tasks: bool) -> None:
        super().__init__("evoclaw", version=VERSION, title="EvoClaw", instructions=INSTRUCTIONS)
        self._has_tasks = has_tasks
        if has_tasks:
            self.extensions[TASKS_EXTENSION] = {}

    def get_capabilities(self, *args: Any, **options: Any) -> types.ServerCapabilities:
        """What the handlers say, and tasks."""
        found = super().get_capabilities(*args, **options)
        if not self._has_tasks or options.get("protocol_version") in MODERN_PROTOCOL_VERSIONS:
            return found
        tasks = types.ServerTasksCapability(
            list=types.TasksListCapability(),
            cancel=types.TasksCancelCapability(),
            requests=types.ServerTasksRequestsCapability(
                tools=types.TasksToolsCapability(call=types.TasksCallCapability())
            ),
        )
        return found.model_copy(update={"tasks": tasks, "extensions": None})


def to_mcp_tool(tool: Tool, execution: types.ToolExecution | None = None) -> types.Tool:
    """A tool as MCP clients see it."""
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.parameters,
        execution=execution,
        annotations=types.ToolAnnotations(
            read_only_hint=tool.effect is Effect.READ,
            idempotent_hint=tool.idempotent or tool.effect is Effect.READ,
            open_world_hint="network" in tool.permissions,
        ),
    )


def _only_before_2026(context: Context) -> None:
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(METHOD_NOT_FOUND, "Method not found", context.method)


def _failed(problem: EvoClawError) -> ApiError:
    return problem if isinstance(problem, ApiError) else ApiError(500, "failed", str(problem))


def _code(context: Context, error: ApiError) -> int:
    if error.status >= 500:
        return INTERNAL_ERROR
    if error.status in (401, 403, 429):
        return INVALID_REQUEST
    is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    if error.status == 404 and context.method.startswith("resources/") and not is_modern:
        return RESOURCE_NOT_FOUND
    return INVALID_PARAMS
