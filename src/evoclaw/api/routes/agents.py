"""Routes that list agents and invoke one with inputs, once or in the tool loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody
from msgspec import Meta, Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError, ErrorBody, require
from evoclaw.api.routes.governance import check_operator
from evoclaw.api.routes.parameters import AgentName, IdempotencyKey
from evoclaw.api.routes.runs import record_frame
from evoclaw.api.sse import EVENT_STREAM, EventStream, event_stream, frame
from evoclaw.core.agent import Agent, Field, LoopSettings
from evoclaw.core.events import StopReason
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.agents.definitions import InvalidAgentInputs, iterative_settings
from evoclaw.orchestrator.overview.model_checks import ModelCheck
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.orchestrator.runs.invoke import (
    Invocations,
    InvokeResponse,
    IterativeResponse,
    NoAnswer,
    OutcomeReader,
)
from evoclaw.orchestrator.runs.requests import RunView

RUN_HEADER = "x-evoclaw-run"
"""The response header with the id of the run."""
_STATUS_BY_STOP_REASON: Mapping[StopReason, tuple[int, str]] = {
    StopReason.BUDGET_EXCEEDED: (429, "budget_exceeded"),
    StopReason.DURATION_EXCEEDED: (504, "duration_exceeded"),
    StopReason.CANCELLED: (409, "cancelled"),
    StopReason.WAITING: (409, "waiting"),
}
"""The status and error code of an `invoke` that ended without an answer."""
DEFAULT_LOOP_SETTINGS = LoopSettings()
"""A setting of an agent that equals its default here was not set by its definition."""
Model = Annotated[str, Meta(max_length=200)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TurnLimit = Annotated[int, Meta(ge=1, le=100)]


def _error_response(description: str) -> ResponseSpec:
    return ResponseSpec(ErrorBody, generate_examples=False, description=description)


PROVIDER_FAILURE_RESPONSES: dict[int, ResponseSpec] = {
    502: _error_response("The model's provider failed.")
}


class InvokeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The inputs of one `invoke`."""

    inputs: dict[str, JSON] = {}
    """The inputs of the agent, by name."""
    model: Model | None = None
    """Overrides the agent's model."""
    temperature: Temperature | None = None
    """Defaults to the agent's own."""

    def settings(self, agent: Agent) -> dict[str, Any]:
        """The settings that the request overrides."""
        return {} if self.temperature is None else {"temperature": self.temperature}


class InvokeIterativeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The inputs of one `invoke-iterative` and the limits of its loop; default: the agent's own."""

    inputs: dict[str, JSON] = {}
    """The inputs of the agent, by name."""
    model: Model | None = None
    """Overrides the agent's model."""
    temperature: Temperature | None = None
    """Defaults to the agent's own."""
    max_iterations: TurnLimit | None = None
    """The turn limit; cannot exceed the agent's own."""
    max_tool_calls_per_iteration: TurnLimit | None = None
    """The calls that run in one turn."""
    enable_double_confirmation: bool = True
    """Ask the model to check its first answer."""
    error_threshold: TurnLimit | None = None
    """Failed turns in a row that end the run."""
    tool_call_timeout_seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    """The longest timeout of one call; default: that of its tool."""
    max_seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    """The time limit of the run."""

    def settings(self, agent: Agent) -> dict[str, Any]:
        """The settings that the request overrides; no limit exceeds the agent's definition."""
        found: dict[str, Any] = {"confirm": self.enable_double_confirmation}
        if self.temperature is not None:
            found["temperature"] = self.temperature
        wanted = {
            "max_turns": self.max_iterations,
            "max_calls_per_turn": self.max_tool_calls_per_iteration,
            "tool_error_limit": self.error_threshold,
            "max_call_seconds": self.tool_call_timeout_seconds,
            "max_seconds": self.max_seconds,
        }
        for name, value in wanted.items():
            own, usual = getattr(agent.settings, name), getattr(DEFAULT_LOOP_SETTINGS, name)
            if value is not None:
                found[name] = value if own == usual else min(value, own)
        return found


class AgentView(Struct, frozen=True):
    """An agent that the caller may invoke."""

    name: str
    """The name that requests use."""
    title: str
    """The name shown to people."""
    description: str
    """Its purpose, in one line."""
    model: str
    """Its model; empty: the default model of the process."""
    capabilities: tuple[str, ...]
    """The permissions that it holds; `*`: all."""
    autonomy: str
    """The autonomy level; empty: the default of the process."""
    skills: tuple[str, ...]
    """The skills that are active from the start."""
    tools: tuple[str, ...] | None
    """The tools that it may use, by name; null: all that its capabilities allow."""
    inputs: dict[str, Field]
    """Its inputs by name; none: any input is accepted."""
    outputs: dict[str, Field]
    """The fields of its answer, by name."""
    max_iterations: int
    """The turn limit of the loop where a request sets none."""
    max_turns: int
    """The turn limit of a run in a session."""
    max_seconds: float
    """The time limit of a run."""
    on: str
    """The edge that its tools run on, `any` or `*`; empty: the edge of the session."""
    budget: dict[str, float]
    """The budget of one run, by kind."""


class AgentList(Struct, frozen=True):
    """All agents, in the order of the configuration; the first is the default."""

    agents: tuple[AgentView, ...]
    """The agents."""


@get("/v1/agents", scope=TokenScope.AGENTS_INVOKE, tags=["agents"])
async def list_agents(parts: InjectedDependencies, caller: InjectedCaller) -> AgentList:
    """List the agents."""
    known = _agents(parts)
    return AgentList(tuple(_view(agent) for agent in known.values()))


