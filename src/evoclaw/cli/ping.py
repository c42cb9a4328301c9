"""`evoclaw ping`: check whether an edge answers."""

from __future__ import annotations

import asyncio
import os
import time

import click

from evoclaw.cli import exits
from evoclaw.cli.options import CliCommand, json_option
from evoclaw.cli.output import print_out

EDGE_TIMEOUT_S = 10.0
"""Seconds that a command waits for an edge."""


@click.command(cls=CliCommand)
@click.argument("agent", help="Id of the edge")
@json_option()
def ping(agent: str, *, as_json: bool) -> int:
    """Check whether an edge answers."""
    return asyncio.run(_ping(agent, as_json=as_json))


async def _ping(agent: str, *, as_json: bool) -> int:
    from evoclaw.wiring.fleet import open_fleet

    async with open_fleet(os.environ) as orchestrator:
        await orchestrator.wait_for(agent, EDGE_TIMEOUT_S, tools=False)
        started = time.monotonic()
        outcome = await orchestrator.query(agent, "ping")
        elapsed = (time.monotonic() - started) * 1000
    answer = {"agent": agent, "ms": round(elapsed, 2), **outcome.result}
    print_out(answer if as_json else f"{agent} answered in {elapsed:.1f} ms")
    return exits.OK
