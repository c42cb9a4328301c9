"""Everything that can go wrong, at random and all at once; then the books must balance."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.commands import CommandState
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.orchestrator.fleet.command_cleanup import CommandCleanup
from evoclaw.tools.define import tool
from evoclaw.transport.wire import Outcome
from tests.support.fleet import QUICK, BadLink, Fault, FleetHarness, new_id, open_fleet
from tests.support.waiting import until

SEEDS = range(int(os.environ.get("EVOCLAW_TORTURE", "5")))
"""More of them: EVOCLAW_TORTURE=500."""
STEPS = 60
EDGES = ("pi", "desk")
LIMITS = msgspec.structs.replace(
    QUICK,
    resend_delay_s=0.05,
    hello_retry_delay_s=0.05,
    max_hello_delay_s=0.01,
    accepted_delay_s=0.005,
    heartbeat_s=0.2,
    queue=20,
)
NEVER_BEGAN = (ErrorKind.EXPIRED, ErrorKind.QUEUE_FULL, ErrorKind.CONFLICT, ErrorKind.TOO_LARGE)


@dataclass
class Asked:
    """One call, asked for until it is answered."""

    request_id: str
    agent_id: str
    name: str
    queue: float
    epoch: int = 1
    task: asyncio.Task[ToolResult] | None = None
    cancelled: bool = False
    answers: list[ToolResult] = field(default_factory=list[ToolResult])


@dataclass
class World:
    """Who does what to whom."""

    here: FleetHarness
    chance: random.Random
    began: Counter[str] = field(default_factory=Counter[str])
    ended: Counter[str] = field(default_factory=Counter[str])
    asked: list[Asked] = field(default_factory=list[Asked])

    def fault(self, topic: str, payload: bytes) -> Fault:
        faults = (Fault.DROP, Fault.TWICE, Fault.LATER, Fault.NONE)
        return self.chance.choices(faults, (10, 10, 10, 70))[0]

    def links(self) -> list[BadLink]:
        return [self.here.link, *(device.link for device in self.here.devices.values())]

    def ask(self) -> None:
        """Have something new done."""
        name = self.chance.choice(["mark_slowly", "mark_slowly", "look_slowly"])
        queue = self.chance.choice([0.1, 0.5, 20.0, 20.0])
        one = Asked(new_id(), self.chance.choice(EDGES), name, queue)
        self.asked.append(one)
        self.send(one)

    def send(self, one: Asked) -> None:
        one.task = self.here.start_tool(
            one.name,
            one.agent_id,
            text=one.request_id,
            request_id=one.request_id,
            epoch=one.epoch,
            queue=one.queue,
        )

    def open(self) -> list[Asked]:
        return [one for one in self.asked if one.task is not None and not one.task.done()]

    def cancel(self) -> None:
        if found := self.open():
            one = self.chance.choice(found)
            assert one.task is not None
            one.cancelled = True
            one.task.cancel()

    async def edge(self) -> None:
        """Kill an edge, stop it, or start it again."""
        device = self.here.devices[self.chance.choice(EDGES)]
        if device.edge is None:
            await device.start()
        elif self.chance.random() < 0.7:
            await device.crash()
        else:
            await device.stop()

    async def orchestrator(self) -> None:
        """Kill the orchestrator; the next one asks again for what was not answered."""
        waiting = [one for one in self.open() if not one.cancelled]
        await self.here.restart()
        for one in waiting:
            one.epoch += 1
            self.send(one)

    async def network(self) -> None:
        """Cut somebody off for a moment, or lose the broker."""
        if self.chance.random() < 0.5:
            self.chance.choice(self.links()).drop()
        elif self.here.broker.is_up:
            self.here.broker.down(forget=self.chance.random() < 0.5)
        else:
            self.here.broker.up()

    async def step(self) -> None:
        deed = self.chance.choices(
            ["ask", "cancel", "edge", "orchestrator", "network", "wait"], (50, 4, 8, 4, 8, 26)
        )[0]
        match deed:
            case "ask":
                self.ask()
            case "cancel":
                self.cancel()
            case "edge":
                await self.edge()
            case "orchestrator":
                await self.orchestrator()
            case "network":
                await self.network()
            case _:
                await asyncio.sleep(self.chance.uniform(0, 0.05))

    async def heal(self) -> None:
        """Everything works again; wait until nobody waits."""
        for link in self.links():
            link.fault = lambda topic, payload: Fault.NONE
        self.here.broker.up()
        for device in self.here.devices.values():
            if device.edge is None:
                await device.start()
        for one in self.asked:
            assert one.task is not None
            await asyncio.wait([one.task], timeout=20)
            assert one.task.done(), f"{one} was never answered"
            if not one.task.cancelled():
                one.answers.append(one.task.result())


async def outcomes(here: FleetHarness, request_id: str) -> tuple[CommandState, Outcome | None]:
    row = await here.row(request_id)
    found = None if row.outcome is None else msgspec.json.decode(row.outcome, type=Outcome)
    return row.state, found


async def settled(here: FleetHarness) -> bool:
    """Nobody has anything left to do or to tell."""
    await CommandCleanup(here.store, here.orchestrator.requests).clean_up()
    for name, device in here.devices.items():
        if await here.store.wanted(name, 0.0) or await here.store.cancelling(name):
            return False
        if await device.journal.open_calls() or await device.journal.unacknowledged_ids(100):
            return False
    return True


async def balance(world: World, one: Asked) -> None:
    """What was told of one call is what happened."""
    if one.name == "mark_slowly":
        assert world.began[one.request_id] <= 1, f"{one} began twice"
    else:
        assert world.began[one.request_id] <= 2, f"{one} began more than twice"
    if await world.here.store.get(one.request_id) is None:
        assert one.cancelled and not world.began[one.request_id], f"{one} was never stored"
        return
    state, outcome = await outcomes(world.here, one.request_id)
    assert state in (CommandState.SETTLED, CommandState.EXPIRED), f"{one} is {state}"
    if state is CommandState.EXPIRED:
        assert not world.began[one.request_id], f"{one} expired, but began"
        return
    assert outcome is not None
    if outcome.status == "success":
        assert world.ended[one.request_id], f"{one} is said to have worked"
    if outcome.error_type in NEVER_BEGAN:
        assert not world.began[one.request_id], f"{one} is {outcome.error_type}, but began"
    for answer in one.answers:
        told = ErrorKind(outcome.error_type) if outcome.error_type else None
        retried = one.name == "look_slowly" and told is ErrorKind.UNKNOWN
        assert answer.error is told or retried, f"{one} was told otherwise"
        if answer.error is None:
            assert world.ended[one.request_id], f"{one} was told that it worked"


def tools(find: Callable[[], World]) -> list[BoundTool]:
    async def work(text: str) -> str:
        world = find()
        world.began[text] += 1
        await asyncio.sleep(world.chance.choice([0, 0, 0.005, 0.05]))
        world.ended[text] += 1
        return f"did {text}"

    @tool("shell")
    async def mark_slowly(text: str) -> str:
        """Do something that must not be done twice."""
        return await work(text)

    @tool("file_read", effect="read")
    async def look_slowly(text: str) -> str:
        """Do something that does no harm."""
        return await work(text)

    return [mark_slowly, look_slowly]


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_faults_never_duplicate_a_call_or_lose_its_outcome(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    worlds: list[World] = []
    made = tools(lambda: worlds[0])
    async with open_fleet(tmp_path, *EDGES, limits=LIMITS, tools=made) as here:
        world = World(here, chance)
        worlds.append(world)
        for link in world.links():
            link.fault = world.fault
            link.delay = lambda: chance.uniform(0, 0.1)
        for _ in range(STEPS):
            await world.step()
        await world.heal()
        await until(lambda: settled(here), 15, "nothing is left to do or to tell")
        for one in world.asked:
            await balance(world, one)
