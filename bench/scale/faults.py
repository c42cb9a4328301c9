"""Random fault injection from a seed: kill, pause or disconnect processes.

At least one orchestrator is always healthy, and the store has time to recover between two crashes:
the benchmark checks that the rest of the deployment continues, not that it survives a total outage.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from bench.scale.consistency import Outage
from bench.scale.deployment import BalancingProxy, Deployment, EdgeGroup, Orchestrator
from tests.support.fleet_processes import EdgeProcess

WEIGHTS = {
    "kill": 14,
    "stop": 10,
    "cut_store": 8,
    "cut_broker": 8,
    "kill_edge": 16,
    "stop_edge": 6,
    "cut_edge": 14,
    "kill_crowd": 4,
    "kill_broker": 5,
    "crash_store": 5,
}
STORE_CRASH_INTERVAL_S, BROKER_KILL_INTERVAL_S = 45.0, 50.0
"""Minimum seconds between two faults of the kind; a NATS cluster needs about 20 s to recover."""


@dataclass
class FaultInjector:
    """Injects faults until it is stopped; then waits until all processes are healthy again."""

    deployment: Deployment
    http: aiohttp.ClientSession
    rng: random.Random
    pause: float = 3.0
    injected: Counter[str] = field(default_factory=Counter)
    outages: list[Outage] = field(default_factory=list)
    """The outages of orchestrators."""
    store_outages: list[Outage] = field(default_factory=list)
    unready: int = 0
    """Orchestrators that did not become ready again."""
    _faulty: set[str] = field(default_factory=set)
    _last: dict[str, float] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, stop: asyncio.Event) -> None:
        """Inject a fault from time to time."""
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self.rng.uniform(0.4, 1.6) * self.pause):
                    await stop.wait()
            if not stop.is_set():
                self._inject()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _inject(self) -> None:
        name = self.rng.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        work = self._orchestrators(name) or self._edges(name) or self._servers(name)
        if work is not None:
            self.injected[name] += 1
            self._log(f"{name} starts")
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _log(self, line: str) -> None:
        """Append a line to `faults.log`, for debugging."""
        with (self.deployment.folder / "faults.log").open("a") as log:
            log.write(f"{time.time():.3f} {line}\n")

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()

    def _orchestrators(self, name: str) -> Coroutine[Any, Any, None] | None:
        healthy = [
            orchestrator
            for orchestrator in self.deployment.orchestrators
            if orchestrator.name not in self._faulty
        ]
        if name not in ("kill", "stop", "cut_store", "cut_broker") or len(healthy) < 2:
            return None
        target = self.rng.choice(healthy)
        lease = self.deployment.plan.lease
        match name:
            case "kill":
                return self._kill(target, self.rng.uniform(0, 1.5 * lease))
            case "stop":
                return self._pause(target, lease + self.rng.uniform(2.5, 6))
            case "cut_store":
                return self._disconnect(target, target.store, self._duration(lease), name)
            case _:
                return self._disconnect(target, target.broker, self._duration(lease), name)

    def _duration(self, lease: float) -> float:
        """Sometimes a moment, sometimes longer than the lease."""
        return self.rng.choice((self.rng.uniform(0.1, 2), self.rng.uniform(0.5, 1.5) * lease))

    def _edges(self, name: str) -> Coroutine[Any, Any, None] | None:
        deployment = self.deployment
        if name == "kill_crowd" and deployment.edge_groups:
            return self._kill_edge(self.rng.choice(deployment.edge_groups))
        edge = self.rng.choice(deployment.edges)
        if not name.endswith("_edge") or edge.name in self._faulty:
            return None
        match name:
            case "kill_edge":
                return self._kill_edge(edge)
            case "stop_edge":
                return self._pause_edge(edge)
            case _:
                proxy = deployment.edge_proxies[edge.name]
                return self._disconnect(edge, proxy, self.rng.uniform(0.2, 8), name)

    def _servers(self, name: str) -> Coroutine[Any, Any, None] | None:
        intervals = {"crash_store": STORE_CRASH_INTERVAL_S, "kill_broker": BROKER_KILL_INTERVAL_S}
        interval, now = intervals.get(name), time.monotonic()
        if interval is None or now - self._last.get(name, now - interval) < interval:
            return None
        self._last[name] = now
        return self._crash_store() if name == "crash_store" else self._kill_broker()

    async def _kill(self, target: Orchestrator, seconds: float) -> None:
        self._faulty.add(target.name)
        await target.kill()
        since = time.time()
        await asyncio.sleep(seconds)
        await target.start()
        try:
            await target.wait_ready(self.http, restart=True)
        except TimeoutError:
            self.unready += 1  # it stays in _faulty: it gets no more faults
            self._log(f"{target.name} is not ready after its kill: {target.log_text()[-500:]!r}")
            return
        self._recovered(target, since, "kill")

    async def _pause(self, target: Orchestrator, seconds: float) -> None:
        self._faulty.add(target.name)
        os.kill(target.pid, signal.SIGSTOP)
        since = time.time()
        await asyncio.sleep(seconds)
        os.kill(target.pid, signal.SIGCONT)
        self._recovered(target, since, "stop")

    async def _disconnect(
        self,
        target: Orchestrator | EdgeProcess,
        proxy: BalancingProxy,
        seconds: float,
        kind: str,
    ) -> None:
        """Freeze the connections silently, or drop them and refuse new ones."""
        self._faulty.add(target.name)
        since = time.time()
        if self.rng.random() < 0.5:
            proxy.freeze()
            await asyncio.sleep(seconds)
            proxy.thaw()
        else:
            proxy.refuse(True)
            proxy.cut()
            await asyncio.sleep(seconds)
            proxy.refuse(False)
        self._recovered(target, since, kind)

    def _recovered(self, target: Orchestrator | EdgeProcess, since: float, kind: str) -> None:
        self._faulty.discard(target.name)
        self._log(f"{kind} of {target.name} since {since:.3f} is over")
        if isinstance(target, Orchestrator):
            self.outages.append(Outage(target.name, since, time.time(), kind))

    async def _kill_edge(self, edge: EdgeProcess | EdgeGroup) -> None:
        name = edge.name if isinstance(edge, EdgeProcess) else edge.log.stem
        if name in self._faulty:
            return
        self._faulty.add(name)
        await edge.kill()
        await asyncio.sleep(self.rng.uniform(0, 4))
        await edge.start()
        self._faulty.discard(name)

    async def _pause_edge(self, edge: EdgeProcess) -> None:
        self._faulty.add(edge.name)
        edge.signal(signal.SIGSTOP)
        await asyncio.sleep(self.rng.uniform(1, 10))
        edge.signal(signal.SIGCONT)
        self._faulty.discard(edge.name)

    async def _crash_store(self) -> None:
        since = time.time()
        await asyncio.to_thread(self.deployment.postgres.stop, signal.SIGQUIT)
        await asyncio.sleep(self.rng.uniform(0, 3))
        await asyncio.to_thread(self.deployment.postgres.start)
        self._log(f"crash_store since {since:.3f} is over")
        self.store_outages.append(Outage("store", since, time.time(), "crash_store"))

    async def _kill_broker(self) -> None:
        broker = self.rng.choice(self.deployment.brokers)
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(self.rng.uniform(0, 5))
        await broker.start()
