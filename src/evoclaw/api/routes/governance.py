"""Routes of the audit log, budgets and the emergency stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias
from urllib.parse import quote

import msgspec
from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError, not_found, require
from evoclaw.api.routes.fleet import paired_devices
from evoclaw.api.routes.parameters import (
    ID_PATTERN,
    NO_NUL_PATTERN,
    Reason,
    RunId,
)
from evoclaw.api.routes.runs import own_run
from evoclaw.core.ledgers import UNITS_PER_KIND, Account
from evoclaw.core.messages import JSON
from evoclaw.governance.shared_stops import StopRegistry
from evoclaw.governance.stops import Stop, StopKind, UntrustedStopFile
from evoclaw.observe.audit.cold import AuditQuery
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.skills.names import unknown_name

AuditTime = Annotated[
    float, QueryParameter(ge=0, le=1e11, description="Unix seconds; 0: no limit.")
]
StopKindParam = Literal["all", "agent", "tool", "network"]


def _audit_filter(description: str) -> QueryParameter:
    return QueryParameter(max_length=200, pattern=NO_NUL_PATTERN, description=description)


class AuditPage(Struct, frozen=True):
    """Records of the audit log, the oldest first."""

    items: tuple[dict[str, JSON], ...]
    """The records."""


class FindingView(Struct, frozen=True):
    """One integrity problem of the audit log."""

    kind: str
    """What kind of problem it is."""
    place: str
    """The file or the tier that has it."""
    line: int
    """The line in the file; 0 if it is not about a line."""
    text: str
    """What is wrong, for people."""


class AuditReport(Struct, frozen=True):
    """The result of verifying the audit log."""

    ok: bool
    """Whether no problem was found."""
    findings: tuple[FindingView, ...]
    """The integrity problems, in the order of the chain."""
    records: int
    """How many records were checked."""
    first: int
    """The number of the first record that is still stored."""
    last: int
    """The number of the last record."""
    checkpoints: int
    """How many signed checkpoints were checked."""
    signed: int
    """The last record that a signed checkpoint covers."""
    dropped: tuple[str, ...] = ()
    """Ranges of records that were deleted because the spool was full."""


class DamageView(Struct, frozen=True):
    """Something that was found damaged, in the service or on an edge."""

    source: str
    """`audit`, or `edge NAME`."""
    text: str
    """What is damaged, and what to do; that of an edge is its own text."""


class DamageList(Struct, frozen=True):
    """Damage that was found."""

    items: tuple[DamageView, ...]
    """The damage, the newest first."""


class SpendingView(Struct, frozen=True):
    """Spending of one kind, and what is left."""

    spent: float
    """How much was spent."""
    reserved: float
    """How much is reserved for work in progress."""
    limit: float | None
    """The limit; null: none."""
    per_seconds: float | None
    """The period of the limit; null: no period."""
    left: float | None
    """How much is left; null: no limit."""


class AccountView(Struct, frozen=True):
    """The limits and spending of one account, in dollars, seconds or counts."""

    account: str
    """The name of the account, such as `tenant:acme/user:ann`."""
    closed: bool
    """Whether the account is closed: its run has ended."""
    kinds: dict[str, SpendingView]
    """Limits and spending by kind, such as `dollars` or `tokens`."""


class AccountList(Struct, frozen=True):
    """The accounts of a tenant, its users and their agents."""

    items: tuple[AccountView, ...]
    """The accounts, by name."""


class _StopRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    reason: Reason = ""
    """Shown to models and people."""


class StopAll(_StopRequest, frozen=True, kw_only=True, tag="all"):
    """Stop everything, including current runs."""


class StopNetwork(_StopRequest, frozen=True, kw_only=True, tag="network"):
    """Stop tool calls that can reach the network."""


class StopAgent(_StopRequest, frozen=True, kw_only=True, tag="agent"):
    """Stop one agent or edge, including its current runs."""

    name: Annotated[str, Meta(pattern=ID_PATTERN)]
    """The name of the agent, or the id of the edge."""
    force: bool = False
    """Stop a name that no agent and no edge has yet."""


class StopTool(_StopRequest, frozen=True, kw_only=True, tag="tool"):
    """Stop the calls of one tool."""

    name: Annotated[str, Meta(pattern=ID_PATTERN)]
    """The name of the tool."""


StopRequest: TypeAlias = StopAll | StopNetwork | StopAgent | StopTool
"""The body of an emergency stop."""


class StopView(Struct, frozen=True, omit_defaults=True):
    """An emergency stop, in force until a person releases it."""

    kind: str
    """`all`, `agent`, `tool` or `network`."""
    name: str = ""
    """The name of the agent or tool."""
    reason: str = ""
    """Why it was stopped."""
    by: str = ""
    """Who stopped it."""
    at: float = 0.0
    """When it was stopped, in Unix seconds."""


class StopList(Struct, frozen=True):
    """The stops in force."""

    items: tuple[StopView, ...]
    """The stops."""


@get("/v1/audit", scope=TokenScope.AUDIT_READ, tags=["audit"])
async def search_audit(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    kind: Annotated[str, _audit_filter("Only this kind, such as `call` or `approval`.")] = "",
    user: Annotated[str, _audit_filter("Only records of this user.")] = "",
    agent: Annotated[str, _audit_filter("Only records of this agent.")] = "",
    run_id: Annotated[str, _audit_filter("Only records of this run.")] = "",
    tool: Annotated[str, _audit_filter("Only records of this tool.")] = "",
    verdict: Annotated[str, _audit_filter("Only this verdict: `allow`, `deny` or `ask`.")] = "",
    text: Annotated[str, _audit_filter("Only records that contain this text.")] = "",
    since: AuditTime = 0,
    until: AuditTime = 0,
    limit: Annotated[
        int, QueryParameter(ge=1, le=1_000, description="The maximum number of records.")
    ] = 100,
) -> AuditPage:
    """Search the audit log: the newest matching records of your tenant."""
    query = AuditQuery(
        kind=kind, tenant=caller.tenant, user=user, agent_id=agent, run_id=run_id, tool=tool,
        verdict=verdict, text=text, since=since or None, until=until or None, limit=limit,
    )  # fmt: skip
    return AuditPage(tuple(await require(parts.audit, "audit records").search(query)))


@get("/v1/audit/verify", scope=TokenScope.AUDIT_READ, tags=["audit"])
async def verify_audit(parts: InjectedDependencies, caller: InjectedCaller) -> AuditReport:
    """Verify the hash chain of the audit log. Only for the operator's tenant."""
    check_operator(parts, caller)
    report = await require(parts.audit, "audit records").verify()
    return msgspec.convert(report, AuditReport, from_attributes=True)


