"""`evoclaw ping`: check whether an edge answers."""

from __future__ import annotations

import asyncio
import os
import time

import click

from evoclaw.cli import exits
from evoclaw.cli.options import CliCommand, json_option
from evoclaw.cli.output import print_out
from evoclaw.cli.progress import waiting
from evoclaw.cli.terminal_text import clean
from evoclaw.core.messages import JSON

EDGE_TIMEOUT_S = 10.0
"""Seconds that a command waits for an edge."""


@click.command(cls=CliCommand)
@click.argument("agent", help="Id of the edge")
@json_option()
def ping(agent: str, *, as_json: bool) -> int:
    """Check whether an edge answers."""
    return asyncio.run(_ping(agent, as_json=as_json))


async def ask_edge(agent: str, command: str) -> dict[str, JSON]:
    """The answer of an edge to a command; `EvoClawError` if it refuses, or does not answer."""
    return (await _timed_answer(agent, command))[0]


async def _ping(agent: str, *, as_json: bool) -> int:
    with waiting(f"waiting for {clean(agent)}"):
        about, elapsed = await _timed_answer(agent, "ping")
    answer = {"agent": agent, "ms": round(elapsed, 2), **about}
    print_out(answer if as_json else f"{agent} answered in {elapsed:.1f} ms")
    return exits.OK


async def _timed_answer(agent: str, command: str) -> tuple[dict[str, JSON], float]:
    """The answer of an edge, and how many milliseconds it took."""
    from evoclaw.core.errors import EvoClawError, ToolFailure
    from evoclaw.core.messages import is_object
    from evoclaw.wiring.fleet import open_fleet

    async with open_fleet(os.environ) as orchestrator:
        await orchestrator.wait_for(agent, EDGE_TIMEOUT_S, tools=False)
        started = time.monotonic()
        try:
            outcome = await orchestrator.query(agent, command, seconds=EDGE_TIMEOUT_S)
        except ToolFailure:
            raise EvoClawError(
                f"{agent} is online but did not answer {command!r} within {EDGE_TIMEOUT_S:g} s; "
                "check its log on its machine"
            ) from None
        elapsed = (time.monotonic() - started) * 1000
    if outcome.error:
        raise EvoClawError(f"{agent} refused {command!r}: {clean(outcome.error)}")
    return (outcome.result if is_object(outcome.result) else {}), elapsed
