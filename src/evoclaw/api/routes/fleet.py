"""Routes of the fleet: list, ping, approve, revoke and invite edges.

The route of an edge's tools, with their schemas.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Annotated

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError, not_found, require
from evoclaw.api.routes.parameters import (
    EdgeId,
)
from evoclaw.api.routes.tools_skills_memory import ToolView, tool_view
from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.edge.joining import join_command, join_link, qr_rows
from evoclaw.orchestrator.fleet.fleet import Member
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.trust.pairing import Device, Devices

TAGS = ["fleet"]
SeenSurface = Annotated[
    str,
    QueryParameter(
        max_length=64,
        description="The edge's `surface` as you saw it: the request fails if it has changed. "
        "Empty approves all waiting tools.",
    ),
]
AfterEdge = Annotated[
    str,
    QueryParameter(
        pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,63})?$",
        description="The `next` of the previous page; empty starts with the first edge.",
    ),
]
EdgeLimit = Annotated[
    int,
    QueryParameter(ge=0, le=1_000, description="The maximum number of edges; 0 lists all."),
]
PING_TIMEOUT_S = 5.0
"""How long an edge may take to answer a ping."""


class EdgeView(Struct, frozen=True, omit_defaults=True):
    """One edge."""

    agent_id: str
    """The id of the edge."""
    online: bool
    """Whether it is connected."""
    state: str
    """`pending`, `approved` or `revoked`; `unknown` if the edge was never paired."""
    type: str = ""
    """The type that it reports, such as `monitor`."""
    summary: str = ""
    """The edge's own description of itself; untrusted."""
    problem: str = ""
    """Why its tools are not offered; empty if they are."""
    has_model: bool = False
    """Whether it answers prompts with a model of its own."""
    tools: tuple[str, ...] = ()
    """The tools that it offers."""
    in_flight: int = 0
    """Commands that it runs."""
    queued: int = 0
    """Commands that wait on it."""
    approved: tuple[str, ...] = ()
    """The approved tools."""
    waiting: tuple[str, ...] = ()
    """The tools that wait for a person's approval."""
    surface: str = ""
    """A hash of the waiting tools; send it as `seen` to approve them. Empty if none waits."""
    last_seen: float = 0.0
    """When the last heartbeat arrived, in Unix seconds; 0: never."""
    cpu_percent: float = 0.0
    """The use of its processors."""
    memory_mb: float = 0.0
    """The memory of its process."""
    uptime_s: float = 0.0
    """How long its machine has been up."""
    room: int | None = None
    """How many more commands it accepts now; null if unknown."""
    loads: tuple[int, ...] = ()
    """Running and queued commands at its last heartbeats, the oldest first."""
    default: bool = False
    """Whether sessions work on it unless another edge is named."""
    delivery_guarantees: bool = True
    """False: the edge speaks only the basic messages; each command is sent to it once."""
    genome: str = ""
    """The digest of its genome; empty if it did not say."""


class EdgeList(Struct, frozen=True):
    """The edges, or a page of them, sorted by id."""

    items: tuple[EdgeView, ...]
    """The edges."""
    next: str = ""
    """The value of `after` for the next page; empty on the last page."""


class Pong(Struct, frozen=True):
    """The answer of an edge to a ping."""

    agent_id: str
    """The id of the edge."""
    seconds: float
    """How long the answer took."""


class InviteEdgeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An edge to invite."""

    agent_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    """The id that the edge will have."""
    minutes: Annotated[float, Meta(ge=1, le=10_080)] = 15
    """How long the invitation is valid."""


class EdgeInvitation(Struct, frozen=True):
    """An invitation for a new edge: as a command, a link and a QR code."""

    url: str
    """The address of the broker."""
    token: str
    """The one-time token."""
    link: str
    """The URL, the token and the id of the edge in one link."""
    command: str
    """The command to run on the new edge."""
    qr: tuple[str, ...]
    """The link as a QR code: rows of `0` (light) and `1` (dark), with the quiet zone."""
    ca_sha256: str = ""
    """The fingerprint of the authority of the broker's certificate, in hex; empty without TLS."""
    warning: str = ""
    """Why the edge may not reach the broker, and what to do; empty if it should."""