@get("/v1/damage", scope=TokenScope.AUDIT_READ, tags=["audit"])
async def list_damage(parts: InjectedDependencies, caller: InjectedCaller) -> DamageList:
    """List damage of the audit log and of journals of edges. Only for the operator."""
    check_operator(parts, caller)
    found = () if parts.damage is None else parts.damage.items()
    return DamageList(tuple(DamageView(damage.source, damage.text) for damage in found))


def check_operator(parts: ApiDependencies, caller: Caller) -> None:
    """Refuse a caller of another tenant than the operator's."""
    if caller.tenant != parts.operator_tenant:
        raise ApiError(403, "forbidden", "Only the operator's tenant may use this.")


@get("/v1/budgets", scope=TokenScope.BUDGETS_READ, tags=["budgets"])
async def list_budgets(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    closed: Annotated[bool, QueryParameter(description="Include closed accounts.")] = False,
) -> AccountList:
    """List the budgets of your tenant, its users and their agents."""
    own, now = f"tenant:{quote(caller.tenant, safe='')}", time.time()
    accounts = await require(parts.ledger, "budgets").accounts(own)
    found = [_account_view(account, now) for account in accounts if closed or not account.closed]
    return AccountList(tuple(found))


@get("/v1/budgets/runs/{run_id:str}", scope=TokenScope.BUDGETS_READ, tags=["budgets"])
async def show_budget(
    parts: InjectedDependencies, caller: InjectedCaller, run_id: RunId
) -> AccountView:
    """Show the budget of one run."""
    view = await own_run(parts, caller, run_id)
    for account in await require(parts.ledger, "budgets").accounts(f"run:{view.run_id}"):
        return _account_view(account, time.time())
    raise ApiError(
        404, "not_found", "The run has no budget account: it has not spent anything yet."
    )


