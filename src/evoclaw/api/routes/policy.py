"""Routes of the policies: show them, and explain the verdict on a call; for the operator."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from msgspec import Meta, Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.errors import ApiError, not_found, require
from evoclaw.api.routes.governance import check_operator
from evoclaw.api.routes.parameters import OptionalId
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.agents.policy_explainer import (
    PolicyAnswer,
    PolicyQuestion,
    PolicyView,
)
from evoclaw.orchestrator.people.access import TokenScope

TAGS = ["policy"]
MAX_ARGUMENT_BYTES = 65_536
"""The size limit of explained arguments: parsing more would block other requests."""


class ExplainCallRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call to explain. It is judged as the first call of a run."""

    tool: Annotated[str, Meta(min_length=1, max_length=200)]
    """The name of the tool."""
    arguments: dict[str, JSON] = {}
    """The arguments of the call."""
    agent: OptionalId = ""
    """The calling agent; empty: the default agent."""
    level: Literal["", "read_only", "supervised", "full"] = ""
    """Overrides the agent's autonomy level."""


@get("/v1/policy", scope=TokenScope.TOOLS_READ, tags=TAGS)
async def show_policy(parts: InjectedDependencies, caller: InjectedCaller) -> PolicyView:
    """Show the rules and settings that judge tool calls."""
    check_operator(parts, caller)
    return await require(parts.policies, "policies").describe()


@post("/v1/policy/explain", scope=TokenScope.TOOLS_READ, tags=TAGS, status_code=200)
async def explain_call(
    parts: InjectedDependencies, caller: InjectedCaller, data: JSONBody[ExplainCallRequest]
) -> PolicyAnswer:
    """Explain the verdict on a tool call; the call is not run, counted or recorded.

    Uses the policies of a run that starts now, without rates, budgets and information flow.
    """
    check_operator(parts, caller)
    if len(msgspec.json.encode(data.arguments)) > MAX_ARGUMENT_BYTES:
        raise ApiError(
            422,
            "invalid",
            f"The arguments are larger than {MAX_ARGUMENT_BYTES} bytes. Shorten them.",
        )
    question = PolicyQuestion(data.tool, data.arguments, data.agent, data.level)
    found = await require(parts.policies, "policies").explain(question)
    if found is None:
        raise not_found("tool")
    return found


ROUTES: tuple[HTTPRouteHandler, ...] = (show_policy, explain_call)
