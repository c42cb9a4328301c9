"""Figures: how tools and requests went, and who had whom do something, from stored records."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter
from msgspec import Struct

from evoclaw.api.auth import Need, Who
from evoclaw.api.errors import Refused, given
from evoclaw.api.routes.shapes import IdOrNone
from evoclaw.orchestrator.overview.metrics import Delegation, InvalidWindow, MetricsView
from evoclaw.orchestrator.people.access import Caller, Scope

Since = Annotated[
    float,
    QueryParameter(ge=0, le=1e11, description="Unix time, in seconds; 0 is a day before `until`."),
]
Until = Annotated[
    float, QueryParameter(ge=0, le=1e11, description="Unix time, in seconds; 0 is now.")
]
Step = Annotated[
    float,
    QueryParameter(
        ge=0, le=1e9, description="Seconds between two points; 0 is as it fits, 60 points at most."
    ),
]


class DelegationList(Struct, frozen=True):
    """Who had whom do something, by name."""

    items: tuple[Delegation, ...]


def _owner(caller: Caller) -> str | None:
    """Whose runs a caller may see; None is everybody's of the tenant."""
    return None if caller.may(Scope.ADMIN) else caller.principal.user


@get("/v1/figures", scope=Scope.RUNS_READ, tags=["figures"])
async def show_figures(
    parts: Need,
    caller: Who,
    since: Since = 0,
    until: Until = 0,
    agent: IdOrNone = "",
    step: Step = 0,
) -> MetricsView:
    """How tools and your requests went; an admin's are those of the whole tenant."""
    try:
        return await given(parts.figures, "figures").read(
            caller.tenant, owner=_owner(caller), agent=agent, since=since, until=until, step=step
        )
    except InvalidWindow as problem:
        raise Refused(422, "invalid", str(problem)) from None


@get("/v1/fleet/delegations", scope=Scope.FLEET_READ, tags=["fleet"])
async def list_delegations(
    parts: Need, caller: Who, since: Since = 0, until: Until = 0
) -> DelegationList:
    """Which agents had which edges and agents work, in your runs; an admin sees the tenant's."""
    try:
        found = await given(parts.figures, "figures").delegations(
            caller.tenant, owner=_owner(caller), since=since, until=until
        )
    except InvalidWindow as problem:
        raise Refused(422, "invalid", str(problem)) from None
    return DelegationList(found)


ROUTES: tuple[HTTPRouteHandler, ...] = (show_figures, list_delegations)
