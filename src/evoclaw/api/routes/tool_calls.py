"""The route that calls one tool, without a model."""

from __future__ import annotations

from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from msgspec import Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.errors import require
from evoclaw.api.routes.agents import RUN_HEADER
from evoclaw.api.routes.parameters import (
    EdgeChoice,
    IdempotencyKey,
    OptionalId,
    ToolName,
)
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.orchestrator.people.access import TokenScope
from evoclaw.orchestrator.runs.single_calls import run_single_call


class ToolCallRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a tool."""

    arguments: dict[str, JSON] = {}
    """The arguments of the call."""
    agent: OptionalId = ""
    """The agent whose capabilities and policies hold; empty: the default agent."""
    on: EdgeChoice = ""
    """The edge that it runs on; empty: the default one."""


class ToolCallResponse(Struct, frozen=True):
    """How a call ended, or what it waits for."""

    run_id: str
    """The run that made the call."""
    state: str
    """`ended`, or `waiting` for a person: read the run later."""
    text: str
    """What the tool returned, or the reason of the error or of the wait."""
    error: str | None = None
    """The kind of the error; null: the call succeeded."""
    details: dict[str, JSON] = {}
    """Structured data for programs."""


@post(
    "/v1/tools/{name:str}/call",
    scope=TokenScope.TOOLS_EXECUTE,
    tags=["tools"],
    status_code=200,
)
async def call_tool(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: ToolName,
    data: JSONBody[ToolCallRequest],
    key: IdempotencyKey = "",
) -> Response[ToolCallResponse]:
    """Call a tool without a model, under the policies of an agent; the call is a run."""
    runs = require(parts.runs, "runs")
    done = await run_single_call(
        runs, caller.principal, name, data.arguments, agent=data.agent, on=data.on, key=key
    )
    if done.is_waiting or done.result is None:
        state = "waiting" if done.is_waiting else "ended"
        error = None if done.is_waiting else str(ErrorKind.INTERNAL)
        answer = ToolCallResponse(done.run_id, state, done.reason, error)
    else:
        result = done.result
        error = None if result.error is None else str(result.error)
        answer = ToolCallResponse(done.run_id, "ended", result.text, error, dict(result.details))
    return Response(answer, headers={RUN_HEADER: done.run_id})


ROUTES: tuple[HTTPRouteHandler, ...] = (call_tool,)
