"""A fleet under random faults: is any call lost, run twice, left open, or told wrongly?

Real broker, real edge processes, an orchestrator as a process; all of them are killed by SIGKILL,
and links between them are cut, frozen, and made to lose, repeat and reorder messages. The calls
come from a script. At the end the edges' journals, the orchestrator's store, the marks that calls
left and the words that were told are compared. The last line is the result as JSON.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.fleet.consistency import Findings, examine
from bench.fleet.faults import Trouble, gone
from tests.support.fleet_processes import DriverProcess, EdgeProcess
from tests.support.process_fleet import mark, open_process_fleet
from tests.support.programs.orchestrator_driver import Ask, CallOutcome
from tests.support.waiting import until

KEEP_ALIVE = 5
LONGEST_END = 150.0
"""Seconds after the last fault within which everything must be told and acknowledged."""
RUN_LENGTH = 25
"""Calls of one run: a new orchestrator takes a run over under a higher epoch."""


@dataclass
class Script:
    """What is asked, one call after the other, from a seed."""

    chance: random.Random
    agents: list[str]
    given: list[Ask] = field(default_factory=list)

    def calls(self, most: int | None) -> Iterator[Ask]:
        """Calls without end, or so many."""
        while most is None or len(self.given) < most:
            turn = len(self.given) % RUN_LENGTH
            if turn == 0:
                run = f"{self.chance.getrandbits(128):032x}"
            self.given.append(self._call(f"{run}.{turn + 1}.0.1"))
            yield self.given[-1]

    def _call(self, request_id: str) -> Ask:
        agent = self.chance.choice(self.agents)
        kind = self.chance.random()
        if kind < 0.25:
            return Ask(request_id, agent, "read", {"path": "note"}, queue=90.0)
        slow = f"sleep {self.chance.uniform(0.05, 0.6):.2f}" if kind < 0.5 else ""
        leftover = "setsid -f sleep 4321" if kind < 0.35 else ""
        command = mark(request_id, before=leftover, after=slow)
        return Ask(request_id, agent, "bash", {"command": command, "timeout_ms": 20000}, queue=90.0)


@dataclass
class Driving:
    """The orchestrator's process through all its deaths, and all that it ever told."""

    driver: DriverProcess
    script: Script
    chance: random.Random
    told: list[CallOutcome] = field(default_factory=list)
    open: dict[str, Ask] = field(default_factory=dict)
    epoch: int = 0
    undisturbed: list[float] = field(default_factory=list)
    """Seconds from its death to the next outcome, unless its link or the broker failed as well."""
    disturbed_until: Callable[[], float] = lambda: 0.0
    _known: set[str] = field(default_factory=set)
    _died: float | None = None

    async def start(self) -> None:
        """Start it, or start it again: it asks anew what is open, and a little that is not."""
        self.epoch += 1
        self.driver.told = {}
        await self.driver.start()
        known = {one.id: one for one in self.script.given}
        closed = self.chance.sample(self.told, min(3, len(self.told)))
        self.give([*self.open.values(), *(known[one.id] for one in closed)])

    def give(self, calls: list[Ask]) -> None:
        """Ask for calls."""
        self.open |= {call.id: call for call in calls if call.id not in self._known}
        self.driver.submit(
            Ask(c.id, c.agent, c.tool, c.arguments, self.epoch, c.queue) for c in calls
        )

    def collect(self) -> None:
        """Take what was told since."""
        while self.driver.told:
            request_id, one = self.driver.told.popitem()
            self.told.append(one)
            self._known.add(request_id)
            if self.open.pop(request_id, None) is not None and self._died is not None:
                if self.disturbed_until() < self._died:
                    self.undisturbed.append(time.monotonic() - self._died)
                self._died = None

    async def kill(self) -> None:
        """Kill it in the midst of it, and start it again."""
        await self.driver.kill()
        self.collect()
        self._died = time.monotonic()
        await self.start()


@dataclass
class Result:
    """What is printed."""

    findings: Findings
    calls: int
    orphans: list[str]
    recoveries: list[float]
    seconds: float
    faults: dict[str, int]

    def print(self) -> int:
        """Say it; the exit code."""
        found = self.findings
        told = ", ".join(f"{kind} {count}" for kind, count in sorted(found.outcomes.items()))
        made = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        print(f"{self.calls} calls in {self.seconds:.0f} s; faults: {made}")
        print(f"told: {told} (`unknown` is an honest outcome: it may have happened, once)")
        if self.recoveries:
            worst, middle = max(self.recoveries), median(self.recoveries)
            print(f"an orchestrator's death to the next outcome: {middle:.2f} s, worst {worst:.2f}")
        for line in (*found.lines(), *(f"  orphan: {one}" for one in self.orphans[:10])):
            print(line)
        figures = {
            "calls": self.calls,
            "lost": len(found.lost),
            "duplicated": len(found.duplicated),
            "unfinished": len(found.unfinished),
            "wrong_success": len(found.wrong),
            "orphans": len(self.orphans),
            "recovery_s": round(max(self.recoveries, default=0.0), 2),
        }
        print(json.dumps(figures), flush=True)
        return int(any(figures[name] for name in list(figures)[1:-1]))


