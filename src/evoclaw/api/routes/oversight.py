"""Routes of the audit log, budgets and the emergency stop."""

from __future__ import annotations

import time
from typing import Annotated, Literal, TypeAlias
from urllib.parse import quote

import msgspec
from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta, Struct

from evoclaw.api.auth import Need, Who
from evoclaw.api.errors import Refused, given, not_found
from evoclaw.api.needs import Parts, StopView
from evoclaw.api.routes.runs import own_run
from evoclaw.api.routes.shapes import NAMED, PLAIN, Id, Reason
from evoclaw.core.ledgers import PARTS, Account
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.people.access import Caller, Scope

Said = Annotated[str, QueryParameter(max_length=200, pattern=PLAIN)]
Moment = Annotated[float, QueryParameter(ge=0, le=1e11, description="Unix seconds; 0: no limit.")]
Kind = Literal["all", "agent", "tool", "network"]


class AuditPage(Struct, frozen=True):
    """Records of the audit log, the oldest first."""

    items: tuple[dict[str, JSON], ...]


class FindingView(Struct, frozen=True):
    """One integrity problem of the audit log."""

    kind: str
    place: str
    line: int
    text: str


class AuditReport(Struct, frozen=True):
    """The result of verifying the audit log."""

    ok: bool
    findings: tuple[FindingView, ...]
    """The integrity problems, in the order of the chain."""
    records: int
    first: int
    last: int
    checkpoints: int
    signed: int
    """The last record that a signed checkpoint covers."""
    dropped: tuple[str, ...] = ()
    """Ranges of records that were deleted because the spool was full."""


class SpendingView(Struct, frozen=True):
    """Spending of one kind, and what is left."""

    spent: float
    reserved: float
    limit: float | None
    per_seconds: float | None
    """The period of the limit; null: no period."""
    left: float | None


class AccountView(Struct, frozen=True):
    """The limits and spending of one account, in dollars, seconds or counts."""

    account: str
    closed: bool
    kinds: dict[str, SpendingView]


class AccountList(Struct, frozen=True):
    """The accounts of a tenant, its users and their agents."""

    items: tuple[AccountView, ...]


class _Stop(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    reason: Reason = ""
    """Shown to models and people."""


class StopAll(_Stop, frozen=True, kw_only=True, tag="all"):
    """Stop everything, including current runs."""


class StopNetwork(_Stop, frozen=True, kw_only=True, tag="network"):
    """Stop tool calls that can reach the network."""


class StopAgent(_Stop, frozen=True, kw_only=True, tag="agent"):
    """Stop one agent or edge, including its current runs."""

    name: Annotated[str, Meta(pattern=NAMED)]


class StopTool(_Stop, frozen=True, kw_only=True, tag="tool"):
    """Stop the calls of one tool."""

    name: Annotated[str, Meta(pattern=NAMED)]


Stopping: TypeAlias = StopAll | StopNetwork | StopAgent | StopTool
"""The body of an emergency stop."""


class StopList(Struct, frozen=True):
    """The stops in force."""

    items: tuple[StopView, ...]


@get("/v1/audit", scope=Scope.AUDIT_READ, tags=["audit"])
async def search_audit(
    parts: Need,
    caller: Who,
    kind: Said = "",
    user: Said = "",
    agent: Said = "",
    run_id: Said = "",
    tool: Said = "",
    verdict: Said = "",
    text: Said = "",
    since: Moment = 0,
    until: Moment = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=1_000)] = 100,
) -> AuditPage:
    """Search the audit log: the newest matching records of your tenant."""
    query: dict[str, JSON] = {
        "kind": kind, "user": user, "agent_id": agent, "run_id": run_id, "tool": tool,
        "verdict": verdict, "text": text, "since": since or None, "until": until or None,
        "limit": limit,
    }  # fmt: skip
    found = await given(parts.audit, "audit records").search(caller.tenant, query)
    return AuditPage(tuple(found))


