"""Several orchestrators under random faults: is anything lost, duplicated, unordered, overspent?

Three `evoclaw up` with one PostgreSQL and a cluster of three NATS nodes (or one Mosquitto), a
hundred edges, and a model in its own process. All of them are killed, paused and disconnected at
random while clients start runs through one orchestrator and watch them through another. At the end
the store, the edges' journals, the marks that calls wrote, the model's log and the records that
watchers received are compared. The last line is the result as JSON; the exit code is 1 if a
guarantee was violated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from bench.scale.clients import Load, Service, approve, create_admin_token, until
from bench.scale.collect import history
from bench.scale.consistency import Findings, History, Takeover, check_history, takeovers
from bench.scale.deployment import Deployment, Plan, cancel_on_sigterm, deploy
from bench.scale.faults import FaultInjector
from bench.scale.foreign_checker import judge
from bench.scale.list_history import elle_lines, list_operations
from bench.scale.report import save

SETTLE_TIMEOUT_S = 180.0
"""Seconds after the last fault within which all runs must have ended."""
TAKEOVER_SLACK_S = 2.0
"""Seconds that a takeover may take after the lease of the dead orchestrator has expired."""


@dataclass
class Result:
    """The result of the benchmark."""

    options: argparse.Namespace
    plan: Plan
    found: Findings
    history: History
    takeovers: list[Takeover]
    load: Load
    injector: FaultInjector
    seconds: float
    tracebacks: int
    porcupine: dict[str, Any]
    """The verdict of a foreign checker; empty if it was not asked."""

    def figures(self) -> dict[str, object]:
        """The JSON object of the last line."""
        outcomes = Counter(call.outcome for run in self.history.stored for call in run.calls)
        stops = Counter(run.stop or run.state for run in self.history.stored)
        waits = [takeover.seconds for takeover in self.takeovers]
        replies = sum(
            record.kind == "replied" for run in self.history.stored for record in run.records
        )
        return {
            "orchestrators": self.plan.orchestrators,
            "edges": self.plan.edges,
            "broker": self.plan.broker,
            "seed": self.options.seed,
            "seconds": round(self.seconds),
            "runs": len(self.history.stored),
            "calls": sum(outcomes.values()),
            **self.found.counts(),
            "takeover_s": round(max(waits, default=0.0), 2),
            "takeover_median_s": round(median(waits), 2) if waits else 0.0,
            "takeovers": len(waits),
            "stall_s": self.plan.lease,
            "late": len(self.late()),
            "outcomes": dict(outcomes),
            "denied": sum(run.denied for run in self.history.stored),
            "stops": dict(stops),
            "replies": replies,
            "asked_of_the_model": len(self.history.model_requests),
            "watchers": len(self.history.watched),
            "approvals": self.load.approved,
            "retries_of_clients": self.load.service.retried,
            "faults": dict(self.injector.injected),
            "not_ready": self.injector.unready,
            "tracebacks": self.tracebacks,
            "porcupine": self.porcupine,
        }

    def late(self) -> list[Takeover]:
        """The takeovers that took longer than the limit."""
        limit = self.plan.lease + TAKEOVER_SLACK_S
        return [takeover for takeover in self.takeovers if takeover.seconds > limit]

    def print(self) -> int:
        """Print the result; the exit code."""
        figures = self.figures()
        for line in self.found.lines():
            print(line)
        for late in self.late()[:8]:
            cause = f"{late.kind} of {late.orchestrator}, {late.at:.3f}"
            print(f"  late: {late.run}, {late.seconds:.1f} s; {cause}")
        for line in (*self.load.refused[:8], *self.load.service.server_errors[:8]):
            print(f"  refused: {line}")
        if self.options.page:
            save(self.plan.broker, figures)
        print(json.dumps(figures), flush=True)
        bad = (
            any(self.found.counts().values())
            or self.late()
            or self.injector.unready
            or self.porcupine.get("illegal")
            or not figures["calls"]  # nothing was tried
        )
        return int(bool(bad))


async def bench(options: argparse.Namespace, folder: Path) -> Result:
    """Run the benchmark."""
    cancel_on_sigterm()
    rng = random.Random(options.seed)
    single_edges = min(10, max(1, options.edges // 3))
    plan = Plan(options.edges, single_edges, options.broker, options.lease)
    began = time.monotonic()
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        deploy(folder, plan) as deployment,
        aiohttp.ClientSession(connector=connector) as http,
    ):
        for orchestrator in deployment.orchestrators:
            await orchestrator.wait_ready(http)
        admin = await create_admin_token(deployment, http)
        await approve(deployment, http, admin)
        urls = [orchestrator.url for orchestrator in deployment.orchestrators]
        service = Service(http, urls, random.Random(rng.random()))
        load = Load(deployment, service, admin, random.Random(rng.random()))
        injector = FaultInjector(deployment, http, random.Random(rng.random()), options.pause)
        print(f"up after {time.monotonic() - began:.0f} s", flush=True)
        began = time.monotonic()
        await _inject_faults(options, load, injector)
        took = time.monotonic() - began
        await _settle(load, deployment)
        print(f"settled after {time.monotonic() - began:.0f} s", flush=True)
        collected = await history(load, injector.outages)
        traces = sum(o.log_text().count("Traceback") for o in deployment.orchestrators)
    waits = takeovers(
        collected.stored, collected.model_requests, injector.outages, injector.store_outages
    )
    found, verdict = check_history(collected), await _judge(options, collected)
    return Result(options, plan, found, collected, waits, load, injector, took, traces, verdict)


async def _judge(options: argparse.Namespace, collected: History) -> dict[str, Any]:
    """Export the history for foreign checkers, and ask one of them."""
    operations = list_operations(collected)
    if options.history:
        text = "".join(f"{line}\n" for line in elle_lines(operations))
        await asyncio.to_thread(Path(options.history).write_text, text)
    return await asyncio.to_thread(judge, operations) if options.judge else {}


async def _inject_faults(options: argparse.Namespace, load: Load, injector: FaultInjector) -> None:
    """Run clients and faults for the given time; then stop the faults, then the clients."""
    stop = asyncio.Event()
    conversations = [asyncio.create_task(load.converse()) for _ in range(options.people)]
    approver = asyncio.create_task(load.approve())
    faults = asyncio.create_task(injector.run(stop))
    end = time.monotonic() + options.minutes * 60
    while (left := end - time.monotonic()) > 0:
        done, _ = await asyncio.wait({faults}, timeout=min(left, 10.0))
        if done:
            faults.result()
        _progress(load, injector)
    stop.set()
    await faults
    load.stop.set()
    _, late = await asyncio.wait(conversations, timeout=SETTLE_TIMEOUT_S)
    for task in (*late, approver):
        task.cancel()
    await asyncio.gather(*conversations, approver, return_exceptions=True)


async def _settle(load: Load, deployment: Deployment) -> None:
    """Wait until all runs have ended and every edge's results are acknowledged."""

    def settled() -> bool:
        return not load.open and not any(edge.unacknowledged() for edge in deployment.all_edges())

    if not await until(settled, SETTLE_TIMEOUT_S):
        print(f"{load.open} runs still open after {SETTLE_TIMEOUT_S:.0f} s", file=sys.stderr)


