"""Random faults, from a seed: who is killed, stopped or cut off, and when.

One orchestrator at least is always well, and the store has time to recover between two crashes:
what is asked is whether the rest goes on, not whether anything goes on without anybody.
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
from bench.scale.consistency import Spell
from bench.scale.deployment import Crowd, House, Orchestrator, Way
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
STORE_EVERY, BROKER_EVERY = 45.0, 50.0
"""Seconds between two deaths of each; a cluster needs some twenty to be itself again."""


@dataclass
class Trouble:
    """Makes faults until told to stop; then everything is mended."""

    house: House
    http: aiohttp.ClientSession
    chance: random.Random
    pause: float = 3.0
    made: Counter[str] = field(default_factory=Counter)
    spells: list[Spell] = field(default_factory=list)
    """When which orchestrator was away."""
    blind: list[Spell] = field(default_factory=list)
    """When the store was."""
    unready: int = 0
    """Orchestrators that did not come back."""
    _ill: set[str] = field(default_factory=set)
    _last: dict[str, float] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, stop: asyncio.Event) -> None:
        """Make a fault now and then."""
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self.chance.uniform(0.4, 1.6) * self.pause):
                    await stop.wait()
            if not stop.is_set():
                self._one()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _one(self) -> None:
        name = self.chance.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        work = self._orchestrators(name) or self._edges(name) or self._engines(name)
        if work is not None:
            self.made[name] += 1
            self._say(f"{name} begins")
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _say(self, line: str) -> None:
        """For whoever looks into what was kept."""
        with (self.house.folder / "faults.log").open("a") as log:
            log.write(f"{time.time():.3f} {line}\n")

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()

    def _orchestrators(self, name: str) -> Coroutine[Any, Any, None] | None:
        well = [one for one in self.house.orchestrators if one.name not in self._ill]
        if name not in ("kill", "stop", "cut_store", "cut_broker") or len(well) < 2:
            return None
        one = self.chance.choice(well)
        lease = self.house.plan.lease
        match name:
            case "kill":
                return self._kill(one, self.chance.uniform(0, 1.5 * lease))
            case "stop":
                return self._stop(one, lease + self.chance.uniform(2.5, 6))
            case "cut_store":
                return self._cut(one, one.store, self._seconds(lease), name)
            case _:
                return self._cut(one, one.broker, self._seconds(lease), name)

    def _seconds(self, lease: float) -> float:
        """Sometimes a moment, sometimes longer than the others wait."""
        return self.chance.choice(
            (self.chance.uniform(0.1, 2), self.chance.uniform(0.5, 1.5) * lease)
        )

    def _edges(self, name: str) -> Coroutine[Any, Any, None] | None:
        house = self.house
        if name == "kill_crowd" and house.crowds:
            return self._kill_edge(self.chance.choice(house.crowds))
        edge = self.chance.choice(house.edges)
        if not name.endswith("_edge") or edge.name in self._ill:
            return None
        match name:
            case "kill_edge":
                return self._kill_edge(edge)
            case "stop_edge":
                return self._stop_edge(edge)
            case _:
                return self._cut(edge, house.ways[edge.name], self.chance.uniform(0.2, 8), name)

    def _engines(self, name: str) -> Coroutine[Any, Any, None] | None:
        every = {"crash_store": STORE_EVERY, "kill_broker": BROKER_EVERY}.get(name)
        now = time.monotonic()
        if every is None or now - self._last.get(name, now - every) < every:
            return None
        self._last[name] = now
        return self._crash_store() if name == "crash_store" else self._kill_broker()

    async def _kill(self, one: Orchestrator, seconds: float) -> None:
        self._ill.add(one.name)
        await one.end()
        since = time.time()
        await asyncio.sleep(seconds)
        await one.start()
        try:
            await one.ready(self.http, again=True)
        except TimeoutError:
            self.unready += 1  # it stays ill: nothing more is done to it
            self._say(f"{one.name} is not ready after its kill: {one.words()[-500:]!r}")
            return
        self._note(one, since, "kill")

    async def _stop(self, one: Orchestrator, seconds: float) -> None:
        self._ill.add(one.name)
        os.kill(one.pid, signal.SIGSTOP)
        since = time.time()
        await asyncio.sleep(seconds)
        os.kill(one.pid, signal.SIGCONT)
        self._note(one, since, "stop")

    async def _cut(
        self, one: Orchestrator | EdgeProcess, way: Way, seconds: float, kind: str
    ) -> None:
        """Either nothing goes through and nobody is told, or connections break and stay away."""
        self._ill.add(one.name)
        since = time.time()
        if self.chance.random() < 0.5:
            way.freeze()
            await asyncio.sleep(seconds)
            way.thaw()
        else:
            way.refuse(True)
            way.cut()
            await asyncio.sleep(seconds)
            way.refuse(False)
        self._note(one, since, kind)

    def _note(self, one: Orchestrator | EdgeProcess, since: float, kind: str) -> None:
        self._ill.discard(one.name)
        self._say(f"{kind} of {one.name} since {since:.3f} is over")
        if isinstance(one, Orchestrator):
            self.spells.append(Spell(one.name, since, time.time(), kind))

    async def _kill_edge(self, edge: EdgeProcess | Crowd) -> None:
        name = edge.name if isinstance(edge, EdgeProcess) else edge.log.stem
        if name in self._ill:
            return
        self._ill.add(name)
        await edge.kill()
        await asyncio.sleep(self.chance.uniform(0, 4))
        await edge.start()
        self._ill.discard(name)

    async def _stop_edge(self, edge: EdgeProcess) -> None:
        self._ill.add(edge.name)
        edge.signal(signal.SIGSTOP)
        await asyncio.sleep(self.chance.uniform(1, 10))
        edge.signal(signal.SIGCONT)
        self._ill.discard(edge.name)

    async def _crash_store(self) -> None:
        since = time.time()
        await asyncio.to_thread(self.house.postgres.stop, signal.SIGQUIT)
        await asyncio.sleep(self.chance.uniform(0, 3))
        await asyncio.to_thread(self.house.postgres.start)
        self._say(f"crash_store since {since:.3f} is over")
        self.blind.append(Spell("store", since, time.time(), "crash_store"))

    async def _kill_broker(self) -> None:
        broker = self.chance.choice(self.house.brokers)
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(self.chance.uniform(0, 5))
        await broker.start()
