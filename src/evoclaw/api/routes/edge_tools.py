"""The route of an edge's tools, with their schemas."""

from __future__ import annotations

from litestar import get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.errors import not_found, require
from evoclaw.api.routes.fleet import paired_devices
from evoclaw.api.routes.shapes import PathId
from evoclaw.api.routes.things import ToolView, tool_view
from evoclaw.orchestrator.people.access import TokenScope


class EdgeToolList(Struct, frozen=True):
    """The tools of an edge, in the order of its advert."""

    items: tuple[ToolView, ...]


@get("/v1/fleet/{agent_id:str}/tools", scope=TokenScope.FLEET_READ, tags=["fleet"])
async def list_edge_tools(
    parts: InjectedDependencies, caller: InjectedCaller, agent_id: PathId
) -> EdgeToolList:
    """List the approved tools of an edge; their descriptions come from the edge itself."""
    fleet = require(parts.orchestrator, "edges").fleet
    found = [member for member in fleet.members() if member.agent_id == agent_id]
    if caller.tenant != parts.operator_tenant or not (found or agent_id in paired_devices(parts)):
        raise not_found("edge")
    return EdgeToolList(tuple(tool_view(tool) for member in found for tool in member.tools))


EDGE_TOOL_ROUTES: tuple[HTTPRouteHandler, ...] = (list_edge_tools,)