def edge_view(
    name: str, member: Member | None, device: Device | None, *, default: str = ""
) -> EdgeView:
    """The view of an edge; `default` is the edge that sessions work on."""
    beat = None if member is None else member.heartbeat
    return EdgeView(
        name,
        member is not None and member.online,
        "unknown" if device is None else str(device.state),
        "" if member is None else member.agent_type,
        "" if member is None else member.summary,
        "" if member is None else member.problem,
        member is not None and member.has_model,
        () if member is None else tuple(member.tools.names),
        0 if beat is None else beat.in_flight,
        0 if beat is None else beat.queued,
        () if device is None else tuple(sorted(device.approved)),
        () if device is None else tuple(sorted(device.waiting)),
        "" if device is None or not device.waiting else device.surface,
        0.0 if member is None else member.last_seen,
        0.0 if beat is None else beat.cpu_percent,
        0.0 if beat is None else beat.memory_mb,
        0.0 if beat is None else beat.uptime_s,
        None if beat is None else beat.room,
        () if member is None else tuple(member.loads),
        name == default,
        member is None or not member.online or member.guarantees_delivery,
        "" if member is None else member.genome,
    )


def paired_devices(parts: ApiDependencies) -> dict[str, Device]:
    """The paired edges by id."""
    found = () if parts.devices is None else parts.devices.all()
    return {device.agent_id: device for device in found}


def _edges(parts: ApiDependencies, caller: Caller, after: str, limit: int) -> list[EdgeView]:
    """At most so many edges that a caller may see: only the operator's tenant has a fleet."""
    orchestrator = require(parts.orchestrator, "edges")
    if caller.tenant != parts.operator_tenant:
        return []
    members = {member.agent_id: member for member in orchestrator.fleet.page(after, limit)}
    paired = () if parts.devices is None else parts.devices.page(after, limit)
    devices = {device.agent_id: device for device in paired}
    names = sorted({*members, *devices})[:limit]
    default = orchestrator.default_edge
    return [
        edge_view(name, members.get(name), devices.get(name), default=default) for name in names
    ]


def _no_pong(agent_id: str, why: str) -> ApiError:
    return ApiError(
        409,
        "no_answer",
        f"The edge {agent_id!r} did not answer the ping; if it stays silent, restart it. {why}",
    )


def _edge(parts: ApiDependencies, caller: Caller, agent_id: str) -> EdgeView:
    orchestrator = require(parts.orchestrator, "edges")
    member = orchestrator.fleet.find(agent_id)
    device = None if parts.devices is None else parts.devices.get(agent_id)
    if caller.tenant != parts.operator_tenant or (member is None and device is None):
        raise not_found("edge")
    return edge_view(agent_id, member, device, default=orchestrator.default_edge)


def _devices_with(parts: ApiDependencies, caller: Caller, agent_id: str) -> Devices:
    """The paired edges, after checking that the edge is one of them."""
    _edge(parts, caller, agent_id)
    devices = require(parts.devices, "device pairing")
    if devices.get(agent_id) is None:
        raise ApiError(409, "not_joined", f"The edge {agent_id!r} is not paired. Invite it first.")
    return devices


@get("/v1/fleet", scope=TokenScope.FLEET_READ, tags=TAGS)
async def list_edges(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    after: AfterEdge = "",
    limit: EdgeLimit = 0,
) -> EdgeList:
    """List the edges: online, paired or both, with their tools."""
    found = _edges(parts, caller, after, limit + 1 if limit else sys.maxsize)
    page = found[: limit or None]
    return EdgeList(tuple(page), page[-1].agent_id if len(found) > len(page) else "")


@get("/v1/fleet/{agent_id:str}", scope=TokenScope.FLEET_READ, tags=TAGS)
async def show_edge(
    parts: InjectedDependencies, caller: InjectedCaller, agent_id: EdgeId
) -> EdgeView:
    """Show one edge."""
    return _edge(parts, caller, agent_id)


