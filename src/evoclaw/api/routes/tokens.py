"""Tokens: who may come in, made and taken back by an admin."""

from __future__ import annotations

from typing import Annotated

from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from msgspec import Meta, Struct

from evoclaw.api.auth import ANY_CALLER, Need, Who
from evoclaw.api.errors import Refused, not_found
from evoclaw.api.routes.shapes import PLAIN, Id, Line
from evoclaw.orchestrator.people.access import Caller, Scope

TAGS = ["tokens"]
Short = Annotated[str, Meta(max_length=128, pattern=PLAIN)]


class TokenView(Struct, frozen=True):
    """A token, without its secret."""

    id: str
    name: str
    tenant: str
    user: str
    scopes: tuple[str, ...]
    made_at: float
    expires_at: float | None
    used_at: float | None
    """About when it was last shown."""
    revoked_at: float | None


class TokenList(Struct, frozen=True):
    """The tokens of a tenant, the newest first."""

    items: tuple[TokenView, ...]


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to make."""

    name: Annotated[Line, Meta(min_length=1)]
    """For people: what it is for."""
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=50)]
    """What it may ask for; none that you do not hold yourself."""
    user: Short = ""
    """On whose behalf it asks."""
    tenant: Short = ""
    """Whose data it opens; yours if empty. Only the operator may say another."""
    expires_in: Annotated[float, Meta(gt=0, le=315_360_000)] | None = None
    """Seconds until it is worth nothing; never if left out."""


class MadeToken(Struct, frozen=True):
    """A token that was made."""

    id: str
    token: str
    """The whole of it. It is not kept and never shown again."""


class Whoami(Struct, frozen=True):
    """Whoever asks, as far as the token says."""

    tenant: str
    user: str
    token: str
    scopes: tuple[str, ...]


@get("/v1/tokens", scope=Scope.ADMIN, tags=TAGS)
async def list_tokens(parts: Need, caller: Who) -> TokenList:
    """The tokens of your tenant, also those that were taken back."""
    found = await parts.access.list(caller.tenant)
    return TokenList(
        tuple(
            TokenView(
                one.id, one.name, one.tenant, one.user, tuple(sorted(one.scopes)), one.made_at,
                one.expires_at, one.used_at, one.revoked_at,
            )
            for one in found
        )
    )  # fmt: skip


@post("/v1/tokens", scope=Scope.ADMIN, tags=TAGS)
async def make_token(parts: Need, caller: Who, data: JSONBody[NewToken]) -> MadeToken:
    """Make a token: it is shown once."""
    tenant = data.tenant or caller.tenant
    if caller.tenant not in (tenant, parts.operator):
        raise Refused(403, "forbidden", "only the operator makes tokens for another tenant")
    _check(caller, data.scopes)
    made = await parts.access.new(data.name, tenant, data.user, data.scopes, data.expires_in)
    return MadeToken(*made)


def _check(caller: Caller, scopes: tuple[Scope, ...]) -> None:
    """Nobody gives what they do not have; a person's scope least of all."""
    lacking = [str(scope) for scope in scopes if not caller.may(scope)]
    if lacking:
        text = f"you cannot give what you do not hold: {', '.join(sorted(lacking))}"
        raise Refused(403, "forbidden", text, details={"scopes": sorted(lacking)})


@delete("/v1/tokens/{token_id:str}", scope=Scope.ADMIN, tags=TAGS)
async def revoke_token(parts: Need, caller: Who, token_id: Id) -> None:
    """Take a token back: from now on it lets nobody in."""
    if not await parts.access.revoke(caller.tenant, token_id):
        raise not_found("token")


@get("/v1/me", scope=ANY_CALLER, tags=TAGS)
async def who_am_i(caller: Who) -> Whoami:
    """Who your token says you are, and what you may ask for."""
    who = caller.principal
    return Whoami(who.tenant, who.user, caller.token, tuple(sorted(caller.scopes)))


ROUTES: tuple[HTTPRouteHandler, ...] = (list_tokens, make_token, revoke_token, who_am_i)
