"""What people keep agents in check by: the audit, budgets and the emergency stop."""

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
Moment = Annotated[
    float, QueryParameter(ge=0, le=1e11, description="Unix time, in seconds; 0 does not matter.")
]
Kind = Literal["all", "agent", "tool", "network"]


class AuditPage(Struct, frozen=True):
    """Records of the audit, the oldest first."""

    items: tuple[dict[str, JSON], ...]


class FindingView(Struct, frozen=True):
    """One thing that is not as it was written."""

    kind: str
    place: str
    line: int
    text: str


class AuditReport(Struct, frozen=True):
    """Whether the audit is as it was written."""

    ok: bool
    findings: tuple[FindingView, ...]
    """What is not, in the order of the chain."""
    records: int
    first: int
    last: int
    checkpoints: int
    signed: int
    """The last record that a signed checkpoint speaks of."""
    dropped: tuple[str, ...] = ()
    """What a policy let go."""


class SpendingView(Struct, frozen=True):
    """What was spent of a kind, and what is left."""

    spent: float
    reserved: float
    limit: float | None
    per_seconds: float | None
    """The time in which the limit counts; null is for ever."""
    left: float | None


class AccountView(Struct, frozen=True):
    """What one account may spend and has spent; dollars and seconds are whole ones."""

    account: str
    closed: bool
    kinds: dict[str, SpendingView]


class AccountList(Struct, frozen=True):
    """The accounts of a tenant, its users and their agents."""

    items: tuple[AccountView, ...]


class _Stop(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    reason: Reason = ""
    """Told to the models and to people."""


class StopAll(_Stop, frozen=True, kw_only=True, tag="all"):
    """Stop everything, also what runs now."""


class StopNetwork(_Stop, frozen=True, kw_only=True, tag="network"):
    """Stop calls that can reach the network."""


class StopAgent(_Stop, frozen=True, kw_only=True, tag="agent"):
    """Stop one agent or edge, also what runs now."""

    name: Annotated[str, Meta(pattern=NAMED)]


class StopTool(_Stop, frozen=True, kw_only=True, tag="tool"):
    """Stop calls of one tool."""

    name: Annotated[str, Meta(pattern=NAMED)]


Stopping: TypeAlias = StopAll | StopNetwork | StopAgent | StopTool
"""What must not go on."""


class StopList(Struct, frozen=True):
    """What is stopped."""

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
    """The newest records of your tenant that fit: who did what, and what was said to it."""
    query: dict[str, JSON] = {
        "kind": kind, "user": user, "agent_id": agent, "run_id": run_id, "tool": tool,
        "verdict": verdict, "text": text, "since": since or None, "until": until or None,
        "limit": limit,
    }  # fmt: skip
    found = await given(parts.audit, "audit records").search(caller.tenant, query)
    return AuditPage(tuple(found))


@get("/v1/audit/verify", scope=Scope.AUDIT_READ, tags=["audit"])
async def verify_audit(parts: Need, caller: Who) -> AuditReport:
    """Check the whole of the audit: nothing edited, left out, moved or cut; for the operator."""
    check_operator(parts, caller)
    found = await given(parts.audit, "audit records").verify()
    return msgspec.convert(found, AuditReport)


def check_operator(parts: Parts, caller: Caller) -> None:
    """Refuse who is not of the tenant that has this machine."""
    if caller.tenant != parts.operator:
        raise Refused(403, "forbidden", "this is for the operator of this machine")


@get("/v1/budgets", scope=Scope.BUDGETS_READ, tags=["budgets"])
async def list_budgets(
    parts: Need,
    caller: Who,
    closed: Annotated[bool, QueryParameter(description="Also those that have ended.")] = False,
) -> AccountList:
    """What your tenant, its users and their agents may spend, have spent, and have left."""
    own, now = f"tenant:{quote(caller.tenant, safe='')}", time.time()
    accounts = await given(parts.ledger, "budgets").accounts(own)
    found = [_account(one, now) for one in accounts if closed or not one.closed]
    return AccountList(tuple(found))


@get("/v1/budgets/runs/{run_id:str}", scope=Scope.BUDGETS_READ, tags=["budgets"])
async def show_budget(parts: Need, caller: Who, run_id: Id) -> AccountView:
    """What one run may spend, has spent, and has left."""
    view = await own_run(parts, caller, run_id)
    for account in await given(parts.ledger, "budgets").accounts(f"run:{view.run_id}"):
        return _account(account, time.time())
    raise not_found("budget: the run has not spent anything yet")


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
    """What is stopped until a person releases it."""
    check_operator(parts, caller)
    return StopList(tuple(given(parts.stops, "stops").all()))


@post("/v1/stops", scope=Scope.ADMIN, tags=["stops"])
async def stop(parts: Need, caller: Who, data: JSONBody[Stopping]) -> StopList:
    """The emergency stop: nothing more of it, from now on, until a person releases it."""
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
        str, QueryParameter(max_length=128, pattern=PLAIN, description="Of the agent, or the tool.")
    ] = "",
) -> StopList:
    """Let go on what was stopped; only a person may, so the token needs `human` as well."""
    check_operator(parts, caller)
    if not caller.may(Scope.HUMAN):
        raise Refused(403, "forbidden", "only a person may release a stop: scope 'human'")
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
