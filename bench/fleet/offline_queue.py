"""Ten thousand commands for an edge that is away: kept, run once each when it is back.

One more is refused at once; those whose time is over meanwhile are never run. Everything is
durable: the orchestrator's store and the edge's journal. The last line is the result as JSON.
"""

import argparse
import asyncio
import json
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.fleet.many_edges import resident_mb
from bench.fleet.roundtrip import far_side
from tests.support.light_edges import marking_tool

from evoclaw.core.errors import ToolFailure
from evoclaw.core.tools import Call
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.store.calls.commands import CommandStore
from evoclaw.transport.address import Address
from evoclaw.transport.broker import EmbeddedBroker
from evoclaw.transport.mqtt import MqttLink

WAIT = 600.0
"""Seconds that a command may wait for the edge."""
SHORT = 100
"""Commands that may wait for a moment only."""


class Asking:
    """Calls to one edge, each with its own id."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator, self._tool = orchestrator, marking_tool(Path("marks")).tool
        self._run, self._turn = secrets.token_hex(16), 0
        self.ids: list[str] = []

    async def ask(self, seconds: float) -> str:
        """Ask for one mark; how that ended."""
        self._turn += 1
        request_id = f"{self._run}.{self._turn}.0.1"
        self.ids.append(request_id)
        call = Call("c", self._tool, {"text": request_id}, request_id, self._tool.timeout)
        try:
            executor = self._orchestrator.edge("pi", queue=seconds)
            result = await executor.execute(call, lambda text: None)
        except ToolFailure as problem:
            return str(problem.kind)
        return str(result.error or "success")


async def measure(options: argparse.Namespace) -> dict[str, float]:
    """All of it."""
    with tempfile.TemporaryDirectory(prefix="offline-") as folder:
        broker = EmbeddedBroker(Path(folder) / "broker", engine=options.engine, anonymous=True)
        async with broker, await CommandStore.open(Path(folder) / "orchestrator.db") as store:
            orchestrator = Orchestrator(MqttLink(Address("127.0.0.1", broker.port)), store)
            async with orchestrator.connected():
                return await _through(orchestrator, broker.port, Path(folder), options.calls)


async def _through(
    orchestrator: Orchestrator, port: int, folder: Path, calls: int
) -> dict[str, float]:
    asking = Asking(orchestrator)
    began = time.perf_counter()
    soon = [asyncio.create_task(asking.ask(0.5)) for _ in range(SHORT)]
    long = [asyncio.create_task(asking.ask(WAIT)) for _ in range(calls - SHORT)]
    expired = Counter(await asyncio.gather(*soon))
    filled = [asyncio.create_task(asking.ask(WAIT)) for _ in range(SHORT)]
    await asyncio.sleep(1.0)
    kept = time.perf_counter() - began
    print(f"{calls} commands wait, {SHORT} more {dict(expired)}; {kept:.1f} s")
    began = time.perf_counter()
    over = await asking.ask(WAIT)
    refused = time.perf_counter() - began
    print(f"one more: {over}, after {1000 * refused:.1f} ms")
    began = time.perf_counter()
    with far_side("marks", str(port), str(folder)):
        async with asyncio.timeout(WAIT):
            told = Counter(await asyncio.gather(*long, *filled))
        seconds = time.perf_counter() - began
    print(f"the edge came: {dict(told)} after {seconds:.1f} s")
    marks = Counter((folder / "marks").read_text().split())
    return {
        "calls": calls,
        "succeeded": told["success"],
        "ran_once": sum(count == 1 for count in marks.values()),
        "duplicated": sum(count > 1 for count in marks.values()),
        "expired": expired["expired"],
        "expired_but_ran": sum(marks[one] for one in asking.ids[:SHORT]),
        "one_more": over,
        "refused_ms": round(1000 * refused, 1),
        "seconds": round(seconds, 1),
        "orchestrator_mb": round(resident_mb(os.getpid()), 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=("nats", "mosquitto"), default="nats")
    parser.add_argument("--calls", type=int, default=10_000)
    figures = asyncio.run(measure(parser.parse_args()))
    print(json.dumps(figures), flush=True)
    sound = figures["succeeded"] == figures["ran_once"] == figures["calls"]
    sound = sound and not figures["duplicated"] and not figures["expired_but_ran"]
    sys.exit(int(not sound))


if __name__ == "__main__":
    main()
