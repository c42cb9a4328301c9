"""Many edges in one process: real links and journals, tools that do next to nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.ports import Ports
from evoclaw.edge.device import DeviceLimits, EdgeIdentity, EdgeParts
from evoclaw.edge.edge import Edge
from evoclaw.edge.fitness import Outcomes
from evoclaw.edge.genome import Genomes
from evoclaw.edge.plans import ToolPlans
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.permissions import Permissions
from evoclaw.providers.scripted import Scripted
from evoclaw.store.calls.journal import Journal
from evoclaw.tools.define import tool
from evoclaw.transport.address import Address
from evoclaw.transport.mqtt import MqttLink


@tool("shell", effect="read", resources=())
async def do_nothing() -> str:
    """Do nothing."""
    return "done"


def marking_tool(path: Path) -> BoundTool:
    """A tool that must not be run twice for one call: it writes down what it is given."""

    @tool("shell", resources=())
    async def mark(text: str) -> str:
        """Leave a mark."""
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{text}\n".encode())
        os.close(descriptor)
        return "marked"

    return mark


@asynccontextmanager
async def light_edge(
    name: str,
    address: Address,
    folder: Path,
    *,
    tools: Sequence[BoundTool] = (do_nothing,),
    limits: DeviceLimits | None = None,
    durable: bool = False,
    keep_alive: int = 30,
) -> AsyncGenerator[Edge]:
    """One edge, serving while the block runs."""
    executor = LocalExecutor(tools)
    ports = Ports(Scripted(), executor, Permissions(frozenset({"*"})))
    async with await Journal.open(folder / f"{name}.db", durable=durable) as journal:
        genomes = Genomes(journal)
        await genomes.load()
        edge = Edge(
            EdgeParts(
                EdgeIdentity(name, "sensor"),
                MqttLink(address, keep_alive=keep_alive),
                journal,
                executor,
                {"tool": ToolPlans(ports).plan},
                genomes,
                Outcomes(),
                limits or DeviceLimits(),
            )
        )
        serving = asyncio.create_task(edge.run())
        try:
            yield edge
        finally:
            edge.stop()
            with suppress(asyncio.CancelledError):
                await serving
