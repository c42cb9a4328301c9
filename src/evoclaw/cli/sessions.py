"""`evoclaw sessions`: sessions with agents of the service."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

import click

from evoclaw.cli import conversing, exits
from evoclaw.cli.clean import clean, one_line
from evoclaw.cli.client import Client, open_client
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_out
from evoclaw.cli.tables import said, show_rows, when
from evoclaw.cli.terminal import has_keyboard
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON


@click.group(cls=CommandGroup, default="list")
def sessions() -> None:
    """List, show, rename, branch and delete sessions."""


_ID = click.argument("name", metavar="ID", help="Id or title, as `evoclaw sessions` lists it")


@sessions.command("list", help="List your sessions (the default)")
@click.option("--limit", type=int, default=50, metavar="N", help="List at most N sessions")
@json_option()
def _list(limit: int, *, as_json: bool) -> int:
    return _with_client(lambda client: _print_all(client, limit, as_json=as_json))


@sessions.command("show", help="Show a session and its messages")
@_ID
@json_option()
def _show(name: str, *, as_json: bool) -> int:
    return _with_client(lambda client: _print_one(client, name, as_json=as_json))


@sessions.command("rename", help="Change the title of a session")
@_ID
@click.argument("title", help="The new title")
def _rename(name: str, title: str) -> int:
    async def rename(client: Client) -> None:
        found = await _found(client, name)
        await conversing.rename(client, said(found, "id"), title)
        print_out(f"{said(found, 'id')}: {one_line(title)}")

    return _with_client(rename)


@sessions.command("branch", help="Start another session from a message of this one")
@click.option(
    "--at", type=int, metavar="N", show_default="the last one", help="Keep messages up to number N"
)
@_ID
@click.option("--title", default="", metavar="TEXT", show_default=False, help="Set the new title")
@json_option()
def _branch(name: str, at: int | None, title: str, *, as_json: bool) -> int:
    async def branch(client: Client) -> None:
        found = await _found(client, name)
        new_id = await conversing.branch(client, said(found, "id"), at, title)
        print_out({"id": new_id} if as_json else new_id)

    return _with_client(branch)


@sessions.command("delete", help="Delete a session and its runs permanently")
@click.option("--yes", is_flag=True, help="Skip the confirmation")
@_ID
def _delete(name: str, *, yes: bool) -> int:
    return _with_client(lambda client: _remove(client, name, yes=yes))


def _with_client(work: Callable[[Client], Awaitable[None]]) -> int:
    async def run() -> None:
        async with open_client(os.environ) as client:
            await work(client)

    asyncio.run(run())
    return exits.OK


async def _found(client: Client, name: str) -> dict[str, JSON]:
    found = await conversing.find(client, name)
    if found is None:
        raise ConfigError(f"there is no session {name!r}; see `evoclaw sessions`")
    return found


async def _print_all(client: Client, limit: int, *, as_json: bool) -> None:
    found = await conversing.sessions(client, limit)
    if as_json:
        print_out(found)
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
    show_rows(rows, "no sessions yet; start one with `evoclaw chat`")


async def _print_one(client: Client, name: str, *, as_json: bool) -> None:
    found = await _found(client, name)
    messages = await conversing.messages(client, said(found, "id"))
    if as_json:
        rows = [{"number": number, "message": message} for number, message in messages]
        print_out({**found, "said": rows})
        return
    print_out(f"{clean(said(found, 'id'))}: {one_line(said(found, 'title'))}")
    print_out(f"agent {clean(said(found, 'agent'))}, started {when(found.get('created_at'))}")
    for number, message in messages:
        print_out(conversing.line(number, message))


async def _remove(client: Client, name: str, *, yes: bool) -> None:
    found = await _found(client, name)
    if not yes:
        if not has_keyboard():
            raise ConfigError("this deletes the session permanently; repeat with --yes to confirm")
        sys.stderr.write(f"Delete {one_line(said(found, 'title'))!r} permanently? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ConfigError("not confirmed: the session was not deleted")
    await conversing.forget(client, said(found, "id"))
    print_out(f"{said(found, 'id')}: deleted")
