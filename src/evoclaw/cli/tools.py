"""`evoclaw tools`: the tools of this machine, or of an edge."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from evoclaw.cli import exits
from evoclaw.cli.options import CliCommand, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.ping import EDGE_TIMEOUT_S
from evoclaw.cli.terminal_text import clean, one_line
from evoclaw.core.messages import JSON
from evoclaw.core.tools import Tool
from evoclaw.tools.catalogue import CATALOGUE, RunsOn


@click.command(cls=CliCommand)
@click.argument("agent", required=False, help="Id of an edge  [default: this machine]")
@click.option("--all", "show_all", is_flag=True, help="List unavailable tools too, with the reason")
@json_option()
def tools(agent: str | None, *, show_all: bool, as_json: bool) -> int:
    """List the tools of this machine, or of an edge."""
    if agent:
        return asyncio.run(_list_edge(agent, as_json=as_json))
    return asyncio.run(_list_local(show_all=show_all, as_json=as_json))


async def _list_local(*, show_all: bool, as_json: bool) -> int:
    from evoclaw.wiring.toolbox import open_toolbox

    async with open_toolbox(Path.cwd(), os.environ) as toolbox:
        offered = [*(bound.tool for bound in toolbox.tools), *toolbox.extension_tools()]
        unavailable = {tool.name: tool for tool in toolbox.unavailable}
        if problem := toolbox.problems().get("commands"):
            print_err(f"evoclaw: {clean(problem)}")
    if as_json:
        facts = [_facts(tool) for tool in offered]
        if show_all:
            facts += [
                {**_facts(found.tool), "available": False, "why": found.why}
                for found in unavailable.values()
            ]
        print_out(facts)
        return exits.OK
    _list(offered)
    if show_all:
        for found in unavailable.values():
            print_out(f"{found.name:16} (unavailable: {clean(found.why)})")
    elif unavailable:
        print_out(f"({len(unavailable)} more are unavailable; see `evoclaw tools --all`)")
    return exits.OK


async def _list_edge(agent: str, *, as_json: bool) -> int:
    from evoclaw.wiring.fleet import open_fleet

    async with open_fleet(os.environ) as orchestrator:
        member = await orchestrator.wait_for(agent, EDGE_TIMEOUT_S)
        if as_json:
            print_out([_facts(tool) for tool in member.tools])
        else:
            _list(member.tools)
            if member.problem:
                print_out(f"(not offered: {clean(member.problem)})")
    return exits.OK


def _list(offered: Iterable[Tool]) -> None:
    for tool in offered:
        isolated = "(isolated) " if tool.isolated else ""
        print_out(f"{clean(tool.name):16} {isolated}{one_line(tool.description, 90)}")


def _facts(tool: Tool) -> dict[str, JSON]:
    hosts = CATALOGUE[tool.name].runs_on if tool.name in CATALOGUE else frozenset[RunsOn]()
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "permissions": sorted(tool.permissions),
        "effect": str(tool.effect),
        "timeout": tool.timeout,
        "max_timeout": tool.max_timeout,
        "idempotent": tool.idempotent,
        "resources": msgspec.to_builtins(tool.resources),
        "version": tool.version,
        "isolated": tool.isolated,
        "runs_on": sorted(hosts),
        "pipelines": sorted(host.pipeline for host in hosts),
        "available": True,
    }
