"""Routes of genomes: read, change, roll back and export those of agents and edges."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, TypeVar

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.edge_genomes import EdgeGenome
from evoclaw.api.errors import ApiError, not_found, require
from evoclaw.api.routes.governance import check_operator
from evoclaw.api.routes.parameters import ID_PATTERN, AgentName, Reason
from evoclaw.core.errors import ToolFailure
from evoclaw.core.genome import Genome
from evoclaw.core.messages import JSON, is_object
from evoclaw.core.suggestions import did_you_mean
from evoclaw.evolution.cases import CaseFile, Split
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_entries import LineageEntry, edge_lineage
from evoclaw.orchestrator.people.access import Caller, TokenScope

T = TypeVar("T")
TAGS = ["evolution"]
MAX_REASON_RUNS = 100
Version = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class GenomeView(Struct, frozen=True, kw_only=True):
    """A version of the genome of an agent or an edge."""

    agent: str
    """The name of the agent, or the id of the edge."""
    version: int
    """0: the configuration."""
    digest: str
    """Identifies the content; empty: it sets nothing."""
    restored: int | None
    """The version that a rollback restored; null: it is no rollback."""
    genome: dict[str, JSON]
    """What it sets; the rest is as configured."""
    warnings: tuple[str, ...] = ()
    """What of a change has no effect now, and why."""


class GenomeList(Struct, frozen=True):
    """The current genomes of the agents."""

    items: tuple[GenomeView, ...]
    """One for each agent."""


class GenomeHistory(Struct, frozen=True):
    """The lineage of a genome."""

    items: tuple[LineageEntry, ...]
    """Its entries, the oldest first; the configuration, version 0, has none."""


class SignedEntry(Struct, frozen=True):
    """A signed entry of a lineage."""

    type: str
    """`genome`."""
    body: str
    """The entry as canonical JSON: what is signed."""
    signature: str
    """The Ed25519 signature."""


class GenomeExport(Struct, frozen=True):
    """A lineage that `evoclaw/verify.py` can check."""

    entries: tuple[SignedEntry, ...]
    """The signed entries, the oldest first."""


class CaseView(Struct, frozen=True):
    """A case for evaluations."""

    name: str
    """Its name."""
    split: Split
    """Who may see it."""
    agent: str
    """The only agent that it is for; empty: every agent."""
    recorded: bool
    """Whether calls are answered from a record, and none is executed."""
    checks: int
    """How many checks decide."""
    path: str = ""
    """Its file, on the machine of the service."""


class GenomeChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of a genome."""

    genome: dict[str, JSON]
    """A merge patch: objects are merged, null goes back to the configuration."""
    reason: Reason = ""
    """Why, for people."""
    runs: Annotated[
        tuple[Annotated[str, Meta(pattern=ID_PATTERN)], ...], Meta(max_length=MAX_REASON_RUNS)
    ] = ()
    """The runs that are the reason."""
    expected: Version | None = None
    """The version that you saw; another one is refused. Null: any."""


