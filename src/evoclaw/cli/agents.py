"""`evoclaw agents`: who is there, and who may be."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from argparse import Namespace

from evoclaw.cli import exits
from evoclaw.cli.clean import clean
from evoclaw.cli.fleet import show
from evoclaw.cli.needs import Wiring
from evoclaw.cli.render import tell
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.edge.invitations import join_command, join_link, qr_lines, qr_rows
from evoclaw.orchestrator.fleet.fleet import Member
from evoclaw.trust.pairing import Device

SETTLE = 3.0
"""Seconds at most in which everybody who is there says so."""


def agents(options: Namespace, wiring: Wiring) -> int:
    """Do one of the actions."""
    match options.action:
        case "show":
            asyncio.run(_show(options, wiring))
        case "invite":
            _invite(options, wiring)
        case "approve":
            asyncio.run(_approve(options.agent, wiring))
        case "revoke":
            asyncio.run(_revoke(options.agent, wiring))
        case "key":
            show(wiring.public_key(os.environ, options.file))
        case _:
            asyncio.run(_list(options, wiring))
    return exits.OK


async def _approve(agent_id: str, wiring: Wiring) -> None:
    async with wiring.open_devices(os.environ) as devices:
        device = await devices.approve(agent_id, time.time())
    show(f"{device.agent_id}: {len(device.approved)} tools approved")


async def _revoke(agent_id: str, wiring: Wiring) -> None:
    async with wiring.open_devices(os.environ) as devices:
        await wiring.revoke(agent_id, os.environ, devices)
    show(f"{agent_id}: shut out")


def _invite(options: Namespace, wiring: Wiring) -> None:
    """Say what to type on the new edge; beside it, the same as a link and as a picture."""
    invited = wiring.invite(options.agent, options.minutes * 60.0, os.environ)
    show(f"evoclaw edge join {invited.url} --token {invited.token}")
    link = join_link(invited.url, invited.token, options.agent)
    tell(f"or, with a link: {join_command(link)}")
    if options.qr:
        for line in qr_lines(qr_rows(link)):
            # Its own colours: a picture whose light and dark are changed is read by few cameras.
            tell(f"\x1b[97;40m{line}\x1b[0m" if sys.stderr.isatty() else line)


async def _show(options: Namespace, wiring: Wiring) -> None:
    async with wiring.open_devices(os.environ) as known:
        device = known.get(options.agent)
    if device is None:
        raise ConfigError(f"no edge {options.agent!r} has joined; see `evoclaw agents list`")
    if options.json:
        show(
            {
                "agent": device.agent_id,
                "state": str(device.state),
                "approved": sorted(device.approved),
                "waiting": sorted(device.waiting),
            }
        )
        return
    show(f"{device.agent_id}: {device.state}")
    show(f"approved: {clean(', '.join(sorted(device.approved))) or 'none'}")
    if device.waiting:
        show(f"waiting:  {clean(', '.join(sorted(device.waiting)))}")


async def _list(options: Namespace, wiring: Wiring) -> None:
    async with wiring.open_devices(os.environ) as known:
        devices = {device.agent_id: device for device in known.all()}
    async with wiring.open_fleet(os.environ) as orchestrator:
        await orchestrator.settle(SETTLE)
        members = {member.agent_id: member for member in orchestrator.fleet.members()}
    names = sorted({*devices, *members})
    rows = [_row(name, members.get(name), devices.get(name)) for name in names]
    if options.json:
        show(rows)
        return
    for row in rows:
        state = "online" if row["online"] else "offline"
        show(f"{row['agent']:20} {state:8} {row['state']:9} {clean(row['summary'])}")
    if not rows:
        show("no edge was ever here; `evoclaw agents invite NAME` lets one in")


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
