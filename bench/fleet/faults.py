"""Random faults, from a seed: who is killed, cut off, frozen, and when."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.fault_proxy import FaultProxy
from tests.support.fleet_processes import EdgeProcess
from tests.support.process_fleet import ProcessFleet

WEIGHTS = {
    "kill_edge": 30,
    "kill_driver": 25,
    "kill_broker": 6,
    "cut_edge": 14,
    "freeze_edge": 9,
    "lock_out_edge": 10,
    "cut_driver": 8,
    "freeze_driver": 5,
}
BROKER_EVERY = 25.0
"""Seconds at least between two deaths of the broker, which itself comes back ever later."""
LOST, TWICE, LATE = 0.02, 0.03, 0.03
"""Parts of all messages, in both directions."""
LOOK = 0.02
DEAD_WITHIN = 2.0
"""Seconds after which nothing that a killed edge had started may live."""


def bad(proxy: FaultProxy) -> None:
    """Have a link lose, repeat and reorder messages."""
    for way in (proxy.to_broker, proxy.to_client):
        way.drop(fraction=LOST)
        way.duplicate(fraction=TWICE)
        way.reorder(fraction=LATE)


def good(proxy: FaultProxy) -> None:
    """Have a link carry everything again."""
    for way in (proxy.to_broker, proxy.to_client):
        way.clear()
    proxy.refuse(False)
    proxy.thaw()


@dataclass
class Trouble:
    """Makes faults until told to stop; then everything is mended."""

    site: ProcessFleet
    edges: dict[EdgeProcess, FaultProxy]
    driver_proxy: FaultProxy
    kill_driver: Callable[[], Coroutine[Any, Any, None]]
    chance: random.Random
    pause: float = 1.0
    made: Counter = field(default_factory=Counter)
    orphans: list[str] = field(default_factory=list)
    disturbed_until: float = 0.0
    """Until then the orchestrator could not be heard, whether it lived or not."""
    _broker_died: float = 0.0
    _busy: set[EdgeProcess] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, stop: asyncio.Event) -> None:
        """Make a fault now and then."""
        for proxy in (*self.edges.values(), self.driver_proxy):
            bad(proxy)
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self.chance.uniform(0.3, 1.7) * self.pause):
                    await stop.wait()
            if not stop.is_set():
                await self._one()
        while self._tasks:
            await asyncio.wait(self._tasks)
        for proxy in (*self.edges.values(), self.driver_proxy):
            good(proxy)

    async def _one(self) -> None:
        name = self.chance.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        seconds = self.chance.uniform(0.5, 3.5)
        edge = self.chance.choice([*self.edges])
        if name.endswith("_edge") and edge in self._busy:
            return
        if name == "kill_broker" and time.monotonic() - self._broker_died < BROKER_EVERY:
            return
        self.made[name] += 1
        match name:
            case "kill_edge":
                self._spawn(self._kill_edge(edge, seconds))
            case "kill_driver":
                await self.kill_driver()
            case "kill_broker":
                self._broker_died = time.monotonic()
                self._disturb(5.0)
                with suppress(ProcessLookupError):
                    os.kill(self.site.broker.pid, signal.SIGKILL)
            case "cut_edge":
                self.edges[edge].cut()
            case "freeze_edge":
                self._spawn(_frozen(self.edges[edge], seconds))
            case "lock_out_edge":
                self._spawn(_locked_out(self.edges[edge], seconds))
            case "cut_driver":
                self._disturb(1.0)
                self.driver_proxy.cut()
            case _:
                self._disturb(seconds + 1.0)
                self._spawn(_frozen(self.driver_proxy, seconds))

    def _disturb(self, seconds: float) -> None:
        self.disturbed_until = max(self.disturbed_until, time.monotonic() + seconds)

    async def _kill_edge(self, edge: EdgeProcess, seconds: float) -> None:
        self._busy.add(edge)
        await edge.kill()
        left = await gone(edge.workspace, DEAD_WITHIN)
        self.orphans += left
        await asyncio.sleep(self.chance.uniform(0.0, seconds / 2))
        await edge.start()
        self._busy.discard(edge)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _frozen(proxy: FaultProxy, seconds: float) -> None:
    proxy.freeze()
    await asyncio.sleep(seconds)
    proxy.thaw()


async def _locked_out(proxy: FaultProxy, seconds: float) -> None:
    proxy.refuse(True)
    proxy.cut()
    await asyncio.sleep(seconds)
    proxy.refuse(False)


async def gone(folder: Path, seconds: float) -> list[str]:
    """Wait until no process works in a folder; what is still there after that time."""
    for _ in range(round(seconds / LOOK)):
        if not working_in(folder):
            return []
        await asyncio.sleep(LOOK)
    return working_in(folder)


def working_in(folder: Path) -> list[str]:
    """The living processes whose working folder is here."""
    found: list[str] = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile, or a zombie
            if (place / "cwd").readlink().is_relative_to(folder):
                line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"{place.name} {line}"[:200])
    return found
