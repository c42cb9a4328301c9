"""`evoclaw ping`: look at one edge."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from argparse import Namespace

from evoclaw.cli import exits
from evoclaw.cli.needs import Wiring

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
    show(answer if options.json else f"{options.agent} answered in {elapsed:.1f} ms")
    return exits.OK


def show(value: object) -> None:
    """Print a line, or JSON."""
    sys.stdout.write((value if isinstance(value, str) else json.dumps(value)) + "\n")
