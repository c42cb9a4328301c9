"""How an engine's program is told what to do: `put`, `drive` or `cancel RUN`, and a plan."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable

from bench.engines.steps import Plan


def follow(
    put: Callable[[Plan], Awaitable[None]],
    drive: Callable[[Plan], Awaitable[None]],
    cancel: Callable[[Plan, str], Awaitable[None]],
) -> None:
    """Do as the command line says."""
    logging.basicConfig(level=logging.ERROR)
    plan, verb = Plan(**json.loads(sys.argv[1])), sys.argv[2]

    async def main() -> None:
        match verb:
            case "put":
                await put(plan)
            case "drive":
                await drive(plan)
            case _:
                for run in sys.argv[3:]:
                    await cancel(plan, run)

    asyncio.run(main())
