"""`evoclaw token`: create, list and revoke API tokens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import click
import msgspec

from evoclaw.cli import exits, service_api
from evoclaw.cli.approvals import identify_answerer
from evoclaw.cli.client import ServiceClient, open_client
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.terminal_text import format_time, print_table, text_of
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.governance.budget.settings import parse_duration
from evoclaw.orchestrator.people.access import AccessControl


class TokenService(Protocol):
    """Manages the tokens of this machine, or of a remote service."""

    async def new(
        self, name: str, tenant: str, user: str, scopes: Sequence[str], seconds: float | None
    ) -> tuple[str, str]:
        """Create a token; returns its id and the secret."""
        ...

    async def list(self, tenant: str) -> list[dict[str, JSON]]:
        """All tokens of a tenant."""
        ...

    async def revoke(self, tenant: str, id_: str) -> bool:
        """Revoke a token; False if there is none."""
        ...


@click.group(cls=CommandGroup, default="list")
def token() -> None:
    """Manage API tokens."""


_TENANT = click.option("--tenant", default="local", metavar="TENANT", help="Use this tenant")


@token.command("new", help="Create a token; it is shown once")
@click.option(
    "--scope",
    multiple=True,
    required=True,
    metavar="SCOPE",
    help="Grant a scope, such as runs:write, `human` (may approve) or `*` (all); repeatable",
)
@click.option(
    "--name", default="", metavar="NAME", show_default=False, help="Describe what it is for"
)
@click.option("--user", default="", metavar="USER", show_default=False, help="Act for this user")
@click.option(
    "--expires", metavar="TIME", show_default="never", help="Expire after a time such as 12h or 30d"
)
@_TENANT
@json_option()
def _new(
    scope: tuple[str, ...],
    name: str,
    user: str,
    expires: str | None,
    tenant: str,
    *,
    as_json: bool,
) -> int:
    _check_person()
    seconds = parse_duration(expires, "--expires") if expires else None

    async def new(tokens: TokenService) -> None:
        id_, secret = await tokens.new(name, tenant, user, list(scope), seconds)
        if as_json:
            print_out({"id": id_, "token": secret})
            return
        hint = "store it now, it is not shown again; revoke it with `evoclaw token revoke`"
        print_err(f"token {id_}: {hint}")
        print_out(secret)

    return _with_tokens(new)


@token.command("list", help="List tokens (the default)")
@_TENANT
@json_option()
def _list(tenant: str, *, as_json: bool) -> int:
    return _with_tokens(lambda tokens: _print_all(tokens, tenant, as_json=as_json))


@token.command("revoke", help="Revoke a token immediately")
@click.argument("id_", metavar="ID", help="Id, as `evoclaw token list` lists it")
@_TENANT
def _revoke(id_: str, tenant: str) -> int:
    _check_person()

    async def revoke(tokens: TokenService) -> None:
        if not await tokens.revoke(tenant, id_):
            raise ConfigError(f"there is no token {id_!r}; see `evoclaw token list`")
        print_out(f"{id_}: revoked")

    return _with_tokens(revoke)


def _check_person() -> None:
    if identify_answerer().kind != "person":
        raise ConfigError("only a person may create or revoke tokens, not a command of an agent")


def _with_tokens(work: Callable[[TokenService], Awaitable[None]]) -> int:
    """Call `work` with the tokens of this machine, or of the service at `EVOCLAW_URL`."""
    asyncio.run(
        _with_remote_tokens(work) if os.environ.get("EVOCLAW_URL") else _with_local_tokens(work)
    )
    return exits.OK


async def _with_local_tokens(work: Callable[[TokenService], Awaitable[None]]) -> None:
    from evoclaw.wiring.http import open_access

    async with open_access(os.environ) as access:
        await work(_LocalTokens(access))


async def _with_remote_tokens(work: Callable[[TokenService], Awaitable[None]]) -> None:
    async with open_client(os.environ) as client:
        await work(_RemoteTokens(client))


async def _print_all(tokens: TokenService, tenant: str, *, as_json: bool) -> None:
    found = await tokens.list(tenant)
    if as_json:
        print_out(found)
        return
    rows = (
        (
            text_of(row, "id"),
            text_of(row, "name") or text_of(row, "user"),
            " ".join(sorted(row.get("scopes", ()))),
            _token_status(row),
        )
        for row in found
    )
    print_table(rows, "no tokens yet; create one with `evoclaw token new --scope …`")


def _token_status(row: dict[str, JSON]) -> str:
    if row.get("revoked_at"):
        return f"revoked {format_time(row['revoked_at'])}"
    until = format_time(row.get("expires_at"))
    used = format_time(row.get("used_at")) or "never"
    return f"{f'until {until}, ' if until else ''}last used: {used}"


class _LocalTokens:
    """The tokens of this machine, also while the service is down."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access

    async def new(
        self, name: str, tenant: str, user: str, scopes: Sequence[str], seconds: float | None
    ) -> tuple[str, str]:
        return await self._access.create(name, tenant, user, list(scopes), seconds)

    async def list(self, tenant: str) -> list[dict[str, JSON]]:
        rows = msgspec.to_builtins(await self._access.list(tenant), order="deterministic")
        return [{name: row[name] for name in row if name != "hash"} for row in rows]

    async def revoke(self, tenant: str, id_: str) -> bool:
        return await self._access.revoke(tenant, id_)


class _RemoteTokens:
    """The tokens of a remote service, in the tenant of the caller's token."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def new(
        self, name: str, tenant: str, user: str, scopes: Sequence[str], seconds: float | None
    ) -> tuple[str, str]:
        body = {
            "name": name or user or "unnamed",
            "tenant": "" if tenant == "local" else tenant,
            "user": user,
            "scopes": list(scopes),
            "expires_in": seconds,
        }
        created = service_api.as_object(
            await self._client.post(service_api.api_path("tokens"), body)
        )
        return text_of(created, "id"), text_of(created, "token")

    async def list(self, tenant: str) -> list[dict[str, JSON]]:
        return service_api.as_items(await self._client.get(service_api.api_path("tokens")))

    async def revoke(self, tenant: str, id_: str) -> bool:
        await self._client.request("DELETE", service_api.api_path("tokens", id_))
        return True