@post("/v1/fleet/{agent_id:str}/ping", scope=TokenScope.FLEET_READ, tags=TAGS, status_code=200)
async def ping_edge(parts: InjectedDependencies, caller: InjectedCaller, agent_id: EdgeId) -> Pong:
    """Ping an edge and wait for its answer."""
    edge = _edge(parts, caller, agent_id)
    if not edge.online:
        raise ApiError(
            409, "offline", f"The edge {agent_id!r} is offline. Start it, then try again."
        )
    started_at = time.monotonic()
    try:
        outcome = await require(parts.orchestrator, "edges").query(
            agent_id, "ping", seconds=PING_TIMEOUT_S
        )
    except ToolFailure as failure:
        raise _no_pong(agent_id, failure.message) from None
    if outcome.error:
        raise _no_pong(agent_id, outcome.error)
    return Pong(agent_id, round(time.monotonic() - started_at, 4))


@post("/v1/fleet/{agent_id:str}/approve", scope=TokenScope.FLEET_WRITE, tags=TAGS, status_code=200)
async def approve_tools(
    parts: InjectedDependencies, caller: InjectedCaller, agent_id: EdgeId, seen: SeenSurface = ""
) -> EdgeView:
    """Approve the waiting tools of an edge. Only a person may."""
    if not caller.may(TokenScope.HUMAN):
        raise ApiError(
            403, "forbidden", "Only a person may approve tools: the token needs the scope 'human'."
        )
    devices = _devices_with(parts, caller, agent_id)
    device = devices.get(agent_id)
    if seen and device is not None and seen != device.surface:
        raise ApiError(
            409,
            "changed",
            "The edge's tools have changed since you read them. Read them again, then approve.",
        )
    await devices.approve(agent_id, time.time(), seen=seen)
    return _edge(parts, caller, agent_id)


@post("/v1/fleet/{agent_id:str}/revoke", scope=TokenScope.FLEET_WRITE, tags=TAGS, status_code=200)
async def revoke_edge(
    parts: InjectedDependencies, caller: InjectedCaller, agent_id: EdgeId
) -> EdgeView:
    """Revoke the access of an edge."""
    devices = _devices_with(parts, caller, agent_id)
    await require(parts.pairing, "device pairing").revoke(agent_id, devices)
    return _edge(parts, caller, agent_id)


@post("/v1/fleet/invitations", scope=TokenScope.FLEET_WRITE, tags=TAGS)
async def invite_edge(
    parts: InjectedDependencies, caller: InjectedCaller, data: JSONBody[InviteEdgeRequest]
) -> EdgeInvitation:
    """Invite a new edge: returns the command to run on it."""
    if caller.tenant != parts.operator_tenant:
        raise ApiError(403, "forbidden", "Only the operator's tenant may invite edges.")
    pairing = require(parts.pairing, "device pairing")
    try:
        devices = require(parts.devices, "device pairing")
        invited = await pairing.invite(data.agent_id, data.minutes * 60, devices)
        link = join_link(invited.url, invited.token, data.agent_id, invited.ca_sha256)
        return EdgeInvitation(
            invited.url,
            invited.token,
            link,
            join_command(link),
            await asyncio.to_thread(qr_rows, link),
            invited.ca_sha256,
            invited.warning,
        )
    except ConfigError as problem:
        raise ApiError(409, "cannot_invite", str(problem)) from None


ROUTES: tuple[HTTPRouteHandler, ...] = (
    list_edges,
    show_edge,
    ping_edge,
    approve_tools,
    revoke_edge,
    invite_edge,
)


class EdgeToolList(Struct, frozen=True):
    """The tools of an edge, in the order of its advert."""

    items: tuple[ToolView, ...]
    """The tools."""


@get("/v1/fleet/{agent_id:str}/tools", scope=TokenScope.FLEET_READ, tags=["fleet"])
async def list_edge_tools(
    parts: InjectedDependencies, caller: InjectedCaller, agent_id: EdgeId
) -> EdgeToolList:
    """List the approved tools of an edge; their descriptions come from the edge itself."""
    fleet = require(parts.orchestrator, "edges").fleet
    _edge(parts, caller, agent_id)
    member = fleet.find(agent_id)
    return EdgeToolList(tuple(tool_view(tool) for tool in (member.tools if member else ())))


EDGE_TOOL_ROUTES: tuple[HTTPRouteHandler, ...] = (list_edge_tools,)
