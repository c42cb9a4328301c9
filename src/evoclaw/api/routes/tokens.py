"""Routes of API tokens: an admin creates, lists and revokes them."""

from __future__ import annotations

from typing import Annotated

from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from msgspec import Meta, Struct

from evoclaw.api.auth import ANY_CALLER, InjectedCaller, InjectedDependencies
from evoclaw.api.errors import ApiError, not_found
from evoclaw.api.routes.parameters import (
    NO_NUL_PATTERN,
    ShortText,
    path_id,
)
from evoclaw.orchestrator.people.access import Caller, TokenScope

TAGS = ["tokens"]
AccountName = Annotated[str, Meta(max_length=128, pattern=NO_NUL_PATTERN)]


class TokenView(Struct, frozen=True):
    """An API token, without its secret."""

    id: str
    """The id of the token."""
    name: str
    """What it is for."""
    tenant: str
    """The tenant whose data it opens."""
    user: str
    """The user that it acts for."""
    scopes: tuple[str, ...]
    """What it permits."""
    made_at: float
    """When it was created, in Unix seconds."""
    expires_at: float | None
    """When it expires, in Unix seconds; null: never."""
    used_at: float | None
    """When it was last used, approximately."""
    revoked_at: float | None
    """When it was revoked, in Unix seconds; null: it is valid."""


class TokenList(Struct, frozen=True):
    """The tokens of a tenant, the newest first."""

    items: tuple[TokenView, ...]
    """The tokens."""


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to create."""

    name: Annotated[ShortText, Meta(min_length=1)]
    """A name for people: what the token is for."""
    scopes: Annotated[tuple[TokenScope, ...], Meta(min_length=1, max_length=50)]
    """The scopes of the token; you cannot grant a scope that you do not hold."""
    user: AccountName = ""
    """The user on whose behalf it acts."""
    tenant: AccountName = ""
    """The tenant whose data it opens; empty: yours. Only the operator may name another."""
    expires_in: Annotated[float, Meta(gt=0, le=315_360_000)] | None = None
    """Seconds until it expires; default: never."""


class CreatedToken(Struct, frozen=True):
    """A token that was created."""

    id: str
    """The id of the token, to revoke it."""
    token: str
    """The secret. It is not stored and never shown again."""


class Whoami(Struct, frozen=True):
    """The identity and scopes of the caller."""

    tenant: str
    """The tenant of the caller."""
    user: str
    """The user of the caller."""
    token: str
    """The id of the token; empty if a JWT was used."""
    scopes: tuple[str, ...]
    """What the token permits."""


@get("/v1/tokens", scope=TokenScope.ADMIN, tags=TAGS)
async def list_tokens(parts: InjectedDependencies, caller: InjectedCaller) -> TokenList:
    """List the tokens of your tenant, including revoked ones."""
    found = await parts.access.list(caller.tenant)
    return TokenList(
        tuple(
            TokenView(
                token.id, token.name, token.tenant, token.user, tuple(sorted(token.scopes)),
                token.made_at, token.expires_at, token.used_at, token.revoked_at,
            )
            for token in found
        )
    )  # fmt: skip


@post("/v1/tokens", scope=TokenScope.ADMIN, tags=TAGS)
async def create_token(
    parts: InjectedDependencies, caller: InjectedCaller, data: JSONBody[NewToken]
) -> CreatedToken:
    """Create a token. Its secret is shown only once."""
    tenant = data.tenant or caller.tenant
    if caller.tenant not in (tenant, parts.operator_tenant):
        raise ApiError(403, "forbidden", "Only the operator may create tokens for another tenant.")
    _check_scopes(caller, data.scopes)
    created = await parts.access.create(data.name, tenant, data.user, data.scopes, data.expires_in)
    return CreatedToken(*created)


def _check_scopes(caller: Caller, scopes: tuple[TokenScope, ...]) -> None:
    """Refuse scopes that the caller does not hold; this includes `human`."""
    lacking = [str(scope) for scope in scopes if not caller.may(scope)]
    if lacking:
        text = f"You cannot grant scopes that you do not hold: {', '.join(sorted(lacking))}."
        raise ApiError(403, "forbidden", text, details={"scopes": sorted(lacking)})


@delete("/v1/tokens/{token_id:str}", scope=TokenScope.ADMIN, tags=TAGS)
async def revoke_token(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    token_id: Annotated[str, path_id("The id of the token.")],
) -> None:
    """Revoke a token; it takes effect at once."""
    if not await parts.access.revoke(caller.tenant, token_id):
        raise not_found("token")


@get("/v1/me", scope=ANY_CALLER, tags=TAGS)
async def who_am_i(caller: InjectedCaller) -> Whoami:
    """Show the identity and scopes of your token."""
    principal = caller.principal
    return Whoami(principal.tenant, principal.user, caller.token, tuple(sorted(caller.scopes)))


ROUTES: tuple[HTTPRouteHandler, ...] = (list_tokens, create_token, revoke_token, who_am_i)
