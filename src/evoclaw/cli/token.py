"""`evoclaw token`: what programs and people show to be let in; made, listed, taken back."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from evoclaw.cli import exits, routes
from evoclaw.cli.approvals import person_here
from evoclaw.cli.client import Client, open_client
from evoclaw.cli.fleet import show
from evoclaw.cli.render import tell
from evoclaw.cli.tables import said, show_rows, when
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.governance.budget.settings import seconds_of
from evoclaw.orchestrator.people.access import Access


class Needs(Protocol):
    """What this command needs of the composition root."""

    def open_access(self, env: Mapping[str, str]) -> AbstractAsyncContextManager[Access]:
        """The tokens of this machine, whether the service is up or not."""
        ...


class Book(Protocol):
    """Where tokens are kept."""

    async def new(self, options: Namespace, seconds: float | None) -> tuple[str, str]:
        """Make one: its id, and the whole of it."""
        ...

    async def list(self, options: Namespace) -> list[dict[str, JSON]]:
        """Those there are."""
        ...

    async def revoke(self, options: Namespace) -> bool:
        """Take one back; False if there is none."""
        ...


def token(options: Namespace, wiring: Needs) -> int:
    """Do one of the actions, here, or where `EVOCLAW_URL` says."""
    if options.action in ("new", "revoke") and person_here().kind != "person":
        raise ConfigError("only a person makes tokens or takes them back; an agent never does")
    return asyncio.run(_there(options) if os.environ.get("EVOCLAW_URL") else _here(options, wiring))


async def _here(options: Namespace, wiring: Needs) -> int:
    async with wiring.open_access(os.environ) as access:
        return await _do(options, _Kept(access))


async def _there(options: Namespace) -> int:
    async with open_client(os.environ) as client:
        return await _do(options, _Remote(client))


async def _do(options: Namespace, book: Book) -> int:
    match options.action:
        case "new":
            await _new(options, book)
        case "revoke":
            if not await book.revoke(options):
                raise ConfigError(f"there is no token {options.id!r}; see `evoclaw token list`")
            show(f"{options.id}: revoked")
        case _:
            await _list(options, book)
    return exits.OK


async def _new(options: Namespace, book: Book) -> None:
    seconds = seconds_of(options.expires, "--expires") if options.expires else None
    id_, secret = await book.new(options, seconds)
    if options.json:
        show({"id": id_, "token": secret})
        return
    tell(f"token {id_}: keep it, it is not shown again; take it back with `evoclaw token revoke`")
    show(secret)


async def _list(options: Namespace, book: Book) -> None:
    found = await book.list(options)
    if options.json:
        show(found)
        return
    rows = (
        (
            said(row, "id"),
            said(row, "name") or said(row, "user"),
            " ".join(sorted(row.get("scopes", ()))),
            _standing(row),
        )
        for row in found
    )
    show_rows(rows, "no tokens yet; make one with `evoclaw token new --scope …`")


def _standing(row: dict[str, JSON]) -> str:
    if row.get("revoked_at"):
        return f"revoked {when(row['revoked_at'])}"
    until = when(row.get("expires_at"))
    used = when(row.get("used_at")) or "never"
    return f"{f'until {until}, ' if until else ''}last used: {used}"


class _Kept:
    """The tokens of this machine."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def new(self, options: Namespace, seconds: float | None) -> tuple[str, str]:
        return await self._access.new(
            options.name, options.tenant, options.user, options.scope, seconds
        )

    async def list(self, options: Namespace) -> list[dict[str, JSON]]:
        rows = msgspec.to_builtins(await self._access.list(options.tenant), order="deterministic")
        return [{name: row[name] for name in row if name != "hash"} for row in rows]

    async def revoke(self, options: Namespace) -> bool:
        return await self._access.revoke(options.tenant, options.id)


class _Remote:
    """The tokens of a service elsewhere, of the tenant whose token asks."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def new(self, options: Namespace, seconds: float | None) -> tuple[str, str]:
        body = {
            "name": options.name or options.user or "unnamed",
            "tenant": "" if options.tenant == "local" else options.tenant,
            "user": options.user,
            "scopes": options.scope,
            "expires_in": seconds,
        }
        made = routes.one(await self._client.post(routes.path("tokens"), body))
        return said(made, "id"), said(made, "token")

    async def list(self, options: Namespace) -> list[dict[str, JSON]]:
        return routes.many(await self._client.get(routes.path("tokens")))

    async def revoke(self, options: Namespace) -> bool:
        await self._client.ask("DELETE", routes.path("tokens", options.id))
        return True
