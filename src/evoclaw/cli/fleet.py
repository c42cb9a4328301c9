"""`evoclaw ping` and `evoclaw tools`: look at one edge."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from argparse import Namespace

import msgspec

from evoclaw.cli import exits
from evoclaw.cli.clean import clean
from evoclaw.cli.needs import Wiring
from evoclaw.orchestrator.orchestrator import Orchestrator

WAIT = 10.0
"""Seconds that an edge is waited for."""


def ping(options: Namespace, wiring: Wiring) -> int:
    """Ask an edge whether it is there."""
    return asyncio.run(_ping(options, wiring))


async def _ping(options: Namespace, wiring: Wiring) -> int:
    async with wiring.open_fleet(os.environ) as orchestrator:
        await orchestrator.wait_for(options.agent, WAIT, tools=False)
        began = time.monotonic()
        outcome = await orchestrator.say(options.agent, "ping")
        elapsed = (time.monotonic() - began) * 1000
    answer = {"agent": options.agent, "ms": round(elapsed, 2), **outcome.result}
    _print(answer if options.json else f"{options.agent} answered in {elapsed:.1f} ms")
    return exits.OK


def tools(options: Namespace, wiring: Wiring) -> int:
    """Show what an edge can do."""
    return asyncio.run(_tools(options, wiring))


async def _tools(options: Namespace, wiring: Wiring) -> int:
    async with wiring.open_fleet(os.environ) as orchestrator:
        member = await orchestrator.wait_for(options.agent, WAIT)
        if options.json:
            _print([msgspec.to_builtins(tool) for tool in member.tools])
        else:
            for tool in member.tools:
                first = clean(tool.description).splitlines()[0]
                _print(f"{clean(tool.name):12} {first}")
            if member.problem:
                _print(f"(not offered: {clean(member.problem)})")
    return exits.OK


def agents(options: Namespace, wiring: Wiring) -> int:
    """Show the fleet."""
    return asyncio.run(_agents(options, wiring))


async def _agents(options: Namespace, wiring: Wiring) -> int:
    async with wiring.open_fleet(os.environ) as orchestrator:
        await _settled(orchestrator)
        rows = [
            {
                "agent": member.agent_id,
                "online": member.online,
                "type": member.agent_type,
                "summary": member.summary,
                "tools": list(member.hashes),
                "model": member.has_model,
            }
            for member in orchestrator.fleet.members()
        ]
    if options.json:
        _print(rows)
    else:
        for row in rows:
            state = "online" if row["online"] else "offline"
            _print(f"{row['agent']:20} {state:8} {clean(str(row['summary']))}")
        if not rows:
            _print("no edge was ever here")
    return exits.OK


async def _settled(orchestrator: Orchestrator, seconds: float = 2.0) -> None:
    """Wait until everybody who is there had the time to say so."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                await orchestrator.fleet.change()
    except TimeoutError:
        return


def _print(value: object) -> None:
    sys.stdout.write((value if isinstance(value, str) else json.dumps(value)) + "\n")
