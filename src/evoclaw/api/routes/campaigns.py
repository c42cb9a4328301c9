"""Routes of campaigns: what the evolution of an agent does next, and a request for a round."""

from __future__ import annotations

from litestar import get, post
from litestar.handlers import HTTPRouteHandler

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.errors import require
from evoclaw.api.routes.genomes import TAGS, check_agent, check_editor, lineage_for, user_of
from evoclaw.api.routes.parameters import AgentName
from evoclaw.evolution.campaign_status import CampaignStatus
from evoclaw.orchestrator.people.access import TokenScope


@get("/v1/agents/{name:str}/campaign", scope=TokenScope.EVOLUTION_READ, tags=TAGS)
async def show_campaign(
    parts: InjectedDependencies, caller: InjectedCaller, name: AgentName
) -> CampaignStatus:
    """Show what the evolution of an agent does next, or why nothing, and what today has cost."""
    lineage_for(parts, caller)
    check_agent(parts, name)
    return await require(parts.campaigns, "evolution").status(name)


@post(
    "/v1/agents/{name:str}/campaign",
    scope=TokenScope.EVOLUTION_WRITE,
    tags=TAGS,
    status_code=202,
)
async def request_round(
    parts: InjectedDependencies, caller: InjectedCaller, name: AgentName
) -> CampaignStatus:
    """Ask the proposers of an agent for another round, although they were asked today.

    The request is stored; the orchestrator that drives the campaign follows it. Only a person may:
    the token also needs the scope `human`.
    """
    check_editor(parts, caller)
    check_agent(parts, name)
    campaigns = require(parts.campaigns, "evolution")
    entry = await campaigns.request_round(name, by=user_of(caller))
    if parts.lineage_audit is not None:
        await parts.lineage_audit.record(entry, caller.principal)
    return await campaigns.status(name)


ROUTES: tuple[HTTPRouteHandler, ...] = (show_campaign, request_round)