def _account_view(account: Account, now: float) -> AccountView:
    kinds = sorted({*account.limits, *account.spent, *account.held})
    return AccountView(
        account.name, account.closed, {kind: _spending_view(account, kind, now) for kind in kinds}
    )


def _spending_view(account: Account, kind: str, now: float) -> SpendingView:
    parts, limit, left = (
        UNITS_PER_KIND.get(kind, 1),
        account.limits.get(kind),
        account.remaining(kind, now),
    )
    return SpendingView(
        account.spent.get(kind, 0) / parts,
        account.held.get(kind, 0) / parts,
        None if limit is None else limit.most / parts,
        None if limit is None or not limit.per else limit.per,
        None if left is None else left / parts,
    )


@get("/v1/stops", scope=TokenScope.ADMIN, tags=["stops"])
async def list_stops(parts: InjectedDependencies, caller: InjectedCaller) -> StopList:
    """List the stops in force."""
    check_operator(parts, caller)
    return _stop_list(require(parts.stops, "stops"))


@post("/v1/stops", scope=TokenScope.ADMIN, tags=["stops"])
async def create_stop(
    parts: InjectedDependencies, caller: InjectedCaller, data: JSONBody[StopRequest]
) -> StopList:
    """Add an emergency stop; it is in force until a person releases it."""
    check_operator(parts, caller)
    stops = require(parts.stops, "stops")
    kind, by = StopKind(str(data.__struct_config__.tag)), caller.principal.user or caller.token
    name = data.name if isinstance(data, StopAgent | StopTool) else ""
    if isinstance(data, StopAgent) and not data.force:
        _check_agent(parts, name)
    await stops.put(Stop(kind, name, data.reason, by, time.time()))
    return _stop_list(stops)


def _check_agent(parts: ApiDependencies, name: str) -> None:
    """Refuse a name that no agent and no edge has: a typo must not look like a stop."""
    known = set(paired_devices(parts))
    if parts.conversations is not None:
        known |= set(parts.conversations.agents)
    if parts.orchestrator is not None:
        known |= {member.agent_id for member in parts.orchestrator.fleet.members()}
    if name not in known:
        text = f"{unknown_name('agent or edge', name, known)}\nNothing was stopped."
        raise ApiError(404, "unknown_agent", text)


@delete("/v1/stops/{kind:str}", scope=TokenScope.ADMIN, tags=["stops"], status_code=200)
async def release_stop(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    kind: Annotated[StopKindParam, PathParameter(description="What is stopped.")],
    name: Annotated[
        str,
        QueryParameter(
            max_length=128,
            pattern=NO_NUL_PATTERN,
            description="The name of the agent or tool; empty for `all` and `network`.",
        ),
    ] = "",
) -> StopList:
    """Release a stop. Only a person may: the token also needs the scope `human`."""
    check_operator(parts, caller)
    if not caller.may(TokenScope.HUMAN):
        raise ApiError(
            403, "forbidden", "Only a person may release a stop: the token needs the scope 'human'."
        )
    stops = require(parts.stops, "stops")
    if await stops.release(StopKind(kind), name) is None:
        raise not_found("stop")
    return _stop_list(stops)


def visible_stops(stops: StopRegistry, *, is_operator: bool) -> Sequence[Stop]:
    """The stops in force, as a tenant may see them; a file that cannot be read stops everything.

    Tenants other than the operator's see what concerns them too, without who stopped it, and why.
    """
    try:
        found = stops.stops()
    except UntrustedStopFile as problem:
        return (Stop(StopKind.ALL, reason=str(problem) if is_operator else ""),)
    if is_operator:
        return found
    wide = (StopKind.ALL, StopKind.NETWORK)
    return [Stop(stop.kind, at=stop.at) for stop in found if stop.kind in wide]


def stop_view(stop: Stop) -> StopView:
    """The view of a stop."""
    return StopView(str(stop.kind), stop.name, stop.reason, stop.by, stop.at)


def _stop_list(stops: StopRegistry) -> StopList:
    return StopList(tuple(stop_view(stop) for stop in visible_stops(stops, is_operator=True)))


ROUTES: tuple[HTTPRouteHandler, ...] = (
    search_audit,
    verify_audit,
    list_damage,
    list_budgets,
    show_budget,
    list_stops,
    create_stop,
    release_stop,
)
