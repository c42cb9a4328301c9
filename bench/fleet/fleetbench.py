"""A fleet under random faults: is any call lost, run twice, unfinished, or reported wrongly?

A real broker, real edge processes and an orchestrator process are killed with SIGKILL, and the
connections between them are dropped, frozen, and made to lose, duplicate and reorder messages. The
calls come from a script. At the end the edges' journals, the orchestrator's store, the marks that
calls wrote and the reported outcomes are compared. The last line is the result as JSON.
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

from bench.fleet.consistency import Findings, check_calls
from bench.fleet.faults import FaultInjector, wait_for_exit
from tests.support.fault_proxy import FaultProxy
from tests.support.fleet_processes import DriverProcess, EdgeProcess
from tests.support.process_fleet import mark, open_process_fleet
from tests.support.programs.orchestrator_driver import Ask, CallOutcome
from tests.support.waiting import until

KEEP_ALIVE = 5
SETTLE_TIMEOUT_S = 150.0
"""Seconds after the last fault within which all calls must be reported and acknowledged."""
RUN_LENGTH = 25
"""Calls of one run: a restarted orchestrator resumes a run under a higher epoch."""


@dataclass
class Script:
    """Generates calls from a seed."""

    rng: random.Random
    agents: list[str]
    submitted: list[Ask] = field(default_factory=list)

    def calls(self, limit: int | None) -> Iterator[Ask]:
        """An endless sequence of calls, or `limit` calls."""
        run = ""
        while limit is None or len(self.submitted) < limit:
            turn = len(self.submitted) % RUN_LENGTH
            if turn == 0:
                run = f"{self.rng.getrandbits(128):032x}"
            self.submitted.append(self._call(f"{run}.{turn + 1}.0.1"))
            yield self.submitted[-1]

    def _call(self, request_id: str) -> Ask:
        agent = self.rng.choice(self.agents)
        kind = self.rng.random()
        if kind < 0.25:
            return Ask(request_id, agent, "read", {"path": "note"}, queue=90.0)
        slow = f"sleep {self.rng.uniform(0.05, 0.6):.2f}" if kind < 0.5 else ""
        leftover = "setsid -f sleep 4321" if kind < 0.35 else ""
        command = mark(request_id, before=leftover, after=slow)
        return Ask(request_id, agent, "bash", {"command": command, "timeout_ms": 20000}, queue=90.0)


@dataclass
class DriverSession:
    """The orchestrator process across its restarts, and all outcomes it reported."""

    driver: DriverProcess
    script: Script
    rng: random.Random
    reported: list[CallOutcome] = field(default_factory=list)
    open: dict[str, Ask] = field(default_factory=dict)
    epoch: int = 0
    undisturbed: list[float] = field(default_factory=list)
    """Seconds from its death to the next outcome, unless its connection or the broker failed."""
    disturbed_until: Callable[[], float] = lambda: 0.0
    _known: set[str] = field(default_factory=set)
    _died: float | None = None

    async def start(self) -> None:
        """Start or restart it; it repeats the open calls, and a few that are already reported."""
        self.epoch += 1
        self.driver.told = {}
        await self.driver.start()
        known = {call.id: call for call in self.script.submitted}
        closed = self.rng.sample(self.reported, min(3, len(self.reported)))
        self.submit([*self.open.values(), *(known[outcome.id] for outcome in closed)])

    def submit(self, calls: list[Ask]) -> None:
        """Submit calls to the orchestrator."""
        self.open |= {call.id: call for call in calls if call.id not in self._known}
        self.driver.submit(
            Ask(c.id, c.agent, c.tool, c.arguments, self.epoch, c.queue) for c in calls
        )

    def collect(self) -> None:
        """Collect the outcomes that were reported since the last time."""
        while self.driver.told:
            request_id, outcome = self.driver.told.popitem()
            self.reported.append(outcome)
            self._known.add(request_id)
            if self.open.pop(request_id, None) is not None and self._died is not None:
                if self.disturbed_until() < self._died:
                    self.undisturbed.append(time.monotonic() - self._died)
                self._died = None

    async def kill(self) -> None:
        """Kill it while calls are in flight, and restart it."""
        await self.driver.kill()
        self.collect()
        self._died = time.monotonic()
        await self.start()


@dataclass
class Result:
    """The result of the benchmark."""

    findings: Findings
    calls: int
    orphans: list[str]
    recoveries: list[float]
    seconds: float
    faults: dict[str, int]

    def print(self) -> int:
        """Print the result; the exit code."""
        found = self.findings
        outcomes = ", ".join(f"{kind} {count}" for kind, count in sorted(found.outcomes.items()))
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        print(f"{self.calls} calls in {self.seconds:.0f} s; faults: {faults}")
        print(f"outcomes: {outcomes} (`unknown` is correct: the call ran at most once)")
        if self.recoveries:
            worst, middle = max(self.recoveries), median(self.recoveries)
            print(f"orchestrator death to next outcome: median {middle:.2f} s, worst {worst:.2f} s")
        for line in (*found.lines(), *(f"  orphan: {process}" for process in self.orphans[:10])):
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
    """Run the benchmark."""
    rng = random.Random(options.seed)
    began = time.monotonic()
    async with open_process_fleet(folder, options.engine) as fleet:
        edges: dict[EdgeProcess, FaultProxy] = {}
        for number in range(options.edges):
            proxy = await fleet.proxy(options.seed + number)
            edge = await fleet.edge(f"edge-{number}", proxy=proxy, keep_alive=KEEP_ALIVE)
            (edge.workspace / "note").write_text("a note\n")
            await edge.start()
            edges[edge] = proxy
        proxy = await fleet.proxy(options.seed - 1)
        driver = await fleet.driver(1, proxy=proxy, keep_alive=KEEP_ALIVE, at_once=options.at_once)
        script = Script(random.Random(rng.random()), [edge.name for edge in edges])
        session = DriverSession(driver, script, random.Random(rng.random()))
        await session.start()
        faults = random.Random(rng.random())
        injector = FaultInjector(fleet, edges, proxy, session.kill, faults, options.pause)
        session.disturbed_until = lambda: injector.disturbed_until
        await _inject_faults(options, session, injector)
        await _settle(session, list(edges))
        for edge in edges:
            await edge.stop()
            injector.orphans += await wait_for_exit(edge.workspace, 2.0)
        findings = check_calls(
            script.submitted, session.reported, folder / "orchestrator-1.db", list(edges)
        )
    return Result(
        findings,
        len(script.submitted),
        injector.orphans,
        session.undisturbed,
        time.monotonic() - began,
        dict(injector.injected),
    )


async def _inject_faults(
    options: argparse.Namespace, session: DriverSession, injector: FaultInjector
) -> None:
    """Submit calls while faults are injected, until all are submitted."""
    stop = asyncio.Event()
    faults = asyncio.create_task(injector.run(stop))
    calls = session.script.calls(None if options.minutes else options.calls)
    end = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
    more = True
    while more:
        session.collect()
        while more and len(session.open) < options.open:
            call = next(calls, None)
            more = call is not None and time.monotonic() < end
            if call is not None:
                session.submit([call])
        _progress(session)
        await asyncio.sleep(0.05)
    stop.set()
    await faults


async def _settle(session: DriverSession, edges: list[EdgeProcess]) -> None:
    """Wait, without faults, until all calls are reported and every result is acknowledged."""

    def settled() -> bool:
        session.collect()
        _progress(session)
        return not session.open and not any(edge.unacknowledged() for edge in edges)

    try:
        await until(settled, SETTLE_TIMEOUT_S)
    except AssertionError:
        count = len(session.open)
        print(f"\n{count} calls still open after {SETTLE_TIMEOUT_S:.0f} s", file=sys.stderr)
    session.driver.submit([], last=True)
    try:
        await session.driver.wait_exit_and_output(20.0)
    except TimeoutError:
        await session.driver.kill()
    session.collect()
    _progress(session, end="\n")


def _progress(session: DriverSession, end: str = "") -> None:
    if sys.stderr.isatty():
        done, asked = (
            len(session.script.submitted) - len(session.open),
            len(session.script.submitted),
        )
        print(f"\r{done} of {asked} reported, epoch {session.epoch} ", end=end, file=sys.stderr)


def main() -> None:
    """Parse the command line and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=2000, help="Number of calls [2000]")
    parser.add_argument("--minutes", type=float, default=0.0, help="Run for minutes, not calls")
    parser.add_argument("--edges", type=int, default=4, help="Number of edge processes [4]")
    parser.add_argument("--engine", choices=("nats", "mosquitto"), default="nats")
    parser.add_argument("--seed", type=int, default=None, help="Random seed [a new one]")
    parser.add_argument("--at-once", type=int, default=32, help="Calls in flight [32]")
    parser.add_argument("--open", type=int, default=64, help="Calls submitted, not reported [64]")
    parser.add_argument("--pause", type=float, default=0.6, help="Seconds between faults [0.6]")
    parser.add_argument("--keep", metavar="FOLDER", help="Keep all files in this folder")
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