def _progress(load: Load, injector: FaultInjector) -> None:
    ended, faults = len(load.watched), injector.injected.total()
    print(
        f"{ended} of {len(load.requested)} runs ended, {faults} faults", file=sys.stderr, flush=True
    )


def main() -> None:
    """Parse the command line and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="Minutes of fault injection [10]"
    )
    parser.add_argument("--edges", type=int, default=100, help="Number of edges [100]")
    parser.add_argument("--broker", choices=("nats", "mosquitto"), default="nats")
    parser.add_argument("--people", type=int, default=12, help="Concurrent users [12]")
    parser.add_argument(
        "--lease", type=float, default=8.0, help="Lease of a run in seconds ([runs] lease_s) [8]"
    )
    parser.add_argument(
        "--pause", type=float, default=3.0, help="Mean seconds between two faults [3]"
    )
    parser.add_argument("--seed", type=int, default=None, help="Random seed [a new one]")
    parser.add_argument("--page", action="store_true", help="Update docs/scale-figures.md")
    parser.add_argument(
        "--history", metavar="FILE", help="Write the history for Elle (list-append, EDN)"
    )
    parser.add_argument(
        "--judge", action="store_true", help="Let porcupine judge the history; needs Go modules"
    )
    parser.add_argument("--keep", metavar="FOLDER", help="Keep all files in this folder")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1, 1_000_000)
    print(f"seed {options.seed}, {options.broker}, {options.edges} edges", flush=True)
    with tempfile.TemporaryDirectory(prefix="scalebench-", ignore_cleanup_errors=True) as temporary:
        folder = Path(options.keep or temporary).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        result = asyncio.run(bench(options, folder))
    sys.exit(result.print())


if __name__ == "__main__":
    main()
