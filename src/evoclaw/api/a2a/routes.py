"""Routes of A2A: agent cards, JSON-RPC, and HTTP+JSON, for the service and for each agent.

The paths are not in the OpenAPI document: the specification of A2A describes them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from evoclaw.api.auth import (
    ANY_QUERY,
    CARD_PATHS,
    PUBLIC,
    InjectedCaller,
    InjectedDependencies,
)
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError, handle_error, require
from evoclaw.api.openai.chat_runs import unless_disconnected
from evoclaw.api.sse import event_stream
from evoclaw.core.errors import AgentNotFound, EvoClawError
from evoclaw.core.messages import JSON, is_object
from evoclaw.orchestrator.a2a.cards import (
    CARD_PATH,
    SERVICE_PATH,
    agent_card,
    agent_path,
    http_interfaces,
    public_card,
    service_card,
)
from evoclaw.orchestrator.a2a.errors import (
    A2aError,
    A2aErrorKind,
    invalid_params,
    task_not_found,
    to_a2a_error,
)
from evoclaw.orchestrator.a2a.jsonrpc import (
    JsonRpcHandler,
    RpcAnswer,
    RpcRefused,
    check_version,
    convert_params,
    decode_json,
    read_call,
    without_nulls,
)
from evoclaw.orchestrator.a2a.schemas import (
    A2aEvent,
    A2aGetRequest,
    A2aListRequest,
    A2aSendRequest,
    A2aTaskRequest,
)
from evoclaw.orchestrator.a2a.tasks import (
    A2aParts,
    A2aTasks,
    FollowedTask,
    push_not_supported,
)
from evoclaw.orchestrator.people.access import Caller, TokenScope

AnyRequest = Request[Any, Any, Any]
JSON_TYPE, A2A_TYPE = "application/json", "application/a2a+json"
VERSION_PARAMETER = "A2A-Version"
"""The header, or query parameter, with the version of the protocol."""
CARD_CACHE = {"cache-control": "public, max-age=300", "vary": "host"}
AGENT_PATH = agent_path("{agent:str}")


def handle_a2a_error(request: AnyRequest, error: EvoClawError) -> Response[Any]:
    """Exception handler of the HTTP+JSON routes."""
    if isinstance(error, ApiError):
        return handle_error(request, error)
    found = to_a2a_error(error)
    return Response(found.http_body, status_code=found.kind.http_status, media_type=A2A_TYPE)


_OPTIONS: dict[str, Any] = {
    "scope": TokenScope.AGENTS_INVOKE,
    "include_in_schema": False,
    ANY_QUERY: True,
}
_POST_OPTIONS: dict[str, Any] = {**_OPTIONS, "status_code": 200, "request_max_body_size": None}
_REST_ERRORS: Any = {EvoClawError: handle_a2a_error}


def _paths(end: str) -> list[str]:
    return [SERVICE_PATH + end, AGENT_PATH + end]


def _tasks(request: AnyRequest, parts: ApiDependencies, caller: Caller) -> A2aTasks:
    """The tasks of a caller at the agent of the path; `AgentNotFound` if there is none such."""
    conversations, agent = require(parts.conversations, "agents"), _path_part(request, "agent")
    if agent and agent not in conversations.agents:
        raise AgentNotFound(agent, tuple(conversations.agents))
    runs = require(parts.runs, "runs")
    made = A2aParts(runs, conversations, parts.approvals, parts.image_problem)
    return made.tasks(caller, agent)


def _path_part(request: AnyRequest, name: str) -> str:
    """A part of the path; empty if the path of this request has none of this name."""
    return str(request.path_params.get(name, ""))


def _base_url(request: AnyRequest, parts: ApiDependencies) -> str:
    """The address of the service: `public_url`, or the one that the client used."""
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    return parts.settings.public_url.rstrip("/") or own


def _card(request: AnyRequest, parts: ApiDependencies) -> dict[str, JSON]:
    """The card for callers with a token: of an agent, or of the service."""
    agent = _path_part(request, "agent")
    base, agents = _base_url(request, parts), require(parts.conversations, "agents").agents
    if agent:
        return agent_card(agents[agent], http_interfaces(base + agent_path(agent)))
    return service_card(base, agents, require(parts.runs, "runs").default_agent)


@get([*CARD_PATHS], scope=PUBLIC, include_in_schema=False)
async def show_public_card(
    request: AnyRequest, parts: InjectedDependencies
) -> Response[dict[str, JSON]]:
    """The card that everyone may read; it names no agent."""
    card = public_card(_base_url(request, parts))
    return Response(card, headers=CARD_CACHE, media_type=JSON_TYPE)


@get(AGENT_PATH + CARD_PATH, **_OPTIONS)
async def show_agent_card(
    request: AnyRequest, parts: InjectedDependencies, caller: InjectedCaller
) -> dict[str, JSON]:
    """The card of an agent."""
    _tasks(request, parts, caller)
    return _card(request, parts)


@post(_paths(""), **_POST_OPTIONS)
async def call_method(
    request: AnyRequest, parts: InjectedDependencies, caller: InjectedCaller
) -> ASGIResponse:
    """Run a JSON-RPC request."""
    tasks = _tasks(request, parts, caller)
    try:
        call = read_call(await request.body(), _version(request))
    except RpcRefused as refused:
        return _rpc_response(refused.answer)
    handler = JsonRpcHandler(tasks, lambda: _card(request, parts))
    found = await unless_disconnected(request, handler.handle(call))
    if isinstance(found, RpcAnswer):
        return _rpc_response(found)
    return event_stream(request, _frames(found))


def _rpc_response(answer: RpcAnswer) -> ASGIResponse:
    return ASGIResponse(body=answer.body, status_code=answer.http_status, media_type=JSON_TYPE)


async def _frames(messages: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(messages):
        async for message in messages:
            yield b"data: " + message + b"\n\n"


def _version(request: AnyRequest) -> str:
    found: str = request.headers.get(VERSION_PARAMETER, "")
    return found or request.query_params.get(VERSION_PARAMETER, "")


@post(_paths("/message:send"), exception_handlers=_REST_ERRORS, **_POST_OPTIONS)
async def send_message(
    request: AnyRequest, parts: InjectedDependencies, caller: InjectedCaller
) -> ASGIResponse:
    """Send a message, and wait for the task unless the request says otherwise."""
    tasks, sent = _tasks(request, parts, caller), await _read_body(request)
    options = sent.configuration
    followed = await tasks.send(sent)
    if options.return_immediately:
        task = await tasks.shown(followed, options.history_length)
    else:
        waiting = tasks.result(followed, options.history_length)
        task = await unless_disconnected(request, waiting)
    return _json(A2aEvent(task=task))


@post(_paths("/message:stream"), exception_handlers=_REST_ERRORS, **_POST_OPTIONS)
async def stream_message(
    request: AnyRequest, parts: InjectedDependencies, caller: InjectedCaller
) -> ASGIResponse:
    """Send a message, and stream what happens."""
    tasks, sent = _tasks(request, parts, caller), await _read_body(request)
    followed = await tasks.send(sent)
    return _stream(request, tasks, followed, sent.configuration.history_length)


async def _read_body(request: AnyRequest) -> A2aSendRequest:
    check_version(_version(request))
    value = decode_json(await request.body())
    if not is_object(value):
        raise invalid_params("The body is not a JSON object.")
    return convert_params(without_nulls(value), A2aSendRequest)


@get(_paths("/tasks"), exception_handlers=_REST_ERRORS, **_OPTIONS)
async def list_tasks(
    request: AnyRequest, parts: InjectedDependencies, caller: InjectedCaller
) -> ASGIResponse:
    """List the tasks of the caller."""
    tasks = _tasks(request, parts, caller)
    return _json(await tasks.list(convert_params(_query(request), A2aListRequest, strict=False)))


@get(_paths("/tasks/{target:str}"), exception_handlers=_REST_ERRORS, **_OPTIONS)
async def show_task(
    request: AnyRequest, parts: InjectedDependencies, caller: InjectedCaller
) -> ASGIResponse:
    """Show a task, or with `:subscribe` stream what happens to it."""
    tasks, query = _tasks(request, parts, caller), _query(request)
    task_id, _, verb = _path_part(request, "target").partition(":")
    if verb == "subscribe":
        return await _subscribe(request, tasks, task_id, query)
    if verb:
        raise task_not_found(f"{task_id}:{verb}")
    found = convert_params({**query, "id": task_id}, A2aGetRequest, strict=False)
    return _json(await tasks.get(found))


@post(_paths("/tasks/{target:str}"), exception_handlers=_REST_ERRORS, **_POST_OPTIONS)
async def act_on_task(
    request: AnyRequest, parts: InjectedDependencies, caller: InjectedCaller
) -> ASGIResponse:
    """Cancel a task with `:cancel`, or with `:subscribe` stream what happens to it."""
    if body := await request.body():
        decode_json(body)  # the path says everything that is used of it
    tasks, query = _tasks(request, parts, caller), _query(request)
    task_id, _, verb = _path_part(request, "target").partition(":")
    if verb == "subscribe":
        return await _subscribe(request, tasks, task_id, query)
    if verb != "cancel":
        raise A2aError(A2aErrorKind.METHOD_NOT_FOUND, "A task takes :cancel and :subscribe.")
    found = convert_params({**query, "id": task_id}, A2aTaskRequest, strict=False)
    return _json(await tasks.cancel(found))


async def _subscribe(
    request: AnyRequest, tasks: A2aTasks, task_id: str, query: dict[str, JSON]
) -> ASGIResponse:
    found = convert_params({**query, "id": task_id}, A2aTaskRequest, strict=False)
    return _stream(request, tasks, await tasks.subscribe(found), None)


def _query(request: AnyRequest) -> dict[str, JSON]:
    check_version(_version(request))
    return dict(request.query_params.items())


_PUSH_PATHS = [
    *_paths("/tasks/{target:str}/pushNotificationConfigs"),
    *_paths("/tasks/{target:str}/pushNotificationConfigs/{config:str}"),
]


@get(_PUSH_PATHS, exception_handlers=_REST_ERRORS, **_OPTIONS)
async def show_push_config() -> None:
    """Refuse: push notifications are not supported."""
    raise push_not_supported()


@post(_PUSH_PATHS, exception_handlers=_REST_ERRORS, **_OPTIONS)
async def create_push_config() -> None:
    """Refuse: push notifications are not supported."""
    raise push_not_supported()


@delete(_PUSH_PATHS, exception_handlers=_REST_ERRORS, **_OPTIONS)
async def delete_push_config() -> None:
    """Refuse: push notifications are not supported."""
    raise push_not_supported()


@get(_paths("/extendedAgentCard"), exception_handlers=_REST_ERRORS, **_OPTIONS)
async def show_extended_card(
    request: AnyRequest, parts: InjectedDependencies, caller: InjectedCaller
) -> Response[dict[str, JSON]]:
    """The card for callers with a token."""
    _tasks(request, parts, caller)
    return Response(_card(request, parts), media_type=A2A_TYPE)


def _stream(
    request: AnyRequest, tasks: A2aTasks, followed: FollowedTask, history_length: int | None
) -> ASGIResponse:
    async def messages() -> AsyncGenerator[bytes, None]:
        async with aclosing(tasks.events(followed, history_length)) as events:
            async for event in events:
                yield msgspec.json.encode(event)

    return event_stream(request, _frames(messages()))


def _json(found: object) -> ASGIResponse:
    return ASGIResponse(body=msgspec.json.encode(found), media_type=A2A_TYPE)


A2A_ROUTES: tuple[HTTPRouteHandler, ...] = (
    show_public_card,
    show_agent_card,
    call_method,
    send_message,
    stream_message,
    list_tasks,
    show_task,
    act_on_task,
    show_push_config,
    create_push_config,
    delete_push_config,
    show_extended_card,
)
