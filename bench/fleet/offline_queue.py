"""Ten thousand commands for an offline edge: queued, and run exactly once when it is online.

One command beyond the limit is refused immediately; expired commands never run. The orchestrator's
store and the edge's journal are durable. The last line is the result as JSON.
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
from bench.fleet.roundtrip import remote_side
from tests.support.light_edges import marking_tool

from evoclaw.core.errors import ToolFailure
from evoclaw.core.tools import Call
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.store.calls.commands import CommandStore
from evoclaw.transport.address import Address
from evoclaw.transport.broker import EmbeddedBroker
from evoclaw.transport.mqtt import MqttLink

QUEUE_TIMEOUT_S = 600.0
"""Seconds that a command may wait for the edge."""
EXPIRING = 100
"""Commands that expire after a moment."""


class Caller:
    """Calls one edge, each time with a new request id."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator, self._tool = orchestrator, marking_tool(Path("marks")).tool
        self._run, self._turn = secrets.token_hex(16), 0
        self.ids: list[str] = []

    async def call(self, seconds: float) -> str:
        """Request one mark; the outcome."""
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
    """Queue the commands, then start the edge."""
    with tempfile.TemporaryDirectory(prefix="offline-") as folder:
        broker = EmbeddedBroker(Path(folder) / "broker", engine=options.engine, anonymous=True)
        async with broker, await CommandStore.open(Path(folder) / "orchestrator.db") as store:
            orchestrator = Orchestrator(MqttLink(Address("127.0.0.1", broker.port)), store)
            async with orchestrator.connected():
                return await _measure(orchestrator, broker.port, Path(folder), options.calls)


async def _measure(
    orchestrator: Orchestrator, port: int, folder: Path, calls: int
) -> dict[str, float]:
    caller = Caller(orchestrator)
    began = time.perf_counter()
    expiring = [asyncio.create_task(caller.call(0.5)) for _ in range(EXPIRING)]
    queued = [asyncio.create_task(caller.call(QUEUE_TIMEOUT_S)) for _ in range(calls - EXPIRING)]
    expired = Counter(await asyncio.gather(*expiring))
    queued += [asyncio.create_task(caller.call(QUEUE_TIMEOUT_S)) for _ in range(EXPIRING)]
    await asyncio.sleep(1.0)
    took = time.perf_counter() - began
    print(f"{calls} commands queued, {EXPIRING} more {dict(expired)}; {took:.1f} s")
    began = time.perf_counter()
    over_limit = await caller.call(QUEUE_TIMEOUT_S)
    refused = time.perf_counter() - began
    print(f"one command more: {over_limit}, after {1000 * refused:.1f} ms")
    began = time.perf_counter()
    with remote_side("marks", str(port), str(folder)):
        async with asyncio.timeout(QUEUE_TIMEOUT_S):
            outcomes = Counter(await asyncio.gather(*queued))
        seconds = time.perf_counter() - began
    print(f"the edge is online: {dict(outcomes)} after {seconds:.1f} s")
    marks = Counter((folder / "marks").read_text().split())
    return {
        "calls": calls,
        "succeeded": outcomes["success"],
        "ran_once": sum(count == 1 for count in marks.values()),
        "duplicated": sum(count > 1 for count in marks.values()),
        "expired": expired["expired"],
        "expired_but_ran": sum(marks[request_id] for request_id in caller.ids[:EXPIRING]),
        "one_more": over_limit,
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
    correct = figures["succeeded"] == figures["ran_once"] == figures["calls"]
    correct = correct and not figures["duplicated"] and not figures["expired_but_ran"]
    sys.exit(int(not correct))


if __name__ == "__main__":
    main()
