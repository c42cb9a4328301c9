"""Costs of a fleet with 10 to 5,000 edges, of a call to all of them, and of agent definitions."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import msgspec
from bench.growth.curves import FLAT, LINEAR, Curve
from bench.growth.measure import Op, Points, count_calls, lowest_cpu_us
from tests.support.light_edges import do_nothing, light_edge

from evoclaw.api.routes.fleet import list_edges, show_edge
from evoclaw.config.evoclaw_toml import read_evoclaw_toml
from evoclaw.core.tools import Call, Tool
from evoclaw.orchestrator.fleet.edge_call import EdgeCall
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.store.calls.commands import CommandStore
from evoclaw.transport.address import Address
from evoclaw.transport.broker import EmbeddedBroker
from evoclaw.transport.link import Incoming
from evoclaw.transport.mqtt import MqttLink
from evoclaw.transport.topics import TopicKind, topic
from evoclaw.transport.wire import (
    Advert,
    AdvertisedTool,
    Heartbeat,
    Report,
    ReportType,
    Status,
    as_payload,
    encode,
)

SIZES = {True: (10, 100, 1_000), False: (10, 100, 1_000, 5_000)}
REAL = {True: (10, 30, 100), False: (10, 30, 100, 300)}
"""Real edges, for a call to all of them."""
DEFINED = (10, 100, 1_000, 3_000)
"""Agent definitions; 3,000 is about the most that one settings file can hold."""
PAGE = 5
"""A page size that exists at the smallest size, too."""
BOOT = "boot-1"
ONLINE_TIMEOUT_S = 60.0


async def curves(quick: bool) -> AsyncGenerator[Curve]:
    """All curves."""
    points = Points()
    with TemporaryDirectory(prefix="growth-") as name:
        folder = Path(name)
        async with EmbeddedBroker(folder / "broker", anonymous=True) as broker:
            address = Address("127.0.0.1", broker.port)
            async with (
                _orchestrator(address, folder / "many.db") as orchestrator,
                light_edge("real", address, folder),
            ):
                await orchestrator.wait_for("real", ONLINE_TIMEOUT_S)
                for size in SIZES[quick]:
                    await _at(points, orchestrator, size)
            for size in REAL[quick]:
                with TemporaryDirectory(prefix="growth-") as own:
                    await _fan_out(points, address, Path(own), size)
        for size in DEFINED:
            await _definitions(points, folder, size)
    for curve in points.curves():
        yield curve


@asynccontextmanager
async def _orchestrator(address: Address, path: Path) -> AsyncGenerator[Orchestrator]:
    async with await CommandStore.open(path, durable=False) as store:
        orchestrator = Orchestrator(MqttLink(address), store)
        async with orchestrator.connected():
            yield orchestrator


async def _register(orchestrator: Orchestrator, name: str) -> None:
    """Register an edge as if it had sent its status, advert and tools."""
    fleet, tool = orchestrator.fleet, do_nothing.tool
    hashes = [AdvertisedTool(tool.name, "", "1")]
    fleet.on_status(Status(name, "online", BOOT, 1), retained=False)
    fleet.on_advert(Advert(name, "A sensor.", agent_type="sensor", tools=hashes))
    await fleet.set_tools(name, [tool], {tool.name: "1"})
    fleet.member(name).last_hello = (BOOT, 1)


def _name(number: int) -> str:
    return f"edge-{number:05d}"


async def _at(points: Points, orchestrator: Orchestrator, size: int) -> None:
    for number in range(orchestrator.fleet.size, size):
        await _register(orchestrator, _name(number))
    ops: dict[str, tuple[Op, float]] = {
        "process a heartbeat": (_heartbeat(orchestrator), FLAT),
        "register a new edge": (_new(orchestrator), FLAT),
        "list the tools of a run, unchanged": (_tools(orchestrator, change=False), FLAT),
        "list the tools of a run, after a change": (_tools(orchestrator, change=True), LINEAR),
        "call one edge": (_call(orchestrator), FLAT),
        "choose an edge for a tool": (_choose(orchestrator), FLAT),
        "find silent edges": (_sweep(orchestrator), LINEAR),
        "show one edge": (_shown(orchestrator, one=True), FLAT),
        "list a page of the fleet": (_page(orchestrator), FLAT),
        "list the fleet": (_shown(orchestrator, one=False), LINEAR),
    }
    for name, (op, allowed) in ops.items():
        if allowed == LINEAR:
            # Calls, not time: thousands of edges exceed the CPU cache, which distorts the time.
            points.add(name, "calls", allowed, size, await count_calls(op))
        else:
            points.add(name, "µs", allowed, size, await lowest_cpu_us(op, times=5))


def _heartbeat(orchestrator: Orchestrator) -> Op:
    beat = Report(_name(1), "sensor", ReportType.HEARTBEAT, as_payload(Heartbeat(BOOT, 1, room=8)))
    message = Incoming(topic(_name(1), TopicKind.REPORTS), encode(beat))

    async def op() -> None:
        orchestrator.report_receiver.received(message)

    return op


def _new(orchestrator: Orchestrator) -> Op:
    names = (f"new-{secrets.token_hex(4)}" for _ in count())

    async def op() -> None:
        name = next(names)
        status = encode(Status(name, "online", BOOT, 1))
        orchestrator.report_receiver.received(Incoming(topic(name, TopicKind.STATUS), status))
        orchestrator.fleet.on_status(Status(name, "offline", BOOT, 1), retained=False)

    return op


def _tools(orchestrator: Orchestrator, *, change: bool) -> Op:
    calls, numbers = orchestrator.edge_call(frozenset({"*"})), count()

    async def op() -> None:
        if change:
            description = f"Sensor {next(numbers)}."
            orchestrator.fleet.on_advert(Advert(_name(2), description, agent_type="sensor"))
        assert len(calls.tools()) == 1

    return op


def _edge_call(calls: EdgeCall, agent_id: str) -> Call:
    tool: Tool = calls.tools()[0]
    arguments = {"agent_id": agent_id, "action": do_nothing.name, "params": {}}
    return Call("c", tool, arguments, f"{secrets.token_hex(16)}.1.0.1", tool.timeout)


def _call(orchestrator: Orchestrator) -> Op:
    calls = orchestrator.edge_call(frozenset({"*"}))

    async def op() -> None:
        result = await calls.execute(_edge_call(calls, "real"), lambda _: None)
        assert result.error is None, result.text

    return op


def _choose(orchestrator: Orchestrator) -> Op:
    async def op() -> None:
        assert orchestrator.fleet.choose_edge(do_nothing.tool)

    return op


def _sweep(orchestrator: Orchestrator) -> Op:
    async def op() -> None:
        orchestrator.fleet.mark_silent_offline()

    return op


def _shown(orchestrator: Orchestrator, *, one: bool) -> Op:
    parts = SimpleNamespace(orchestrator=orchestrator, devices=None, operator_tenant="local")
    caller = SimpleNamespace(tenant="local")

    async def op() -> None:
        if one:
            shown = await show_edge.fn(parts, caller, agent_id=_name(1))
        else:
            shown = await list_edges.fn(parts, caller)
        msgspec.json.encode(shown)

    return op


def _page(orchestrator: Orchestrator) -> Op:
    parts = SimpleNamespace(orchestrator=orchestrator, devices=None, operator_tenant="local")
    caller = SimpleNamespace(tenant="local")

    async def op() -> None:
        shown = await list_edges.fn(parts, caller, after=_name(1), limit=PAGE)
        assert len(shown.items) == PAGE
        msgspec.json.encode(shown)

    return op


async def _fan_out(points: Points, address: Address, folder: Path, size: int) -> None:
    async with AsyncExitStack() as stack:
        orchestrator = await stack.enter_async_context(_orchestrator(address, folder / "o.db"))
        for number in range(size):
            await stack.enter_async_context(light_edge(_name(number), address, folder))
        for number in range(size):
            await orchestrator.wait_for(_name(number), ONLINE_TIMEOUT_S)
        calls = orchestrator.edge_call(frozenset({"*"}))

        async def op() -> None:
            result = await calls.execute(_edge_call(calls, "*"), lambda _: None)
            assert result.error is None, result.text

        # Calls, not time: hundreds of edges with a thread each distort the time of one process.
        points.add("call all edges, both sides", "calls", LINEAR, size, await count_calls(op))


async def _definitions(points: Points, folder: Path, size: int) -> None:
    path = _write_agents(folder / "evoclaw.toml", size)

    async def op() -> None:
        assert len(read_evoclaw_toml(path, {}).agents) == size

    took = await lowest_cpu_us(op, times=1, rounds=3)
    points.add("read agent definitions", "µs", LINEAR, size, took)


def _write_agents(path: Path, size: int) -> Path:
    agent = 'id = "agent-{}"\ncapabilities = ["file_read"]\nprompt = "Help."\n'
    path.write_text("".join(f"[[agents]]\n{agent.format(number)}" for number in range(size)))
    return path