@get("/v1/agents/{name:str}", scope=TokenScope.AGENTS_INVOKE, tags=["agents"])
async def show_agent(
    parts: InjectedDependencies, caller: InjectedCaller, name: AgentName
) -> AgentView:
    """Show one agent: its purpose, inputs and outputs."""
    return _view(_invocations(parts).agent(name))


@post(
    "/v1/agents/{name:str}/invoke",
    scope=TokenScope.AGENTS_INVOKE,
    tags=["agents"],
    status_code=200,
    responses=PROVIDER_FAILURE_RESPONSES
    | {504: _error_response("The run exceeded its time limit.")},
)
async def invoke(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: AgentName,
    data: JSONBody[InvokeRequest],
    key: IdempotencyKey = "",
) -> Response[InvokeResponse]:
    """Invoke an agent once, without tools."""
    invocations = _invocations(parts)
    view = await _start(invocations, caller, name, data, key)
    try:
        answer = (await invocations.outcome(caller.tenant, view)).single_response()
    except NoAnswer as none:
        status, code = _STATUS_BY_STOP_REASON.get(none.result.stop, (502, str(none.result.stop)))
        raise ApiError(status, code, str(none), details={"run_id": view.run_id}) from None
    return Response(answer, headers={RUN_HEADER: view.run_id})


@post(
    "/v1/agents/{name:str}/invoke-iterative",
    scope=TokenScope.AGENTS_INVOKE,
    tags=["agents"],
    status_code=200,
    responses=PROVIDER_FAILURE_RESPONSES,
)
async def invoke_iterative(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: AgentName,
    data: JSONBody[InvokeIterativeRequest],
    key: IdempotencyKey = "",
) -> Response[IterativeResponse]:
    """Invoke an agent in the tool loop; `termination_reason` says how the run ended."""
    invocations = _invocations(parts)
    view = await _start(invocations, caller, name, data, key)
    answer = (await invocations.outcome(caller.tenant, view)).iterative_response()
    return Response(answer, headers={RUN_HEADER: view.run_id})


@post(
    "/v1/agents/{name:str}/invoke-iterative/stream",
    scope=TokenScope.AGENTS_INVOKE,
    tags=["agents"],
    status_code=200,
    media_type=EVENT_STREAM,
    responses={
        200: ResponseSpec(
            str,
            media_type=EVENT_STREAM,
            generate_examples=False,
            description="One event per record, as for the events of a run; the last event is "
            "`response` with the answer, or `error`.",
        )
    },
)
async def invoke_stream(
    request: Request[Any, Any, Any],
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: AgentName,
    data: JSONBody[InvokeIterativeRequest],
    key: IdempotencyKey = "",
) -> EventStream:
    """Invoke an agent in the tool loop and stream its records; the last event is `response`.

    The run continues when the client disconnects: watch it again, or cancel it, by its id.
    """
    invocations = _invocations(parts)
    view = await _start(invocations, caller, name, data, key)
    stream = event_stream(request, _frames(invocations, caller.tenant, view))
    stream.headers[RUN_HEADER] = view.run_id
    return stream


@get("/v1/agents/{name:str}/model-check", scope=TokenScope.AGENTS_INVOKE, tags=["agents"])
async def show_model_check(
    parts: InjectedDependencies, caller: InjectedCaller, name: AgentName
) -> ModelCheck:
    """Show the last check of the agent's model, or what is known without one."""
    return require(parts.model_checks, "models").last(_invocations(parts).agent(name).model)


@post(
    "/v1/agents/{name:str}/model-check",
    scope=TokenScope.ADMIN,
    tags=["agents"],
    status_code=200,
)
async def check_model(
    parts: InjectedDependencies, caller: InjectedCaller, name: AgentName
) -> ModelCheck:
    """Check the agent's model with one real, short request to its provider."""
    check_operator(parts, caller)
    return await require(parts.model_checks, "models").check(_invocations(parts).agent(name).model)


ROUTES: tuple[HTTPRouteHandler, ...] = (
    list_agents,
    show_agent,
    show_model_check,
    check_model,
    invoke,
    invoke_iterative,
    invoke_stream,
)


def _agents(parts: ApiDependencies) -> Mapping[str, Agent]:
    return require(parts.conversations, "agents").agents


def _invocations(parts: ApiDependencies) -> Invocations:
    return Invocations(require(parts.runs, "runs"), _agents(parts))


async def _start(
    invocations: Invocations,
    caller: Caller,
    name: str,
    data: InvokeRequest | InvokeIterativeRequest,
    key: str,
) -> RunView:
    settings = data.settings(invocations.agent(name))
    try:
        return await invocations.start(
            caller.principal,
            name,
            data.inputs,
            single=isinstance(data, InvokeRequest),
            settings=settings,
            model=data.model or "",
            key=key,
        )
    except InvalidAgentInputs as bad:
        problems = {problem.field: problem.problem for problem in bad.problems}
        raise ApiError(422, "bad_inputs", str(bad), details={"problems": problems}) from None


async def _frames(
    invocations: Invocations, tenant: str, view: RunView
) -> AsyncGenerator[bytes, None]:
    reading = OutcomeReader(view.agent)
    async with aclosing(invocations.watch(tenant, view)) as records:
        async for record in records:
            reading.receive(record)
            yield record_frame(record)
    yield frame("response", reading.outcome().iterative_response())


def _view(agent: Agent) -> AgentView:
    return AgentView(
        agent.name,
        agent.title,
        agent.description,
        agent.model,
        tuple(sorted(agent.capabilities)),
        agent.autonomy,
        agent.skills,
        None if agent.tools is None else tuple(sorted(agent.tools)),
        agent.inputs,
        agent.outputs,
        iterative_settings(agent).max_turns,
        agent.settings.max_turns,
        agent.settings.max_seconds,
        agent.on,
        agent.budget,
    )
