"""The route of an edge's tools, with their schemas."""

from __future__ import annotations

from litestar import get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from evoclaw.api.auth import Need, Who
from evoclaw.api.errors import given, not_found
from evoclaw.api.routes.fleet import joined
from evoclaw.api.routes.shapes import Id
from evoclaw.api.routes.things import ToolView, tool_view
from evoclaw.orchestrator.people.access import Scope


class EdgeTools(Struct, frozen=True):
    """The tools of an edge, in the order of its advert."""

    items: tuple[ToolView, ...]


@get("/v1/fleet/{agent_id:str}/tools", scope=Scope.FLEET_READ, tags=["fleet"])
async def list_edge_tools(parts: Need, caller: Who, agent_id: Id) -> EdgeTools:
    """List the approved tools of an edge; their descriptions come from the edge itself."""
    fleet = given(parts.orchestrator, "edges").fleet
    found = [member for member in fleet.members() if member.agent_id == agent_id]
    if caller.tenant != parts.operator or not (found or agent_id in joined(parts)):
        raise not_found("edge")
    return EdgeTools(tuple(tool_view(tool) for member in found for tool in member.tools))


ROUTES: tuple[HTTPRouteHandler, ...] = (list_edge_tools,)
