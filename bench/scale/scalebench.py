"""Several orchestrators under random faults: is anything lost, done twice, out of order, overspent?

Three `evoclaw up` over one PostgreSQL and a cluster of three NATS nodes (or one Mosquitto), a
hundred edges, a model in its own process; all of them are killed, stopped and cut off at random
while people begin runs through one orchestrator and watch them through another. At the end the
store, the edges' journals, the marks that calls left, the model's log and what watchers saw are
compared. The last line is the result as JSON; the exit code is 1 if a promise was broken.
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

import aiohttp
from bench.scale.clients import Load, Service, approve, operator, until
from bench.scale.collect import history
from bench.scale.consistency import Findings, History, Takeover, examine, takeovers
from bench.scale.deployment import House, Plan, brought_up, end_with_us
from bench.scale.faults import Trouble
from bench.scale.report import save

LONGEST_END = 180.0
"""Seconds after the last fault within which everything must have ended."""
SLACK = 2.0
"""Seconds that a take-over may take beyond the time after which a driver counts as gone."""


@dataclass
class Result:
    """What is printed."""

    options: argparse.Namespace
    plan: Plan
    found: Findings
    history: History
    takeovers: list[Takeover]
    load: Load
    trouble: Trouble
    seconds: float
    tracebacks: int

    def figures(self) -> dict[str, object]:
        """The object that the last line is."""
        outcomes = Counter(call.outcome for one in self.history.stored for call in one.calls)
        stops = Counter(one.stop or one.state for one in self.history.stored)
        waits = [one.seconds for one in self.takeovers]
        replies = sum(told.kind == "replied" for one in self.history.stored for told in one.told)
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
            "denied": sum(one.denied for one in self.history.stored),
            "stops": dict(stops),
            "replies": replies,
            "asked_of_the_model": len(self.history.paid),
            "watchers": len(self.history.watched),
            "approvals": self.load.approved,
            "retries_of_clients": self.load.service.retried,
            "faults": dict(self.trouble.made),
            "not_ready": self.trouble.unready,
            "tracebacks": self.tracebacks,
        }

    def late(self) -> list[Takeover]:
        """Those that took longer than is promised."""
        return [one for one in self.takeovers if one.seconds > self.plan.lease + SLACK]

    def print(self) -> int:
        """Say it; the exit code."""
        figures = self.figures()
        for line in self.found.lines():
            print(line)
        for one in self.late()[:8]:
            print(f"  late: {one.run}, {one.seconds:.1f} s; {one.kind} of {one.who}, {one.at:.3f}")
        for line in (*self.load.refused[:8], *self.load.service.odd[:8]):
            print(f"  refused: {line}")
        if self.options.page:
            save(self.plan.broker, figures)
        print(json.dumps(figures), flush=True)
        bad = any(self.found.counts().values()) or self.late() or self.trouble.unready
        return int(bool(bad))


async def bench(options: argparse.Namespace, folder: Path) -> Result:
    """One whole run."""
    end_with_us()
    chance = random.Random(options.seed)
    alone = min(10, max(1, options.edges // 3))
    plan = Plan(options.edges, alone, options.broker, options.lease)
    began = time.monotonic()
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        brought_up(folder, plan) as house,
        aiohttp.ClientSession(connector=connector) as http,
    ):
        for one in house.orchestrators:
            await one.ready(http)
        admin = await operator(house, http)
        await approve(house, http, admin)
        urls = [one.url for one in house.orchestrators]
        service = Service(http, urls, random.Random(chance.random()))
        load = Load(house, service, admin, random.Random(chance.random()))
        trouble = Trouble(house, http, random.Random(chance.random()), options.pause)
        print(f"up after {time.monotonic() - began:.0f} s", flush=True)
        began = time.monotonic()
        await _under_fire(options, load, trouble)
        took = time.monotonic() - began
        await _come_to_rest(load, house)
        print(f"at rest after {time.monotonic() - began:.0f} s", flush=True)
        told = await history(load, trouble.spells)
        traces = sum(one.words().count("Traceback") for one in house.orchestrators)
    waits = takeovers(told.stored, told.paid, trouble.spells, trouble.blind)
    return Result(options, plan, examine(told), told, waits, load, trouble, took, traces)


async def _under_fire(options: argparse.Namespace, load: Load, trouble: Trouble) -> None:
    """People and faults at once, for so long; then the faults are mended, and people leave."""
    stop = asyncio.Event()
    talks = [asyncio.create_task(load.converse()) for _ in range(options.people)]
    person = asyncio.create_task(load.approve())
    faults = asyncio.create_task(trouble.run(stop))
    end = time.monotonic() + options.minutes * 60
    while (left := end - time.monotonic()) > 0:
        done, _ = await asyncio.wait({faults}, timeout=min(left, 10.0))
        if done:
            faults.result()
        _progress(load, trouble)
    stop.set()
    await faults
    load.stop.set()
    _, late = await asyncio.wait(talks, timeout=LONGEST_END)
    for one in (*late, person):
        one.cancel()
    await asyncio.gather(*talks, person, return_exceptions=True)


async def _come_to_rest(load: Load, house: House) -> None:
    """Everything must end, and every edge must know that it was heard."""

    def quiet() -> bool:
        return not load.open and not any(edge.unacknowledged() for edge in house.all_edges())

    if not await until(quiet, LONGEST_END):
        print(f"{load.open} runs still open after {LONGEST_END:.0f} s", file=sys.stderr)


def _progress(load: Load, trouble: Trouble) -> None:
    ended, faults = len(load.watched), trouble.made.total()
    print(f"{ended} of {len(load.asked)} runs ended, {faults} faults", file=sys.stderr, flush=True)


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of faults (default: 10)")
    parser.add_argument("--edges", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--broker", choices=("nats", "mosquitto"), default="nats")
    parser.add_argument("--people", type=int, default=12, help="conversations at once")
    parser.add_argument("--lease", type=float, default=8.0, help="seconds until one counts as gone")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--page", action="store_true", help="write docs/scale-figures.md anew")
    parser.add_argument("--keep", metavar="FOLDER", help="leave everything there to look at")
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
