"""Routes of metrics from stored records: tool calls, runs, and delegations between agents."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter
from msgspec import Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.errors import ApiError, require
from evoclaw.api.routes.parameters import (
    AgentFilter,
)
from evoclaw.orchestrator.overview.metrics import Delegation, InvalidWindow, MetricsView
from evoclaw.orchestrator.people.access import Caller, TokenScope

Since = Annotated[
    float,
    QueryParameter(ge=0, le=1e11, description="Unix seconds; 0: one day before `until`."),
]
Until = Annotated[float, QueryParameter(ge=0, le=1e11, description="Unix seconds; 0: now.")]
Step = Annotated[
    float,
    QueryParameter(
        ge=0, le=1e9, description="Seconds between two points; 0: chosen for at most 60 points."
    ),
]


class DelegationList(Struct, frozen=True):
    """Which agents delegated to which agents and edges, by name."""

    items: tuple[Delegation, ...]
    """The delegations."""


def _owner(caller: Caller) -> str | None:
    """The user whose runs a caller may see; None: all users of the tenant."""
    return None if caller.may(TokenScope.ADMIN) else caller.principal.user


@get("/v1/figures", scope=TokenScope.RUNS_READ, tags=["figures"])
async def show_metrics(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    since: Since = 0,
    until: Until = 0,
    agent: AgentFilter = "",
    step: Step = 0,
) -> MetricsView:
    """Show metrics of tools and your runs; an admin sees those of the whole tenant."""
    try:
        return await require(parts.metrics_reader, "figures").read(
            caller.tenant, owner=_owner(caller), agent=agent, since=since, until=until, step=step
        )
    except InvalidWindow as problem:
        raise ApiError(422, "invalid", str(problem)) from None


@get("/v1/fleet/delegations", scope=TokenScope.FLEET_READ, tags=["fleet"])
async def list_delegations(
    parts: InjectedDependencies, caller: InjectedCaller, since: Since = 0, until: Until = 0
) -> DelegationList:
    """List delegations in your runs: which agents used which agents and edges; admin: all."""
    try:
        found = await require(parts.metrics_reader, "figures").delegations(
            caller.tenant, owner=_owner(caller), since=since, until=until
        )
    except InvalidWindow as problem:
        raise ApiError(422, "invalid", str(problem)) from None
    return DelegationList(found)


ROUTES: tuple[HTTPRouteHandler, ...] = (show_metrics, list_delegations)
