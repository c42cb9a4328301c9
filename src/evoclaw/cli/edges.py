"""`evoclaw edges`: the edges of the fleet, and which may join it."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import click
import msgspec

from evoclaw.cli import exits, service_api
from evoclaw.cli.client import ServiceNotRunning, ServiceRefused, open_client
from evoclaw.cli.options import FILE, POSITIVE, CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.ping import ask_edge
from evoclaw.cli.terminal_text import clean, print_table, text_of
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_object
from evoclaw.edge.joining import join_command, join_link, qr_lines, qr_rows
from evoclaw.orchestrator.fleet.fleet import Member
from evoclaw.orchestrator.fleet.pairing import JoinCredentials
from evoclaw.trust.pairing import Device

SETTLE_TIMEOUT_S = 3.0
"""Seconds at most in which every edge that is online answers."""


@click.group(cls=CommandGroup, default="list")
def edges() -> None:
    """List, invite, approve and revoke edges."""


@edges.command("list", help="List known edges and whether they are online (the default)")
@json_option()
def _list(*, as_json: bool) -> int:
    asyncio.run(_print_edges(as_json=as_json))
    return exits.OK


@edges.command("show", help="Show an edge and its tools, approved and waiting")
@click.argument("agent", help="Id of the edge")
@json_option()
def _show(agent: str, *, as_json: bool) -> int:
    asyncio.run(_print_edge(agent, as_json=as_json))
    return exits.OK


@edges.command("invite", help="Create a one-time token with which a new edge can join")
@click.argument("agent", help="Id of the edge")
@click.option("--minutes", type=POSITIVE, default=15, metavar="N", help="Expire after N minutes")
@click.option("--qr", is_flag=True, help="Print the link as a QR code too")
@json_option()
def _invite(agent: str, *, minutes: int, qr: bool, as_json: bool) -> int:
    invited = asyncio.run(_create_invitation(agent, minutes * 60.0))
    authority = f" --ca-fingerprint {invited.ca_sha256}" if invited.ca_sha256 else ""
    command = f"evoclaw edge join {invited.url} --token {invited.token}{authority}"
    link = join_link(invited.url, invited.token, agent, invited.ca_sha256)
    if invited.warning:
        print_err(f"warning: {invited.warning}")
    if as_json:
        print_out({"agent": agent, "command": command, "link": link})
        return exits.OK
    print_out(command)
    print_err(f"or, with a link: {join_command(link)}")
    for line in qr_lines(qr_rows(link)) if qr else ():
        # Its own colours: a picture whose light and dark are changed is read by few cameras.
        print_err(f"\x1b[97;40m{line}\x1b[0m" if sys.stderr.isatty() else line)
    return exits.OK


@edges.command("account", help="Create a broker account for a device that does not run EvoClaw")
@click.argument("agent", help="Id of the edge")
@json_option()
def _account(agent: str, *, as_json: bool) -> int:
    asyncio.run(_print_account(agent, as_json=as_json))
    return exits.OK


@edges.command("approve", help="Approve the new or changed tools of an edge")
@click.argument("agent", help="Id of the edge")
def _approve(agent: str) -> int:
    asyncio.run(_approve_tools(agent))
    return exits.OK


@edges.command("revoke", help="Remove an edge from the fleet")
@click.argument("agent", help="Id of the edge")
def _revoke(agent: str) -> int:
    asyncio.run(_remove(agent))
    return exits.OK


@edges.command("metrics", help="Show the load of an edge, and the metrics of its tools")
@click.argument("agent", help="Id of the edge")
@json_option()
def _metrics(agent: str, *, as_json: bool) -> int:
    metrics = asyncio.run(ask_edge(agent, "get_metrics"))
    if as_json:
        print_out(metrics)
    else:
        _print_metrics(agent, metrics)
    return exits.OK


@edges.command("shutdown", help="End the process of an edge")
@click.argument("agent", help="Id of the edge")
def _shutdown(agent: str) -> int:
    asyncio.run(ask_edge(agent, "shutdown"))
    print_out(f"{agent}: shuts down; start it again on its machine with `evoclaw edge`")
    return exits.OK


@edges.command("key", help="Print the public key by which edges know this orchestrator")
@click.option("--file", type=FILE, metavar="FILE", help="Read this secret key file instead")
@json_option()
def _key(file: os.PathLike[str] | None, *, as_json: bool) -> int:
    from evoclaw.wiring.pairing import public_key

    key = public_key(os.environ, None if file is None else os.fspath(file))
    print_out({"key": key} if as_json else key)
    return exits.OK


async def _create_invitation(agent_id: str, lifetime_s: float) -> JoinCredentials:
    from evoclaw.wiring.pairing import edge_pairing
    from evoclaw.wiring.store import open_devices

    async with open_devices(os.environ) as devices:
        return await edge_pairing(os.environ).invite(agent_id, lifetime_s, devices)


async def _print_account(agent_id: str, *, as_json: bool) -> None:
    from evoclaw.wiring.pairing import edge_pairing
    from evoclaw.wiring.store import open_devices

    async with open_devices(os.environ) as devices:
        made = await edge_pairing(os.environ).create_account(agent_id, devices)
    if as_json:
        print_out(msgspec.to_builtins(made))
        return
    print_out(f"url:      {made.url}")
    print_out(f"username: {made.username}")
    print_out(f"password: {made.password}")
    if made.ca_file:
        print_out(f"CA file:  {made.ca_file}")
    print_err("the password is shown only once; the messages are in docs/reference/wire.md")


def is_known_edge(agent_id: str) -> bool:
    """Whether an edge of this id was invited or has joined."""
    return asyncio.run(_find_edge(agent_id)) is not None


async def _find_edge(agent_id: str) -> Device | None:
    from evoclaw.wiring.store import open_devices

    async with open_devices(os.environ) as known:
        return known.get(agent_id)


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
    device = await _find_edge(agent)
    if device is None:
        raise ConfigError(f"unknown edge {agent!r}; see `evoclaw edges list`")
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


_METRICS_HEAD = ("tool", "calls", "ok", "failed", "timeouts", "avg ms", "p95 ms", "last error")
_METRICS_KEYS = (
    "total_calls", "success_count", "error_count", "timeout_count", "avg_latency_ms",
    "p95_latency_ms", "last_error",
)  # fmt: skip


def _print_metrics(agent: str, metrics: dict[str, JSON]) -> None:
    load = _part(metrics, "heartbeat")
    outcomes = _part(metrics, "tools")
    runs = _part(outcomes, "runs")
    print_out(
        f"{agent}: {text_of(load, 'in_flight')} calls run, {text_of(load, 'queued')} wait; "
        f"CPU {text_of(load, 'cpu_percent')} %, {text_of(load, 'memory_mb')} MB, "
        f"up {text_of(load, 'uptime_s')} s"
    )
    print_out(
        f"answers of its model: {text_of(runs, 'completed')} completed, "
        f"{text_of(runs, 'model_errors')} failed, {text_of(runs, 'limits')} ended by a limit"
    )
    tools = _part(outcomes, "tools")
    rows = [(name, *(text_of(_part(tools, name), key) for key in _METRICS_KEYS)) for name in tools]
    print_table([_METRICS_HEAD, *rows] if rows else [], "none of its tools has been called yet")


def _part(values: dict[str, JSON], name: str) -> dict[str, JSON]:
    found = values.get(name)
    return found if is_object(found) else {}


async def _print_edges(*, as_json: bool) -> None:
    try:
        async with open_client(os.environ) as client:
            found = await client.get(service_api.api_path("fleet"))
            rows = [_row(edge) for edge in service_api.as_items(found)]
    except (ServiceNotRunning, ServiceRefused):
        rows = await _discovered_edges()
    if as_json:
        print_out(rows)
        return
    for row in rows:
        state = "online" if row["online"] else "offline"
        note = "" if row["delivery_guarantees"] else " (no delivery guarantees)"
        note += f" (genome {clean(row['genome'])[:12]})" if row["genome"] else ""
        note += " (default)" if row["default"] else ""
        print_out(f"{row['agent']:20} {state:8} {row['state']:9} {clean(row['summary'])}{note}")
    if not rows:
        print_out("no edges yet; invite one with `evoclaw edges invite NAME`")


async def _discovered_edges() -> list[dict[str, JSON]]:
    """The edges that answer this process, where no service runs."""
    from evoclaw.wiring.fleet import open_fleet
    from evoclaw.wiring.store import open_devices

    async with open_devices(os.environ) as known:
        devices = {device.agent_id: device for device in known.all()}
    async with open_fleet(os.environ) as orchestrator:
        await orchestrator.wait_until_settled(SETTLE_TIMEOUT_S)
        members = {member.agent_id: member for member in orchestrator.fleet.members()}
    names = sorted({*devices, *members})
    return [_found(name, members.get(name), devices.get(name)) for name in names]


def _found(name: str, member: Member | None, device: Device | None) -> dict[str, JSON]:
    return {
        "agent": name,
        "online": member is not None and member.online,
        "state": "unknown" if device is None else str(device.state),
        "type": "" if member is None else member.agent_type,
        "summary": "" if member is None else member.problem or member.summary,
        "tools": [] if member is None else list(member.tools.names),
        "model": member is not None and member.has_model,
        "default": False,
        "delivery_guarantees": member is None or not member.online or member.guarantees_delivery,
        "genome": "" if member is None else member.genome,
    }


def _row(edge: dict[str, JSON]) -> dict[str, JSON]:
    """An edge as the service describes it; it leaves out what has its default."""
    return {
        "agent": text_of(edge, "agent_id"),
        "online": bool(edge.get("online")),
        "state": text_of(edge, "state"),
        "type": text_of(edge, "type"),
        "summary": text_of(edge, "problem") or text_of(edge, "summary"),
        "tools": edge.get("tools", []),
        "model": bool(edge.get("has_model")),
        "default": bool(edge.get("default")),
        "delivery_guarantees": edge.get("delivery_guarantees", True),
        "genome": text_of(edge, "genome"),
    }
