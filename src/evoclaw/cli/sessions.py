"""`evoclaw sessions`: conversations with agents of the service."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace

from evoclaw.cli import conversing, exits
from evoclaw.cli.clean import clean, one_line
from evoclaw.cli.client import Client, open_client
from evoclaw.cli.fleet import show
from evoclaw.cli.tables import said, show_rows, when
from evoclaw.cli.terminal import has_keyboard
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON


def sessions(options: Namespace, _wiring: object = None) -> int:
    """Do one of the actions."""
    return asyncio.run(_sessions(options))


async def _sessions(options: Namespace) -> int:
    async with open_client(os.environ) as client:
        match options.action:
            case "show":
                await _show(client, options)
            case "rename":
                found = await _found(client, options.id)
                await conversing.rename(client, said(found, "id"), options.title)
                show(f"{said(found, 'id')}: {one_line(options.title)}")
            case "branch":
                found = await _found(client, options.id)
                made = await conversing.branch(client, said(found, "id"), options.at, options.title)
                show({"id": made} if options.json else made)
            case "delete":
                await _delete(client, options)
            case _:
                await _list(client, options)
    return exits.OK


async def _found(client: Client, name: str) -> dict[str, JSON]:
    found = await conversing.find(client, name)
    if found is None:
        raise ConfigError(f"there is no session {name!r}; see `evoclaw sessions`")
    return found


async def _list(client: Client, options: Namespace) -> None:
    found = await conversing.sessions(client, options.limit)
    if options.json:
        show(found)
        return
    rows = (
        (
            said(session, "id"),
            "open" if session.get("is_open") else "",
            said(session, "agent"),
            when(session.get("created_at")),
            f"{said(session, 'messages') or 0} messages",
            said(session, "title"),
        )
        for session in found
    )
    show_rows(rows, "no conversations yet; begin one with `evoclaw chat`")


async def _show(client: Client, options: Namespace) -> None:
    found = await _found(client, options.id)
    every = await conversing.messages(client, said(found, "id"))
    if options.json:
        said_ = [{"number": number, "message": message} for number, message in every]
        show({**found, "said": said_})
        return
    show(f"{clean(said(found, 'id'))}: {one_line(said(found, 'title'))}")
    show(f"agent {clean(said(found, 'agent'))}, begun {when(found.get('created_at'))}")
    for number, message in every:
        show(conversing.line(number, message))


async def _delete(client: Client, options: Namespace) -> None:
    found = await _found(client, options.id)
    if not options.yes:
        if not has_keyboard():
            raise ConfigError("it would be gone for ever: say --yes")
        sys.stderr.write(f"Delete {one_line(said(found, 'title'))!r} for ever? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ConfigError("nothing was deleted")
    await conversing.forget(client, said(found, "id"))
    show(f"{said(found, 'id')}: deleted")
