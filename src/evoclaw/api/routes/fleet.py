"""The fleet: edges that are there, that may be, and that are let in."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct

from evoclaw.api.auth import Need, Who
from evoclaw.api.errors import Refused, given, not_found
from evoclaw.api.needs import Device, Devices, Parts
from evoclaw.api.routes.shapes import Id
from evoclaw.core.errors import ConfigError
from evoclaw.edge.invitations import join_command, join_link, qr_rows
from evoclaw.orchestrator.fleet.fleet import Member
from evoclaw.orchestrator.people.access import Caller, Scope

TAGS = ["fleet"]
Seen = Annotated[
    str,
    QueryParameter(
        max_length=64,
        description="The edge's `surface` when you looked: what changed since is not approved. "
        "Empty approves whatever waits.",
    ),
]
PATIENCE = 5.0
"""Seconds that an edge has to answer a ping."""


class EdgeView(Struct, frozen=True, omit_defaults=True):
    """One edge, as far as it is known."""

    agent_id: str
    online: bool
    state: str
    """Whether it may be used: as its owner decided, or `unknown`."""
    type: str = ""
    summary: str = ""
    """What it says of itself. It is the edge's word, and no more."""
    problem: str = ""
    """Why its tools are not offered, if they are not."""
    has_model: bool = False
    tools: tuple[str, ...] = ()
    in_flight: int = 0
    queued: int = 0
    approved: tuple[str, ...] = ()
    """The tools that may be used."""
    waiting: tuple[str, ...] = ()
    """The tools that wait for a person's approval."""
    surface: str = ""
    """Names what waits, as it is now: said as `seen` when it is approved. Empty if nothing does."""
    last_seen: float = 0.0
    """When it last gave a sign of life, in Unix seconds; 0 is never."""
    cpu_percent: float = 0.0
    memory_mb: float = 0.0
    uptime_s: float = 0.0
    room: int | None = None
    """How many more commands it takes now; null if it does not say."""
    loads: tuple[int, ...] = ()
    """What it had to do at its last heartbeats (at work and waiting), the oldest first."""


class EdgeList(Struct, frozen=True):
    """The edges, by name."""

    items: tuple[EdgeView, ...]


class Pong(Struct, frozen=True):
    """An edge answered."""

    agent_id: str
    seconds: float


class Inviting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An edge to let in."""

    agent_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    minutes: Annotated[float, Meta(ge=1, le=10_080)] = 15
    """How long the invitation holds."""


class Invitation(Struct, frozen=True):
    """What the owner of a new edge needs: the command, or the link, or its picture."""

    url: str
    token: str
    """Works once."""
    link: str
    """Both of them, and the name."""
    command: str
    """What is typed on the new edge."""
    qr: tuple[str, ...]
    """The link as a QR code: rows of `0` (light) and `1` (dark), with the light border."""


def edge_view(name: str, member: Member | None, device: Device | None) -> EdgeView:
    """An edge as it is shown."""
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
    )


def joined(parts: Parts) -> dict[str, Device]:
    """The edges that joined, by name."""
    found = () if parts.devices is None else parts.devices.all()
    return {device.agent_id: device for device in found}


def _edges(parts: Parts, caller: Caller) -> dict[str, EdgeView]:
    """Those that a caller may see: the fleet is the operator's."""
    orchestrator = given(parts.orchestrator, "edges")
    if caller.tenant != parts.operator:
        return {}
    members = {member.agent_id: member for member in orchestrator.fleet.members()}
    devices = joined(parts)
    names = sorted({*members, *devices})
    return {name: edge_view(name, members.get(name), devices.get(name)) for name in names}


def _edge(parts: Parts, caller: Caller, agent_id: str) -> EdgeView:
    orchestrator = given(parts.orchestrator, "edges")
    member = orchestrator.fleet.find(agent_id)
    device = None if parts.devices is None else parts.devices.get(agent_id)
    if caller.tenant != parts.operator or (member is None and device is None):
        raise not_found("edge")
    return edge_view(agent_id, member, device)


def _devices(parts: Parts, caller: Caller, agent_id: str) -> Devices:
    """Where to change something about an edge that joined."""
    _edge(parts, caller, agent_id)
    devices = given(parts.devices, "edges that join")
    if devices.get(agent_id) is None:
        raise Refused(409, "not_joined", "it never joined: invite it first")
    return devices


@get("/v1/fleet", scope=Scope.FLEET_READ, tags=TAGS)
async def list_edges(parts: Need, caller: Who) -> EdgeList:
    """Who is there, who may be, and what they say they can do."""
    return EdgeList(tuple(_edges(parts, caller).values()))


@get("/v1/fleet/{agent_id:str}", scope=Scope.FLEET_READ, tags=TAGS)
async def show_edge(parts: Need, caller: Who, agent_id: Id) -> EdgeView:
    """One edge."""
    return _edge(parts, caller, agent_id)


@post("/v1/fleet/{agent_id:str}/ping", scope=Scope.FLEET_READ, tags=TAGS, status_code=200)
async def ping_edge(parts: Need, caller: Who, agent_id: Id) -> Pong:
    """Ask an edge whether it is there, and wait for its answer."""
    edge = _edge(parts, caller, agent_id)
    if not edge.online:
        raise Refused(409, "offline", "the edge is not online")
    began = time.monotonic()
    outcome = await given(parts.orchestrator, "edges").say(agent_id, "ping", seconds=PATIENCE)
    if outcome.error:
        raise Refused(409, "no_answer", f"the edge did not answer: {outcome.error}")
    return Pong(agent_id, round(time.monotonic() - began, 4))


@post("/v1/fleet/{agent_id:str}/approve", scope=Scope.FLEET_WRITE, tags=TAGS, status_code=200)
async def approve_tools(parts: Need, caller: Who, agent_id: Id, seen: Seen = "") -> EdgeView:
    """Let the tools of an edge be used that wait for approval; only a person may."""
    if not caller.may(Scope.HUMAN):
        raise Refused(403, "forbidden", "only a person may approve tools: scope 'human'")
    devices = _devices(parts, caller, agent_id)
    device = devices.get(agent_id)
    if seen and device is not None and seen != device.surface:
        raise Refused(409, "changed", "the edge offers other tools than you saw; look again")
    await devices.approve(agent_id, seen)
    return _edge(parts, caller, agent_id)


@post("/v1/fleet/{agent_id:str}/revoke", scope=Scope.FLEET_WRITE, tags=TAGS, status_code=200)
async def revoke_edge(parts: Need, caller: Who, agent_id: Id) -> EdgeView:
    """Shut an edge out."""
    await _devices(parts, caller, agent_id).revoke(agent_id)
    return _edge(parts, caller, agent_id)


@post("/v1/fleet/invitations", scope=Scope.FLEET_WRITE, tags=TAGS)
async def invite_edge(parts: Need, caller: Who, data: JSONBody[Inviting]) -> Invitation:
    """Let a new edge in: gives what its owner types there."""
    if caller.tenant != parts.operator:
        raise Refused(403, "forbidden", "this is for the operator of this machine")
    devices = given(parts.devices, "edges that join")
    try:
        url, token = devices.invite(data.agent_id, data.minutes * 60)
        link = join_link(url, token, data.agent_id)
        rows = await asyncio.to_thread(qr_rows, link)
        return Invitation(url, token, link, join_command(link), rows)
    except ConfigError as problem:
        raise Refused(409, "cannot_invite", str(problem)) from None


ROUTES: tuple[HTTPRouteHandler, ...] = (
    list_edges,
    show_edge,
    ping_edge,
    approve_tools,
    revoke_edge,
    invite_edge,
)
