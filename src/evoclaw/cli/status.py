"""`evoclaw status`: the status of the service, its edges, runs, approvals and budgets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping

import click

from evoclaw.cli import exits, service_api
from evoclaw.cli.client import ServiceClient, ServiceNotRunning, ServiceRefused, open_client
from evoclaw.cli.metrics import PATH, show_tools
from evoclaw.cli.options import CliCommand, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.prometheus import parse_metrics, tool_metrics
from evoclaw.cli.stop_notice import convert_stops, local_stops, stop_lines
from evoclaw.cli.terminal_text import clean, one_line, text_of
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_object

MAX_COUNTED_RUNS = 200
"""Runs counted per state; there may be more."""


@click.command(cls=CliCommand)
@click.option("--tools", "by_tool", is_flag=True, help="Show the metrics of each tool")
@json_option()
def status(*, by_tool: bool, as_json: bool) -> int:
    """Show the status; the exit code is 0 if the service is ready, else 1."""
    try:
        return asyncio.run(_status(by_tool=by_tool, as_json=as_json))
    except ServiceNotRunning as problem:
        if as_json:
            print_out({"up": False, "why": str(problem), "keys": _key_problem()})
        else:
            _print_key_problem()
            for line in stop_lines(local_stops(os.environ)):
                print_out(line)
            print_err(f"evoclaw: {problem}")
        return exits.FAILED


async def _status(*, by_tool: bool, as_json: bool) -> int:
    async with open_client(os.environ) as client:
        if by_tool:
            text = await client.request_bytes("GET", PATH)
            show_tools(
                tool_metrics(list(parse_metrics(text.decode(errors="replace")))), json=as_json
            )
            return exits.OK
        found = await _fetch_status(client)
        found["stops"] = await service_api.list_stops(client)
        found["keys"] = _key_problem()
    if as_json:
        print_out(found)
    else:
        _show(found)
    return exits.OK if found["ready"] else exits.FAILED


def _key_problem() -> str:
    """Why a key of this machine does not fit its stored data; empty if all do."""
    from evoclaw.wiring.record_key import describe_keys, record_key

    try:
        record_key(os.environ)
    except ConfigError:
        return ""  # the settings cannot be read: `evoclaw doctor` says why
    try:
        ok, text = describe_keys(os.environ)
    except ConfigError as problem:
        return str(problem)
    return "" if ok else text


def _print_key_problem() -> None:
    if problem := _key_problem():
        print_out(f"{'KEY':10} {clean(problem)}")


async def _fetch_status(client: ServiceClient) -> dict[str, JSON]:
    alive = service_api.as_object(await client.get("/health/live"))
    ready = service_api.as_object(
        await client.request("GET", "/health/ready", accepted_statuses=(503,))
    )
    found: dict[str, JSON] = {
        "up": True,
        "url": client.url,
        "version": alive.get("version", ""),
        "ready": bool(ready.get("ready")),
        "parts": ready.get("parts", {}),
    }
    for name, look in _SECTIONS.items():
        try:
            found[name] = await look(client)
        except ServiceRefused as problem:  # the token lacks a scope, or the service lacks this part
            found[name] = {"unknown": str(problem)}
    return found


async def _edges(client: ServiceClient) -> JSON:
    edges = service_api.as_items(await client.get(service_api.api_path("fleet")))
    names = {bool(edge.get("online")): list[str]() for edge in (*edges, {"online": 1}, {})}
    for edge in edges:
        names[bool(edge.get("online"))].append(text_of(edge, "agent_id"))
    new_tools = [text_of(edge, "agent_id") for edge in edges if edge.get("waiting")]
    default = next((text_of(edge, "agent_id") for edge in edges if edge.get("default")), "")
    return {
        "online": names[True],
        "offline": names[False],
        "new_tools": new_tools,
        "default": default,
    }


async def _runs(client: ServiceClient) -> JSON:
    counts: dict[str, int] = {}
    for state in ("running", "queued", "waiting"):
        counts[state] = len(
            await service_api.fetch_pages(
                client, service_api.api_path("runs"), MAX_COUNTED_RUNS, state=state
            )
        )
    return counts


async def _approvals(client: ServiceClient) -> JSON:
    return [
        {"id": call.id, "tool": call.tool, "run_id": call.run_id}
        for call in await service_api.list_pending_approvals(client)
    ]


async def _budgets(client: ServiceClient) -> JSON:
    return service_api.as_items(await client.get(service_api.api_path("budgets")))


async def _damage(client: ServiceClient) -> JSON:
    return service_api.as_items(await client.get(service_api.api_path("damage")))


_SECTIONS: Mapping[str, Callable[[ServiceClient], Awaitable[JSON]]] = {
    "edges": _edges,
    "runs": _runs,
    "approvals": _approvals,
    "budgets": _budgets,
    "damage": _damage,
}


def _show(found: dict[str, JSON]) -> None:
    for line in stop_lines(convert_stops(found["stops"])):
        print_out(line)
    parts = ", ".join(f"{name} {how}" for name, how in sorted(found["parts"].items()))
    readiness = "ready" if found["ready"] else "NOT ready"
    print_out(
        f"{found['url']}: {readiness} ({clean(parts)}), version {clean(str(found['version']))}"
    )
    _print_key_problem()
    if found["damage"]:
        _line("DAMAGE", found["damage"], _describe_damage)
    _line("edges", found["edges"], _describe_edges)
    _line("runs", found["runs"], _describe_runs)
    _line("approvals", found["approvals"], _describe_approvals)
    _line("budget", found["budgets"], _describe_budgets)


def _line(name: str, value: JSON, words: Callable[[JSON], str]) -> None:
    unknown = is_object(value) and "unknown" in value
    print_out(f"{name:10} {one_line(value['unknown'], 200) if unknown else words(value)}")


def _describe_edges(value: JSON) -> str:
    online, offline = (
        [f"{name} (default)" if name == value["default"] else name for name in value[key]]
        for key in ("online", "offline")
    )
    text = f"{len(online)} online{': ' if online else ''}{clean(', '.join(online))}"
    if offline:
        text += f"; {len(offline)} offline: {clean(', '.join(offline))}"
    hints = (f"`evoclaw edges approve {clean(name)}`" for name in value["new_tools"])
    return f"{text}; new tools wait for {', '.join(hints)}" if value["new_tools"] else text


def _describe_damage(value: JSON) -> str:
    return "\n           ".join(clean(f"{item['source']}: {item['text']}") for item in value)


def _describe_runs(value: JSON) -> str:
    shown = {state: f"{n}{'+' * (n >= MAX_COUNTED_RUNS)}" for state, n in value.items()}
    return ", ".join(f"{count} {state}" for state, count in shown.items())


def _describe_approvals(value: JSON) -> str:
    if not value:
        return "none waiting"
    ids = ", ".join(f"{clean(call['id'])} ({clean(call['tool'])})" for call in value[:5])
    return f"{len(value)} waiting: {ids}{' …' * (len(value) > 5)}; see `evoclaw approvals`"


def _describe_budgets(value: JSON) -> str:
    limits = [
        f"{clean(account['account'])} {clean(kind)} {spent['left']:g} left of {spent['limit']:g}"
        for account in value
        for kind, spent in account["kinds"].items()
        if spent.get("limit") is not None and spent.get("left") is not None
    ]
    return "; ".join(limits[:5]) or "no limits beside those of single runs"
