"""`evoclaw agents`: the edges of the fleet, and which may join it."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import click

from evoclaw.cli import exits
from evoclaw.cli.options import FILE, POSITIVE, CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.terminal_text import clean
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.edge.joining import join_command, join_link, qr_lines, qr_rows
from evoclaw.orchestrator.fleet.fleet import Member
from evoclaw.trust.pairing import Device

SETTLE_TIMEOUT_S = 3.0
"""Seconds at most in which every edge that is online answers."""


@click.group(cls=CommandGroup, default="list")
def agents() -> None:
    """List, invite, approve and revoke edges."""


@agents.command("list", help="List known edges and whether they are online (the default)")
@json_option()
def _list(*, as_json: bool) -> int:
    asyncio.run(_print_edges(as_json=as_json))
    return exits.OK


@agents.command("show", help="Show an edge and its tools, approved and waiting")
@click.argument("agent", help="Id of the edge")
@json_option()
def _show(agent: str, *, as_json: bool) -> int:
    asyncio.run(_print_edge(agent, as_json=as_json))
    return exits.OK


@agents.command("invite", help="Create a one-time token with which a new edge can join")
@click.argument("agent", help="Id of the edge")
@click.option("--minutes", type=POSITIVE, default=15, metavar="N", help="Expire after N minutes")
@click.option("--qr", is_flag=True, help="Print the link as a QR code too")
def _invite(agent: str, *, minutes: int, qr: bool) -> int:
    from evoclaw.wiring.pairing import edge_pairing

    invited = edge_pairing(os.environ).invite(agent, minutes * 60.0)
    print_out(f"evoclaw edge join {invited.url} --token {invited.token}")
    link = join_link(invited.url, invited.token, agent)
    print_err(f"or, with a link: {join_command(link)}")
    for line in qr_lines(qr_rows(link)) if qr else ():
        # Its own colours: a picture whose light and dark are changed is read by few cameras.
        print_err(f"\x1b[97;40m{line}\x1b[0m" if sys.stderr.isatty() else line)
    return exits.OK


@agents.command("approve", help="Approve the new or changed tools of an edge")
@click.argument("agent", help="Id of the edge")
def _approve(agent: str) -> int:
    asyncio.run(_approve_tools(agent))
    return exits.OK


@agents.command("revoke", help="Remove an edge from the fleet")
@click.argument("agent", help="Id of the edge")
def _revoke(agent: str) -> int:
    asyncio.run(_remove(agent))
    return exits.OK


@agents.command("key", help="Print the public key by which edges know this orchestrator")
@click.option("--file", type=FILE, metavar="FILE", help="Read this secret key file instead")
def _key(file: os.PathLike[str] | None) -> int:
    from evoclaw.wiring.pairing import public_key

    print_out(public_key(os.environ, None if file is None else os.fspath(file)))
    return exits.OK


async def _approve_tools(agent_id: str) -> None:
    from evoclaw.wiring.store import open_devices

    async with open_devices(os.environ) as devices:
        device = await devices.approve(agent_id, time.time())
    print_out(f"{device.agent_id}: {len(device.approved)} tools approved")


async def _remove(agent_id: str) -> None:
    from evoclaw.wiring.pairing import edge_pairing
    from evoclaw.wiring.store import open_devices

    async with open_devices(os.environ) as devices:
        await edge_pairing(os.environ).revoke(agent_id, devices)
    print_out(f"{agent_id}: revoked")


async def _print_edge(agent: str, *, as_json: bool) -> None:
    from evoclaw.wiring.store import open_devices

    async with open_devices(os.environ) as known:
        device = known.get(agent)
    if device is None:
        raise ConfigError(f"no edge {agent!r} has joined; see `evoclaw agents list`")
    if as_json:
        print_out(
            {
                "agent": device.agent_id,
                "state": str(device.state),
                "approved": sorted(device.approved),
                "waiting": sorted(device.waiting),
            }
        )
        return
    print_out(f"{device.agent_id}: {device.state}")
    print_out(f"approved: {clean(', '.join(sorted(device.approved))) or 'none'}")
    if device.waiting:
        print_out(f"waiting:  {clean(', '.join(sorted(device.waiting)))}")


async def _print_edges(*, as_json: bool) -> None:
    from evoclaw.wiring.fleet import open_fleet
    from evoclaw.wiring.store import open_devices

    async with open_devices(os.environ) as known:
        devices = {device.agent_id: device for device in known.all()}
    async with open_fleet(os.environ) as orchestrator:
        await orchestrator.wait_until_settled(SETTLE_TIMEOUT_S)
        members = {member.agent_id: member for member in orchestrator.fleet.members()}
    names = sorted({*devices, *members})
    rows = [_row(name, members.get(name), devices.get(name)) for name in names]
    if as_json:
        print_out(rows)
        return
    for row in rows:
        state = "online" if row["online"] else "offline"
        print_out(f"{row['agent']:20} {state:8} {row['state']:9} {clean(row['summary'])}")
    if not rows:
        print_out("no edges yet; invite one with `evoclaw agents invite NAME`")


def _row(name: str, member: Member | None, device: Device | None) -> dict[str, JSON]:
    return {
        "agent": name,
        "online": member is not None and member.online,
        "state": "unknown" if device is None else str(device.state),
        "type": "" if member is None else member.agent_type,
        "summary": "" if member is None else member.problem or member.summary,
        "tools": [] if member is None else list(member.tools.names),
        "model": member is not None and member.has_model,
    }
