"""`evoclaw sessions`: sessions with agents of the service."""

from __future__ import annotations

import sys

import click

from evoclaw.cli import service_api
from evoclaw.cli.client import ServiceClient, with_client
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_out
from evoclaw.cli.terminal import is_interactive
from evoclaw.cli.terminal_text import clean, format_time, one_line, print_table, text_of
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
    return with_client(lambda client: _print_all(client, limit, as_json=as_json))


@sessions.command("show", help="Show a session and its messages")
@_ID
@json_option()
def _show(name: str, *, as_json: bool) -> int:
    return with_client(lambda client: _print_one(client, name, as_json=as_json))


@sessions.command("rename", help="Change the title of a session")
@_ID
@click.argument("title", help="The new title")
def _rename(name: str, title: str) -> int:
    async def rename(client: ServiceClient) -> None:
        found = await _find(client, name)
        await service_api.rename_session(client, text_of(found, "id"), title)
        print_out(f"{text_of(found, 'id')}: {one_line(title)}")

    return with_client(rename)


@sessions.command("branch", help="Start another session from a message of this one")
@click.option(
    "--at", type=int, metavar="N", show_default="the last one", help="Keep messages up to number N"
)
@_ID
@click.option("--title", default="", metavar="TEXT", show_default=False, help="Set the new title")
@json_option()
def _branch(name: str, at: int | None, title: str, *, as_json: bool) -> int:
    async def branch(client: ServiceClient) -> None:
        found = await _find(client, name)
        new_id = await service_api.branch_session(client, text_of(found, "id"), at, title)
        print_out({"id": new_id} if as_json else new_id)

    return with_client(branch)


@sessions.command("delete", help="Delete a session and its runs permanently")
@click.option("--yes", is_flag=True, help="Skip the confirmation")
@_ID
def _delete(name: str, *, yes: bool) -> int:
    return with_client(lambda client: _remove(client, name, yes=yes))


async def _find(client: ServiceClient, name: str) -> dict[str, JSON]:
    found = await service_api.find_session(client, name)
    if found is None:
        similar = await service_api.similar_session(client, name)
        raise ConfigError(f"there is no session {name!r}; see `evoclaw sessions`{similar}")
    return found


async def _print_all(client: ServiceClient, limit: int, *, as_json: bool) -> None:
    found = await service_api.list_sessions(client, limit)
    if as_json:
        print_out(found)
        return
    rows = (
        (
            text_of(session, "id"),
            "open" if session.get("is_open") else "",
            text_of(session, "agent"),
            format_time(session.get("created_at")),
            f"{text_of(session, 'messages') or 0} messages",
            text_of(session, "title"),
        )
        for session in found
    )
    print_table(rows, "no sessions yet; start one with `evoclaw chat`")


async def _print_one(client: ServiceClient, name: str, *, as_json: bool) -> None:
    found = await _find(client, name)
    messages = await service_api.list_messages(client, text_of(found, "id"))
    if as_json:
        rows = [{"number": number, "message": message} for number, message in messages]
        print_out({**found, "said": rows})
        return
    print_out(f"{clean(text_of(found, 'id'))}: {one_line(text_of(found, 'title'))}")
    print_out(
        f"agent {clean(text_of(found, 'agent'))}, started {format_time(found.get('created_at'))}"
    )
    for number, message in messages:
        print_out(service_api.message_line(number, message))


async def _remove(client: ServiceClient, name: str, *, yes: bool) -> None:
    found = await _find(client, name)
    if not yes:
        if not is_interactive():
            raise ConfigError("this deletes the session permanently; repeat with --yes to confirm")
        sys.stderr.write(f"Delete {one_line(text_of(found, 'title'))!r} permanently? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ConfigError("not confirmed: the session was not deleted")
    await service_api.delete_session(client, text_of(found, "id"))
    print_out(f"{text_of(found, 'id')}: deleted")
