"""`evoclaw tools`: what can be done here, or on an edge."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import msgspec

from evoclaw.cli import exits
from evoclaw.cli.clean import clean, one_line
from evoclaw.cli.fleet import WAIT, show
from evoclaw.cli.needs import Wiring
from evoclaw.core.messages import JSON
from evoclaw.core.tools import Tool


def tools(options: Namespace, wiring: Wiring) -> int:
    """Show the tools of this machine, or of an edge."""
    return asyncio.run(_of_edge(options, wiring) if options.agent else _here(options, wiring))


async def _here(options: Namespace, wiring: Wiring) -> int:
    async with wiring.open_toolbox(Path.cwd(), os.environ) as box:
        offered = [*(bound.tool for bound in box.tools), *box.others()]
        absent = {one.name: one.why for one in box.absent}
    if options.json:
        facts = [_facts(tool) for tool in offered]
        if options.all:
            facts += [{"name": one, "available": False, "why": why} for one, why in absent.items()]
        show(facts)
        return exits.OK
    _list(offered)
    if options.all:
        for name, why in absent.items():
            show(f"{name:16} (not here: {clean(why)})")
    elif absent:
        show(f"({len(absent)} more cannot be used here: evoclaw tools --all)")
    return exits.OK


async def _of_edge(options: Namespace, wiring: Wiring) -> int:
    async with wiring.open_fleet(os.environ) as orchestrator:
        member = await orchestrator.wait_for(options.agent, WAIT)
        if options.json:
            show([_facts(tool) for tool in member.tools])
        else:
            _list(member.tools)
            if member.problem:
                show(f"(not offered: {clean(member.problem)})")
    return exits.OK


def _list(offered: Iterable[Tool]) -> None:
    for tool in offered:
        show(f"{clean(tool.name):16} {one_line(tool.description, 90)}")


def _facts(tool: Tool) -> dict[str, JSON]:
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
        "available": True,
    }
