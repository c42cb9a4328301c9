"""Random fault injection from a seed: kill, disconnect or freeze processes and connections."""

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
BROKER_KILL_INTERVAL_S = 25.0
"""Minimum seconds between two kills of the broker, whose restart delay grows."""
DROPPED, DUPLICATED, REORDERED = 0.02, 0.03, 0.03
"""Fractions of all messages, in both directions."""
EXIT_POLL_INTERVAL_S = 0.02
EXIT_TIMEOUT_S = 2.0
"""Seconds within which all child processes of a killed edge must exit."""


def degrade(proxy: FaultProxy) -> None:
    """Make a connection drop, duplicate and reorder messages."""
    for way in (proxy.to_broker, proxy.to_client):
        way.drop(fraction=DROPPED)
        way.duplicate(fraction=DUPLICATED)
        way.reorder(fraction=REORDERED)


def restore(proxy: FaultProxy) -> None:
    """Make a connection reliable again."""
    for way in (proxy.to_broker, proxy.to_client):
        way.clear()
    proxy.refuse(False)
    proxy.thaw()


@dataclass
class FaultInjector:
    """Injects faults until it is stopped; then restores all processes and connections."""

    site: ProcessFleet
    edges: dict[EdgeProcess, FaultProxy]
    driver_proxy: FaultProxy
    kill_driver: Callable[[], Coroutine[Any, Any, None]]
    rng: random.Random
    pause: float = 1.0
    injected: Counter = field(default_factory=Counter)
    orphans: list[str] = field(default_factory=list)
    disturbed_until: float = 0.0
    """Until this time the orchestrator was unreachable, whether it was running or not."""
    _broker_died: float = 0.0
    _busy: set[EdgeProcess] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, stop: asyncio.Event) -> None:
        """Inject a fault from time to time."""
        for proxy in (*self.edges.values(), self.driver_proxy):
            degrade(proxy)
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self.rng.uniform(0.3, 1.7) * self.pause):
                    await stop.wait()
            if not stop.is_set():
                await self._inject()
        while self._tasks:
            await asyncio.wait(self._tasks)
        for proxy in (*self.edges.values(), self.driver_proxy):
            restore(proxy)

    async def _inject(self) -> None:
        name = self.rng.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        seconds = self.rng.uniform(0.5, 3.5)
        edge = self.rng.choice([*self.edges])
        if name.endswith("_edge") and edge in self._busy:
            return
        if name == "kill_broker" and time.monotonic() - self._broker_died < BROKER_KILL_INTERVAL_S:
            return
        self.injected[name] += 1
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
        left = await wait_for_exit(edge.workspace, EXIT_TIMEOUT_S)
        self.orphans += left
        await asyncio.sleep(self.rng.uniform(0.0, seconds / 2))
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


async def wait_for_exit(folder: Path, seconds: float) -> list[str]:
    """Wait until no process works in a folder; the processes that remain after that time."""
    for _ in range(round(seconds / EXIT_POLL_INTERVAL_S)):
        if not processes_in(folder):
            return []
        await asyncio.sleep(EXIT_POLL_INTERVAL_S)
    return processes_in(folder)


def processes_in(folder: Path) -> list[str]:
    """The running processes whose working directory is in a folder."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it exited meanwhile, or is a zombie
            if (process / "cwd").readlink().is_relative_to(folder):
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"{process.name} {line}"[:200])
    return found
