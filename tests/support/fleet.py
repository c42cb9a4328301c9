"""An orchestrator and its edges in one process, over the in-memory link, with real stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import msgspec

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.commands import CommandRow
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.ports import Policy, Ports, Provider
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.edge.assemble import assemble
from evoclaw.edge.device import DeviceLimits, EdgeIdentity, OrchestratorClock
from evoclaw.edge.edge import Edge
from evoclaw.edge.model_files import FindModelFile, no_model_files
from evoclaw.edge.model_receiver import ModelReceiver
from evoclaw.edge.plans import GrantCheck, no_grants
from evoclaw.executors.edge import Grants, ungranted
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.permissions import Permissions
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.providers.scripted import Scripted
from evoclaw.store.calls.artifacts import ArtifactStore
from evoclaw.store.calls.commands import CommandStore
from evoclaw.store.calls.journal import Journal
from evoclaw.tools.define import tool
from evoclaw.transport.link import Incoming, MessageProperties, Party, Will
from evoclaw.transport.memory import MemoryBroker, MemoryLink
from evoclaw.transport.topics import TopicKind, topic
from evoclaw.transport.wire import Command, encode
from tests.support.waiting import until

EVERYTHING = Permissions(frozenset({"*"}))
QUICK = DeviceLimits(
    resend_delay_s=0.1, hello_retry_delay_s=0.1, max_hello_delay_s=0.02, accepted_delay_s=0.02
)
TOLD_ONCE = msgspec.structs.replace(QUICK, resend_delay_s=60.0)
"""For tests in which nobody acknowledges: nothing is told twice by itself."""
AGAIN = (0.1, 0.2, 0.4)


class Fault(Enum):
    """What becomes of a message."""

    NONE = "none"
    DROP = "drop"
    TWICE = "twice"
    LATER = "later"


class BadLink(MemoryLink):
    """A link on which a test decides what becomes of each message that is sent."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.fault: Callable[[str, bytes], Fault] = lambda topic, payload: Fault.NONE
        self.rewrite: Callable[[str, bytes], bytes] = lambda topic, payload: payload
        self.sent: list[tuple[str, bytes]] = []
        self.delay: Callable[[], float] = lambda: 0.01

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        properties: MessageProperties | None = None,
    ) -> None:
        fault = self.fault(topic, payload)
        self.sent.append((topic, payload))
        payload = self.rewrite(topic, payload)
        match fault:
            case Fault.DROP:
                return
            case Fault.LATER:
                loop = asyncio.get_running_loop()
                loop.call_later(self.delay(), self._late, topic, payload, retain)
                return
            case Fault.TWICE:
                await super().publish(topic, payload, retain=retain, properties=properties)
                await super().publish(topic, payload, retain=retain, properties=properties)
            case Fault.NONE:
                await super().publish(topic, payload, retain=retain, properties=properties)

    def _late(self, topic: str, payload: bytes, retain: bool) -> None:
        if self._broker.is_up:
            self._broker.publish(topic, payload, retain=retain)

    def drop_next(self, *words: str, count: int = 1) -> Callable[[], int]:
        """Lose the next messages that have all these words in them; how many were lost."""
        lost = 0

        def fault(topic: str, payload: bytes) -> Fault:
            nonlocal lost
            if lost < count and all(word.encode() in payload for word in words):
                lost += 1
                return Fault.DROP
            return Fault.NONE

        self.fault = fault
        return lambda: lost


@dataclass
class EffectCounter:
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

        @tool("file_read", effect="read", timeout=30)
        async def look(text: str, hold: bool = False) -> str:
            """Look at something, if so told until let go."""
            marks.made.append(text)
            if hold:
                marks.waiting.set()
                await marks.gate.wait()
            return f"saw {text}"

        return [mark, hold, look]


