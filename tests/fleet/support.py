"""An orchestrator and its edges in one process, over the in-memory link, with real stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from evoclaw.core.bound import BoundTool
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.ports import Policy, Ports, Provider
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.edge.edge import Edge
from evoclaw.edge.fitness import Outcomes
from evoclaw.edge.genome import Genomes
from evoclaw.edge.identity import Identity, Limits
from evoclaw.edge.parts import Parts
from evoclaw.edge.plans import Planner, ToolPlans
from evoclaw.edge.prompts import PromptPlans
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.permissions import Permissions
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.providers.scripted import Scripted
from evoclaw.store.commands import CommandStore
from evoclaw.store.journal import Journal
from evoclaw.tools.define import tool
from evoclaw.transport.memory import MemoryBroker, MemoryLink

EVERYTHING = Permissions(frozenset({"*"}))


@dataclass
class Marks:
    """Counts what really happened, and lets a test hold a call."""

    made: list[str] = field(default_factory=list[str])
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)

    def tools(self) -> list[BoundTool]:
        marks = self

        @tool("shell")
        async def mark(text: str) -> str:
            """Make a mark."""
            marks.made.append(text)
            return f"marked {text}"

        @tool("shell", timeout=30)
        async def hold(text: str) -> str:
            """Make a mark, then wait until let go."""
            marks.made.append(text)
            marks.waiting.set()
            await marks.gate.wait()
            return f"held {text}"

        @tool("file_read", effect="read")
        async def look(text: str) -> str:
            """Look at something."""
            marks.made.append(text)
            return f"saw {text}"

        return [mark, hold, look]


@dataclass
class Device:
    """One edge that can be started, stopped cleanly, or cut off."""

    agent_id: str
    link: MemoryLink
    journal_path: Path
    executor: LocalExecutor
    policy: Policy
    provider: Provider | None
    limits: Limits
    agent_type: str = "sensor"
    edge: Edge | None = None
    _task: asyncio.Task[None] | None = None
    _journal: Journal | None = None

    async def start(self) -> Edge:
        self._journal = await Journal.open(self.journal_path, durable=False)
        ports = Ports(self.provider or Scripted(), self.executor, self.policy)
        genomes = Genomes(self._journal)
        await genomes.load()
        prompts = PromptPlans(ports if self.provider else None, genomes.current)
        planners: dict[str, Planner] = {
            "tool": ToolPlans(ports).plan,
            "execute": ToolPlans(ports).plan,
            "prompt": prompts.plan,
        }
        self.edge = Edge(
            Parts(
                Identity(self.agent_id, self.agent_type),
                self.link,
                self._journal,
                self.executor,
                planners,
                genomes,
                Outcomes(),
                self.limits,
                has_model=self.provider is not None,
            )
        )
        self._task = asyncio.create_task(self.edge.run())
        return self.edge

    async def stop(self) -> None:
        """Leave cleanly."""
        assert self.edge is not None
        self.edge.stop()
        await self._end()

    async def crash(self) -> None:
        """End without another word: the link is dead first, then everything is cancelled."""
        assert self._task is not None
        self.link.unplug()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        assert self.edge is not None
        await self.edge.abandon()
        await self._end()
        self.link.plug()

    async def _end(self) -> None:
        assert self._task is not None
        assert self._journal is not None
        with suppress(asyncio.CancelledError):
            await self._task
        await self._journal.close()
        self._task = self.edge = self._journal = None


@dataclass
class House:
    """Everybody."""

    broker: MemoryBroker
    orchestrator: Orchestrator
    store: CommandStore
    link: MemoryLink
    devices: dict[str, Device]
    marks: Marks

    async def ask(self, name: str, agent_id: str = "pi", **given: JSON) -> ToolResult:
        """Have one tool run on one edge, as the loop would."""
        queue = given.pop("queue", 5.0)
        executor = self.orchestrator.edge(agent_id, queue=queue)
        call = self.call(executor.tools(), name, **given)
        return await executor.execute(call, lambda text: None)

    def call(self, tools: Sequence[Tool], name: str, **given: JSON) -> Call:
        """A call as the loop makes it, each with an id of its own unless one is given."""
        request_id = given.pop("request_id", None) or f"{next(_RUNS):032x}.1.0.1"
        epoch = given.pop("epoch", 1)
        found = Toolset.of(tools).find(name)
        assert found is not None, f"no tool {name}"
        return Call("c1", found[0], given, request_id, found[0].timeout, epoch=epoch)


_RUNS = iter(range(1, 10**9))


@asynccontextmanager
async def house(
    folder: Path,
    *agents: str,
    provider: Provider | None = None,
    policy: Policy = EVERYTHING,
    limits: Limits = Limits(),
    start: bool = True,
) -> AsyncGenerator[House]:
    """An orchestrator and some edges, all talking."""
    broker, marks = MemoryBroker(), Marks()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            await CommandStore.open(folder / "orchestrator.db", durable=False)
        )
        link = MemoryLink(broker)
        orchestrator = Orchestrator(link, store)
        await stack.enter_async_context(orchestrator.connected())
        devices = {
            agent_id: Device(
                agent_id,
                MemoryLink(broker),
                folder / f"{agent_id}.db",
                LocalExecutor(marks.tools()),
                policy,
                provider,
                limits,
            )
            for agent_id in agents or ("pi",)
        }
        here = House(broker, orchestrator, store, link, devices, marks)
        try:
            if start:
                for device in devices.values():
                    await device.start()
                    await orchestrator.wait_for(device.agent_id, 5)
            yield here
        finally:
            marks.gate.set()
            for device in devices.values():
                if device.edge is not None:
                    await device.stop()


async def until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 5.0) -> None:
    """Wait, bounded, until something is so."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.005)