async def bench(options: argparse.Namespace, folder: Path) -> Result:
    """One whole run."""
    chance = random.Random(options.seed)
    began = time.monotonic()
    async with open_process_fleet(folder, options.engine) as here:
        edges: dict[EdgeProcess, object] = {}
        for number in range(options.edges):
            proxy = await here.proxy(options.seed + number)
            edge = await here.edge(f"edge-{number}", proxy=proxy, keep_alive=KEEP_ALIVE)
            (edge.workspace / "note").write_text("a note\n")
            await edge.start()
            edges[edge] = proxy
        way = await here.proxy(options.seed - 1)
        driver = await here.driver(1, proxy=way, keep_alive=KEEP_ALIVE, at_once=options.at_once)
        script = Script(random.Random(chance.random()), [edge.name for edge in edges])
        driving = Driving(driver, script, random.Random(chance.random()))
        await driving.start()
        faults = random.Random(chance.random())
        trouble = Trouble(here, edges, way, driving.kill, faults, options.pause)
        driving.disturbed_until = lambda: trouble.disturbed_until
        await _under_fire(options, driving, trouble)
        await _come_to_rest(driving, list(edges))
        for edge in edges:
            await edge.stop()
            trouble.orphans += await gone(edge.workspace, 2.0)
        findings = examine(script.given, driving.told, folder / "orchestrator-1.db", list(edges))
    return Result(
        findings,
        len(script.given),
        trouble.orphans,
        driving.undisturbed,
        time.monotonic() - began,
        dict(trouble.made),
    )


async def _under_fire(options: argparse.Namespace, driving: Driving, trouble: Trouble) -> None:
    """Ask while there are faults, until all is asked and nearly all is told."""
    stop = asyncio.Event()
    faults = asyncio.create_task(trouble.run(stop))
    calls = driving.script.calls(None if options.minutes else options.calls)
    end = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
    more = True
    while more:
        driving.collect()
        while more and len(driving.open) < options.open:
            call = next(calls, None)
            more = call is not None and time.monotonic() < end
            if call is not None:
                driving.give([call])
        _progress(driving)
        await asyncio.sleep(0.05)
    stop.set()
    await faults


async def _come_to_rest(driving: Driving, edges: list[EdgeProcess]) -> None:
    """No more faults: everything must be told, and every edge must know that it was heard."""

    def quiet() -> bool:
        driving.collect()
        _progress(driving)
        return not driving.open and not any(edge.unacknowledged() for edge in edges)

    try:
        await until(quiet, LONGEST_END)
    except AssertionError:
        print(f"\n{len(driving.open)} calls still open after {LONGEST_END:.0f} s", file=sys.stderr)
    driving.driver.submit([], last=True)
    try:
        await driving.driver.wait_exit_and_output(20.0)
    except TimeoutError:
        await driving.driver.kill()
    driving.collect()
    _progress(driving, end="\n")


def _progress(driving: Driving, end: str = "") -> None:
    if sys.stderr.isatty():
        done, asked = len(driving.script.given) - len(driving.open), len(driving.script.given)
        print(f"\r{done} of {asked} told, epoch {driving.epoch} ", end=end, file=sys.stderr)


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=2000, help="how many (default: 2000)")
    parser.add_argument("--minutes", type=float, default=0.0, help="instead: for how long")
    parser.add_argument("--edges", type=int, default=4, help="edge processes (default: 4)")
    parser.add_argument("--engine", choices=("nats", "mosquitto"), default="nats")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--at-once", type=int, default=32, help="calls in flight (default: 32)")
    parser.add_argument("--open", type=int, default=64, help="calls asked and not told")
    parser.add_argument("--pause", type=float, default=0.6, help="seconds between two faults")
    parser.add_argument("--keep", metavar="FOLDER", help="leave everything there to look at")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1, 1_000_000)
    print(f"seed {options.seed}, {options.engine}, {options.edges} edges", flush=True)
    with tempfile.TemporaryDirectory(prefix="fleetbench-") as temporary:
        folder = Path(options.keep or temporary).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        result = asyncio.run(bench(options, folder))
    sys.exit(result.print())


if __name__ == "__main__":
    main()