@dataclass
class Device:
    """One edge that can be started, stopped cleanly, or cut off."""

    agent_id: str
    link: BadLink
    folder: Path
    executor: LocalExecutor
    policy: Policy
    provider: Provider | None
    limits: DeviceLimits
    agent_type: str = "sensor"
    summary: str = ""
    check: GrantCheck = no_grants
    clock: OrchestratorClock | None = None
    durable: bool = False
    edge: Edge | None = None
    artifacts: ArtifactStore | None = None
    find_model_file: FindModelFile = no_model_files
    model_receiver: ModelReceiver | None = None
    _task: asyncio.Task[None] | None = None
    _journal: Journal | None = None

    @property
    def journal(self) -> Journal:
        assert self._journal is not None
        return self._journal

    async def start(self) -> Edge:
        path = self.folder / f"{self.agent_id}.db"
        self._journal = await Journal.open(path, durable=self.durable)
        self.edge = await assemble(
            EdgeIdentity(self.agent_id, self.agent_type, self.summary),
            self.link,
            self._journal,
            Ports(self.provider or Scripted(), self.executor, self.policy),
            has_model=self.provider is not None,
            limits=self.limits,
            check=self.check,
            clock=self.clock or OrchestratorClock(),
            artifacts=self.artifacts,
            find_model_file=self.find_model_file,
            model_receiver=self.model_receiver,
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
        await self._end()
        self.link.plug()

    def lose_journal(self) -> None:
        """As after a new disk."""
        for path in self.folder.glob(f"{self.agent_id}.db*"):
            path.unlink()

    async def ended(self) -> None:
        """Wait until it has left by itself."""
        await self._end()

    async def _end(self) -> None:
        assert self._task is not None
        assert self._journal is not None
        try:
            with suppress(asyncio.CancelledError):
                async with asyncio.timeout(20):
                    await self._task
        finally:
            await self._journal.close()
            self._task = self.edge = self._journal = None


@dataclass
class FleetHarness:
    """Everybody."""

    folder: Path
    broker: MemoryBroker
    devices: dict[str, Device]
    marks: EffectCounter
    grants: Grants
    link: BadLink
    silence: float = 30.0
    again: Sequence[float] = AGAIN
    refusal: Callable[[str], str] = lambda _: ""
    stores: type[CommandStore] = CommandStore
    _orchestrator: Orchestrator | None = None
    _store: CommandStore | None = None
    _stack: AsyncExitStack | None = None
    asking: set[asyncio.Task[ToolResult]] = field(default_factory=set[asyncio.Task[ToolResult]])

    @property
    def orchestrator(self) -> Orchestrator:
        assert self._orchestrator is not None
        return self._orchestrator

    @property
    def store(self) -> CommandStore:
        assert self._store is not None
        return self._store

    @property
    def pi(self) -> Device:
        return self.devices["pi"]

    async def open(self) -> Orchestrator:
        """Begin an orchestrator on the store that there is."""
        stack = AsyncExitStack()
        path = self.folder / "orchestrator.db"
        self._store = await self.stores.open(path, durable=False, defer_outcomes=True)
        await stack.enter_async_context(self._store)
        self._orchestrator = Orchestrator(
            self.link,
            self._store,
            grants=self.grants,
            refusal=self.refusal,
            retry_delays=self.again,
            progress_timeout=self.silence,
        )
        await stack.enter_async_context(self._orchestrator.connected())
        self._stack = stack
        return self._orchestrator

    async def close(self) -> None:
        """End it cleanly."""
        if self._stack is not None:
            await self._stack.aclose()
        self._orchestrator = self._store = self._stack = None

    async def crash(self) -> None:
        """End the orchestrator without another word."""
        self.link.unplug()
        await self.orchestrator.requests.close(0)
        for task in tuple(self.asking):
            task.cancel()
        if self.asking:
            await asyncio.wait(self.asking)
        self.asking.clear()
        await self.close()
        self.link.plug()

    async def restart(self) -> None:
        """Another orchestrator on the same store, and everybody there again."""
        await self.crash()
        await self.open()

    async def wait_online(self, *names: str) -> None:
        for name in names or ("pi",):
            await self.orchestrator.wait_for(name, 5)

    async def run_tool(self, name: str, agent_id: str = "pi", **given: JSON) -> ToolResult:
        """Have one tool run on one edge, as the loop would; what it raises is a result too."""
        queue = given.pop("queue", 5.0)
        executor = self.orchestrator.edge(agent_id, queue=queue)
        call = self.call(name, **given)
        try:
            async with asyncio.timeout(30):
                return await executor.execute(call, lambda text: None)
        except ToolFailure as problem:
            return call.failed(problem.kind, problem.message, **problem.details)

    def start_tool(
        self, name: str, agent_id: str = "pi", **given: JSON
    ) -> asyncio.Task[ToolResult]:
        """The same, beside the rest."""
        task = asyncio.create_task(self.run_tool(name, agent_id, **given))
        self.asking.add(task)
        task.add_done_callback(self.asking.discard)
        return task

    def call(self, name: str, **given: JSON) -> Call:
        """A call as the loop makes it, each with an id of its own unless one is given."""
        request_id = given.pop("request_id", None) or new_id()
        epoch, timeout = given.pop("epoch", 1), given.pop("timeout", None)
        found = self.tool(name)
        return Call("c1", found, given, request_id, timeout or found.timeout, epoch=epoch)

    def tool(self, name: str) -> Tool:
        """A tool as the edges have it, whether they are there or not."""
        device = next(iter(self.devices.values()))
        found = Toolset.of(device.executor.tools()).find(name)
        assert found is not None, f"no tool {name}"
        return found[0]

    def publish_command(
        self, command: Command | bytes, agent_id: str = "pi", *, retain: bool = False
    ) -> None:
        """Publish a command as a stranger would."""
        payload = command if isinstance(command, bytes) else encode(command)
        self.broker.publish(topic(agent_id, TopicKind.COMMANDS), payload, retain=retain)

    def publish_as_edge(
        self, kind: TopicKind, payload: bytes, agent_id: str = "pi", *, retain: bool = False
    ) -> None:
        """Publish something as an edge would."""
        self.broker.publish(topic(agent_id, kind), payload, retain=retain)

    async def row(self, request_id: str) -> CommandRow:
        """What the orchestrator's store knows of a command."""
        found = await self.store.get(request_id)
        assert found is not None, f"no command {request_id}"
        return found

    async def state(self, request_id: str) -> str:
        """How far the store says that a command came."""
        found = await self.store.get(request_id)
        return "" if found is None else str(found.state)

    async def wait_for_state(self, request_id: str, state: str) -> None:
        async def so() -> bool:
            return await self.state(request_id) == state

        await until(so)


class BrokerListener:
    """Somebody who hears everything."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._link = MemoryLink(broker)
        self.heard: list[Incoming] = []
        self._up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> BrokerListener:
        party: Party = self
        self._task = asyncio.create_task(self._link.run(party))
        await self._up.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    @property
    def client_id(self) -> str:
        return "ear"

    @property
    def subscriptions(self) -> Sequence[str]:
        return ("evoclaw/#",)

    def will(self) -> Will | None:
        return None

    async def connected(self) -> None:
        self._up.set()

    def disconnected(self, reason: str) -> None:
        self._up.clear()

    def received(self, message: Incoming) -> None:
        self.heard.append(message)

    def reports(self, agent_id: str = "pi") -> list[JSON]:
        """What an edge reported, in order."""
        name = topic(agent_id, TopicKind.REPORTS)
        return [msgspec.json.decode(one.payload) for one in self.heard if one.topic == name]

    def results_of(self, request_id: str, agent_id: str = "pi") -> list[JSON]:
        """How an edge said that a call ended, each time it did."""
        return [
            report["payload"]
            for report in self.reports(agent_id)
            if report["report_type"] in ("result", "error")
            and report["payload"].get("request_id") == request_id
        ]


_RUNS = iter(range(1, 10**9))


def new_id() -> str:
    """The request id of the first call of a new run."""
    return f"{next(_RUNS):032x}.1.0.1"


def tool_command(tool: str, request_id: str = "", **given: JSON) -> Command:
    """The command to run a tool, as an orchestrator would write it."""
    fields = {
        name: given.pop(name) for name in ("expires_at", "epoch", "v", "hops") if name in given
    }
    request_id = request_id or new_id()
    more = {name: given.pop(name) for name in ("background", "timeout_ms") if name in given}
    payload: dict[str, JSON] = {"tool": tool, "parameters": given, **more}
    return Command("tool", payload, request_id, run_id=request_id.partition(".")[0], **fields)


@asynccontextmanager
async def open_fleet(
    folder: Path,
    *agents: str,
    provider: Provider | None = None,
    policy: Policy = EVERYTHING,
    limits: DeviceLimits = QUICK,
    start: bool = True,
    check: GrantCheck = no_grants,
    grants: Grants = ungranted,
    tools: Sequence[BoundTool] = (),
    executor: LocalExecutor | None = None,
    silence: float = 30.0,
    refusal: Callable[[str], str] = lambda _: "",
) -> AsyncGenerator[FleetHarness]:
    """An orchestrator and some edges, all talking."""
    broker, marks = MemoryBroker(), EffectCounter()
    devices = {
        agent_id: Device(
            agent_id,
            BadLink(broker),
            folder,
            executor or LocalExecutor([*marks.tools(), *tools]),
            policy,
            provider,
            limits,
            check=check,
        )
        for agent_id in agents or ("pi",)
    }
    here = FleetHarness(
        folder, broker, devices, marks, grants, BadLink(broker), silence, refusal=refusal
    )
    try:
        await here.open()
        if start:
            for device in devices.values():
                await device.start()
            await here.wait_online(*devices)
        yield here
    finally:
        marks.gate.set()
        for task in here.asking:
            task.cancel()
        for device in devices.values():
            if device.edge is not None:
                await device.stop()
        await here.close()