class GenomeRollback(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rollback of a genome."""

    version: Version | None = None
    """The version to restore; null: the one before the current one."""
    reason: Reason = ""
    """Why, for people."""


@get("/v1/genomes", scope=TokenScope.EVOLUTION_READ, tags=TAGS)
async def list_genomes(parts: InjectedDependencies, caller: InjectedCaller) -> GenomeList:
    """List the current genome of each agent of this service."""
    lineage = lineage_for(parts, caller)
    names = require(parts.conversations, "agents").agents
    return GenomeList(tuple([_view(name, await lineage.version(name)) for name in names]))


@get("/v1/genomes/{name:str}", scope=TokenScope.EVOLUTION_READ, tags=TAGS)
async def show_genome(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: AgentName,
    version: Annotated[
        Version | None, QueryParameter(description="A version; left out: the current one.")
    ] = None,
) -> GenomeView:
    """Show the genome of an agent or an edge."""
    lineage = lineage_for(parts, caller)
    if _is_agent(parts, name):
        return _view(name, await lineage.version(name, version))
    return _view(name, await EdgeGenome(parts, name).version(version))


@get("/v1/genomes/{name:str}/history", scope=TokenScope.EVOLUTION_READ, tags=TAGS)
async def show_history(
    parts: InjectedDependencies, caller: InjectedCaller, name: AgentName
) -> GenomeHistory:
    """Show the lineage of a genome: its versions, evaluations and candidates."""
    lineage = lineage_for(parts, caller)
    return GenomeHistory(tuple(await lineage.history(await _lineage_name(parts, name))))


@get("/v1/genomes/{name:str}/export", scope=TokenScope.EVOLUTION_READ, tags=TAGS)
async def export_genome(
    parts: InjectedDependencies, caller: InjectedCaller, name: AgentName
) -> GenomeExport:
    """Export the signed lineage of a genome, to be verified offline."""
    lineage = lineage_for(parts, caller)
    exported = await lineage.export(await _lineage_name(parts, name))
    entries = msgspec.convert(exported, tuple[SignedEntry, ...])
    return GenomeExport(entries)


@post(
    "/v1/genomes/{name:str}/versions",
    scope=TokenScope.EVOLUTION_WRITE,
    tags=TAGS,
    status_code=200,
)
async def change_genome(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: AgentName,
    data: JSONBody[GenomeChange],
) -> GenomeView:
    """Make a new version of a genome; new sessions use it, existing ones keep theirs.

    Only a person may: the token also needs the scope `human`.
    """
    lineage = editable_lineage(parts, caller)
    if _is_agent(parts, name):
        change = lineage.change(
            name,
            data.genome,
            by=user_of(caller),
            reason=data.reason,
            runs=data.runs,
            expected=data.expected,
        )
        view = _view(name, await _refusable(change), _unknown_tools(parts, data.genome))
        await _audit(parts, caller, view)
    else:
        change = EdgeGenome(parts, name).change(
            data.genome,
            by=user_of(caller),
            reason=data.reason,
            runs=data.runs,
            expected=data.expected,
        )
        view = _view(name, await _refusable(change))
        _audit_edge(parts, caller, view, data.reason)
    return view


@post(
    "/v1/genomes/{name:str}/rollback",
    scope=TokenScope.EVOLUTION_WRITE,
    tags=TAGS,
    status_code=200,
)
async def roll_back_genome(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: AgentName,
    data: JSONBody[GenomeRollback],
) -> GenomeView:
    """Restore an earlier version of a genome, as a new version, in one transaction.

    Only a person may: the token also needs the scope `human`.
    """
    lineage = editable_lineage(parts, caller)
    if _is_agent(parts, name):
        back = lineage.roll_back(name, data.version, by=user_of(caller), reason=data.reason)
        view = _view(name, await _refusable(back))
        await _audit(parts, caller, view)
    else:
        edge = EdgeGenome(parts, name)
        back = edge.roll_back(data.version, by=user_of(caller), reason=data.reason)
        view = _view(name, await _refusable(back))
        _audit_edge(parts, caller, view, data.reason)
    return view


def case_view(case: CaseFile) -> CaseView:
    """What a caller sees of a case."""
    found = case.case
    return CaseView(
        name=case.name,
        split=found.split,
        agent=found.agent,
        recorded=found.is_recorded,
        checks=len(found.checks),
        path=str(case.path),
    )


def lineage_for(parts: ApiDependencies, caller: Caller) -> GenomeLineage:
    """The lineages, for the operator only."""
    check_operator(parts, caller)
    return require(parts.genomes, "genomes")


def check_editor(parts: ApiDependencies, caller: Caller) -> None:
    """Refuse programs, and every change that could not be audited."""
    check_operator(parts, caller)
    if not caller.may(TokenScope.HUMAN):
        raise ApiError(
            403,
            "forbidden",
            "Only a person may change a genome: the token needs the scope 'human'.",
        )
    check_audited(parts)


def editable_lineage(parts: ApiDependencies, caller: Caller) -> GenomeLineage:
    """The lineage; refuses programs, and every change that could not be audited."""
    check_editor(parts, caller)
    return require(parts.genomes, "genomes")


def check_audited(parts: ApiDependencies) -> None:
    """Refuse a change that could not be audited."""
    if parts.audit is not None and parts.audit.audit.failing:
        text = f"Nothing was changed, as the audit fails: {parts.audit.audit.failing}."
        raise ApiError(503, "audit", text)


def _is_agent(parts: ApiDependencies, name: str) -> bool:
    return name in require(parts.conversations, "agents").agents


def check_agent(parts: ApiDependencies, name: str) -> None:
    """Refuse a name that is not that of an agent."""
    if not _is_agent(parts, name):
        raise not_found("agent")


async def _lineage_name(parts: ApiDependencies, name: str) -> str:
    """The name of the lineage of an agent or an edge, also of an edge that is gone."""
    if _is_agent(parts, name):
        return name
    found = edge_lineage(name)
    is_known = parts.orchestrator is not None and parts.orchestrator.fleet.find(name) is not None
    if not is_known and not await require(parts.genomes, "genomes").history(found):
        raise not_found("agent or edge")
    return found


def user_of(caller: Caller) -> str:
    """Who changes a genome, for its lineage."""
    return caller.principal.user or caller.token


def _view(name: str, genome: Genome, warnings: tuple[str, ...] = ()) -> GenomeView:
    return GenomeView(
        agent=name,
        version=genome.version,
        digest=genome.digest,
        restored=genome.restored,
        genome=genome.content(),
        warnings=warnings,
    )


def _unknown_tools(parts: ApiDependencies, patch: dict[str, JSON]) -> tuple[str, ...]:
    """Warnings for texts of tools that no machine has now; those of servers come and go."""
    texts = patch.get("tools")
    if parts.tools is None or not is_object(texts):
        return ()
    known = {tool.name for tool in parts.tools()}
    known.update(found.tool.name for found in parts.unavailable_tools())
    for member in () if parts.orchestrator is None else parts.orchestrator.fleet.members():
        known.update(member.advertised_hashes)
    return tuple(
        f"no tool has the name {name!r} now, so its texts have no effect until one has it"
        f"{did_you_mean(name, known)}"
        for name, text in texts.items()
        if text is not None and name not in known
    )


async def _audit(parts: ApiDependencies, caller: Caller, view: GenomeView) -> None:
    if parts.lineage_audit is not None:
        await parts.lineage_audit.record_version(view.agent, view.version, caller.principal)


def _audit_edge(parts: ApiDependencies, caller: Caller, view: GenomeView, reason: str) -> None:
    if parts.audit is not None:
        parts.audit.record_genome(caller.principal, view.agent, view.version, view.digest, reason)


async def _refusable(change: Awaitable[T]) -> T:
    """Await a change; one that is not allowed is a 422."""
    try:
        return await change
    except ToolFailure as refused:
        raise ApiError(422, "invalid", refused.message) from None


ROUTES: tuple[HTTPRouteHandler, ...] = (
    list_genomes,
    show_genome,
    show_history,
    export_genome,
    change_genome,
    roll_back_genome,
)
