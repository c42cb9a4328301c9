"""What calls are judged by, and why one would be judged so; for the operator."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from msgspec import Meta, Struct

from evoclaw.api.auth import Need, Who
from evoclaw.api.errors import Refused, given, not_found
from evoclaw.api.needs import PolicyAnswer, PolicyQuestion, PolicyView
from evoclaw.api.routes.oversight import check_operator
from evoclaw.api.routes.shapes import Name
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.people.access import Scope

TAGS = ["policy"]
MOST = 65_536
"""Letters of arguments that are explained: reading more would keep others waiting."""


class Explaining(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call to be told about. It is judged as if nothing had been read before it."""

    tool: Annotated[str, Meta(min_length=1, max_length=200)]
    arguments: dict[str, JSON] = {}
    agent: Name = ""
    """Who would call; the default agent if empty."""
    level: Literal["", "read_only", "supervised", "full"] = ""
    """How much it may do by itself, instead of what the agent may."""


@get("/v1/policy", scope=Scope.TOOLS_READ, tags=TAGS)
async def show_policy(parts: Need, caller: Who) -> PolicyView:
    """The rules and the settings by which calls are judged here."""
    check_operator(parts, caller)
    return await given(parts.policies, "policies").shown()


@post("/v1/policy/explain", scope=Scope.TOOLS_READ, tags=TAGS, status_code=200)
async def explain_call(parts: Need, caller: Who, data: JSONBody[Explaining]) -> PolicyAnswer:
    """How a call would be judged, and why; it is not run, not counted, not put on record.

    By the rules of a run that begins now, but for rates, budgets and what was read before it.
    """
    check_operator(parts, caller)
    if len(msgspec.json.encode(data.arguments)) > MOST:
        raise Refused(422, "invalid", f"arguments of more than {MOST} letters are not explained")
    question = PolicyQuestion(data.tool, data.arguments, data.agent, data.level)
    found = await given(parts.policies, "policies").explain(question)
    if found is None:
        raise not_found("tool")
    return found


ROUTES: tuple[HTTPRouteHandler, ...] = (show_policy, explain_call)