@get("/v1/audit/verify", scope=Scope.AUDIT_READ, tags=["audit"])
async def verify_audit(parts: Need, caller: Who) -> AuditReport:
    """Verify the hash chain of the audit log. Only for the operator's tenant."""
    check_operator(parts, caller)
    found = await given(parts.audit, "audit records").verify()
    return msgspec.convert(found, AuditReport)


def check_operator(parts: Parts, caller: Caller) -> None:
    """Refuse a caller of another tenant than the operator's."""
    if caller.tenant != parts.operator:
        raise Refused(403, "forbidden", "Only the operator's tenant may use this.")


@get("/v1/budgets", scope=Scope.BUDGETS_READ, tags=["budgets"])
async def list_budgets(
    parts: Need,
    caller: Who,
    closed: Annotated[bool, QueryParameter(description="Include closed accounts.")] = False,
) -> AccountList:
    """List the budgets of your tenant, its users and their agents."""
    own, now = f"tenant:{quote(caller.tenant, safe='')}", time.time()
    accounts = await given(parts.ledger, "budgets").accounts(own)
    found = [_account(account, now) for account in accounts if closed or not account.closed]
    return AccountList(tuple(found))


@get("/v1/budgets/runs/{run_id:str}", scope=Scope.BUDGETS_READ, tags=["budgets"])
async def show_budget(parts: Need, caller: Who, run_id: Id) -> AccountView:
    """Show the budget of one run."""
    view = await own_run(parts, caller, run_id)
    for account in await given(parts.ledger, "budgets").accounts(f"run:{view.run_id}"):
        return _account(account, time.time())
    raise Refused(404, "not_found", "The run has no budget account: it has not spent anything yet.")


def _account(account: Account, now: float) -> AccountView:
    kinds = sorted({*account.limits, *account.spent, *account.held})
    return AccountView(
        account.name, account.closed, {kind: _spending(account, kind, now) for kind in kinds}
    )


def _spending(account: Account, kind: str, now: float) -> SpendingView:
    parts, limit, left = PARTS.get(kind, 1), account.limits.get(kind), account.left(kind, now)
    return SpendingView(
        account.spent.get(kind, 0) / parts,
        account.held.get(kind, 0) / parts,
        None if limit is None else limit.most / parts,
        None if limit is None or not limit.per else limit.per,
        None if left is None else left / parts,
    )


@get("/v1/stops", scope=Scope.ADMIN, tags=["stops"])
async def list_stops(parts: Need, caller: Who) -> StopList:
    """List the stops in force."""
    check_operator(parts, caller)
    return StopList(tuple(given(parts.stops, "stops").all()))


@post("/v1/stops", scope=Scope.ADMIN, tags=["stops"])
async def stop(parts: Need, caller: Who, data: JSONBody[Stopping]) -> StopList:
    """Add an emergency stop; it is in force until a person releases it."""
    check_operator(parts, caller)
    stops = given(parts.stops, "stops")
    kind, by = str(data.__struct_config__.tag), caller.principal.user or caller.token
    name = data.name if isinstance(data, StopAgent | StopTool) else ""
    await stops.put(StopView(kind, name, data.reason, by, time.time()))
    return StopList(tuple(stops.all()))


@delete("/v1/stops/{kind:str}", scope=Scope.ADMIN, tags=["stops"], status_code=200)
async def release(
    parts: Need,
    caller: Who,
    kind: FromPath[Kind],
    name: Annotated[
        str,
        QueryParameter(max_length=128, pattern=PLAIN, description="The name of the agent or tool."),
    ] = "",
) -> StopList:
    """Release a stop. Only a person may: the token also needs the scope `human`."""
    check_operator(parts, caller)
    if not caller.may(Scope.HUMAN):
        raise Refused(
            403, "forbidden", "Only a person may release a stop: the token needs the scope 'human'."
        )
    stops = given(parts.stops, "stops")
    if await stops.release(kind, name) is None:
        raise not_found("stop")
    return StopList(tuple(stops.all()))


ROUTES: tuple[HTTPRouteHandler, ...] = (
    search_audit,
    verify_audit,
    list_budgets,
    show_budget,
    list_stops,
    stop,
    release,
)
