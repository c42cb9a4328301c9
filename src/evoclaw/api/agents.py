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

from evoclaw.api.auth import Need, Who
from evoclaw.api.errors import ErrorBody, Refused, given
from evoclaw.api.needs import Parts
from evoclaw.api.routes.runs import record_frame
from evoclaw.api.routes.shapes import Id, Key
from evoclaw.api.sse import EVENT_STREAM, EventStream, event_stream, frame
from evoclaw.core.agent import Agent, Field, LoopSettings
from evoclaw.core.events import StopReason
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.agents.definitions import BadInputs, iterative
from evoclaw.orchestrator.errands import RunView
from evoclaw.orchestrator.people.access import Caller, Scope
from evoclaw.orchestrator.runs.invoke import (
    Invocations,
    InvokeResponse,
    IterativeResponse,
    NoAnswer,
    Reading,
)

RUN = "x-evoclaw-run"
"""The response header with the id of the run."""
_ENDINGS: Mapping[StopReason, tuple[int, str]] = {
    StopReason.BUDGET_EXCEEDED: (429, "budget_exceeded"),
    StopReason.DURATION_EXCEEDED: (504, "duration_exceeded"),
    StopReason.CANCELLED: (409, "cancelled"),
    StopReason.WAITING: (409, "waiting"),
}
"""The status and error code of an `invoke` that ended without an answer."""
USUAL = LoopSettings()
"""A setting of an agent that equals its default here was not set by its definition."""
Model = Annotated[str, Meta(max_length=200)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Turns = Annotated[int, Meta(ge=1, le=100)]


def _failure(what: str) -> ResponseSpec:
    return ResponseSpec(ErrorBody, generate_examples=False, description=what)


FAILURES: dict[int, ResponseSpec] = {502: _failure("The model's provider failed.")}


class InvokeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The inputs of one `invoke`."""

    inputs: dict[str, JSON] = {}
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
    model: Model | None = None
    temperature: Temperature | None = None
    max_iterations: Turns | None = None
    max_tool_calls_per_iteration: Turns | None = None
    enable_double_confirmation: bool = True
    """Ask the model to check its first answer."""
    error_threshold: Turns | None = None
    """Failed turns in a row that end the run."""
    max_seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None

    def settings(self, agent: Agent) -> dict[str, Any]:
        """The settings that the request overrides; no limit exceeds the agent's definition."""
        found: dict[str, Any] = {"confirm": self.enable_double_confirmation}
        if self.temperature is not None:
            found["temperature"] = self.temperature
        wanted = {
            "max_turns": self.max_iterations,
            "max_calls_per_turn": self.max_tool_calls_per_iteration,
            "tool_error_limit": self.error_threshold,
            "max_seconds": self.max_seconds,
        }
        for name, value in wanted.items():
            own, usual = getattr(agent.settings, name), getattr(USUAL, name)
            if value is not None:
                found[name] = value if own == usual else min(value, own)
        return found


class AgentView(Struct, frozen=True):
    """An agent that the caller may invoke."""

    name: str
    title: str
    description: str
    model: str
    """Empty: the default model of the process."""
    capabilities: tuple[str, ...]
    autonomy: str
    """The autonomy level; empty: the default of the process."""
    skills: tuple[str, ...]
    tools: tuple[str, ...] | None
    """The tools that it may use, by name; null: all that its capabilities allow."""
    inputs: dict[str, Field]
    outputs: dict[str, Field]
    max_iterations: int
    """The turn limit of the loop where a request sets none."""


class Agents(Struct, frozen=True):
    """All agents, in the order of the configuration; the first is the default."""

    agents: tuple[AgentView, ...]


@get("/v1/agents", scope=Scope.AGENTS_INVOKE, tags=["agents"])
async def agents(parts: Need, caller: Who) -> Agents:
    """List the agents."""
    known = _agents(parts)
    return Agents(tuple(_view(agent) for agent in known.values()))


@get("/v1/agents/{name:str}", scope=Scope.AGENTS_INVOKE, tags=["agents"])
async def agent(parts: Need, caller: Who, name: Id) -> AgentView:
    """Show one agent: its purpose, inputs and outputs."""
    return _view(_invocations(parts).agent(name))


@post(
    "/v1/agents/{name:str}/invoke",
    scope=Scope.AGENTS_INVOKE,
    tags=["agents"],
    status_code=200,
    responses=FAILURES | {504: _failure("The run exceeded its time limit.")},
)
async def invoke(
    parts: Need, caller: Who, name: Id, data: JSONBody[InvokeRequest], key: Key = ""
) -> Response[InvokeResponse]:
    """Invoke an agent once, without tools."""
    invocations = _invocations(parts)
    view = await _begin(invocations, caller, name, data, key)
    try:
        answer = (await invocations.outcome(caller.tenant, view)).single()
    except NoAnswer as none:
        status, code = _ENDINGS.get(none.result.stop, (502, str(none.result.stop)))
        raise Refused(status, code, str(none), details={"run_id": view.run_id}) from None
    return Response(answer, headers={RUN: view.run_id})


@post(
    "/v1/agents/{name:str}/invoke-iterative",
    scope=Scope.AGENTS_INVOKE,
    tags=["agents"],
    status_code=200,
    responses=FAILURES,
)
async def invoke_iterative(
    parts: Need, caller: Who, name: Id, data: JSONBody[InvokeIterativeRequest], key: Key = ""
) -> Response[IterativeResponse]:
    """Invoke an agent in the tool loop; `termination_reason` says how the run ended."""
    invocations = _invocations(parts)
    view = await _begin(invocations, caller, name, data, key)
    answer = (await invocations.outcome(caller.tenant, view)).looped()
    return Response(answer, headers={RUN: view.run_id})


@post(
    "/v1/agents/{name:str}/invoke-iterative/stream",
    scope=Scope.AGENTS_INVOKE,
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
    parts: Need,
    caller: Who,
    name: Id,
    data: JSONBody[InvokeIterativeRequest],
    key: Key = "",
) -> EventStream:
    """Invoke an agent in the tool loop and stream its records; the last event is `response`.

    The run continues when the client disconnects: watch it again, or cancel it, by its id.
    """
    invocations = _invocations(parts)
    view = await _begin(invocations, caller, name, data, key)
    stream = event_stream(request, _frames(invocations, caller.tenant, view))
    stream.headers[RUN] = view.run_id
    return stream


ROUTES: tuple[HTTPRouteHandler, ...] = (agents, agent, invoke, invoke_iterative, invoke_stream)


def _agents(parts: Parts) -> Mapping[str, Agent]:
    return given(parts.talks, "agents").agents


def _invocations(parts: Parts) -> Invocations:
    return Invocations(given(parts.runs, "runs"), _agents(parts))


async def _begin(
    invocations: Invocations,
    caller: Caller,
    name: str,
    data: InvokeRequest | InvokeIterativeRequest,
    key: str,
) -> RunView:
    settings = data.settings(invocations.agent(name))
    try:
        return await invocations.begin(
            caller.principal,
            name,
            data.inputs,
            single=isinstance(data, InvokeRequest),
            settings=settings,
            model=data.model or "",
            key=key,
        )
    except BadInputs as bad:
        problems = {problem.field: problem.problem for problem in bad.problems}
        raise Refused(422, "bad_inputs", str(bad), details={"problems": problems}) from None


async def _frames(
    invocations: Invocations, tenant: str, view: RunView
) -> AsyncGenerator[bytes, None]:
    reading = Reading(view.agent)
    async with aclosing(invocations.watch(tenant, view)) as records:
        async for record in records:
            reading.see(record)
            yield record_frame(record)
    yield frame("response", reading.outcome().looped())


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
        iterative(agent).max_turns,
    )
