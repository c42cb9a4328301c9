"""Everything on one machine: a broker, an orchestrator, and an edge of its own."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from evoclaw.core.messages import JSON
from evoclaw.wiring.fleet import Door, leave_door, open_fleet

if TYPE_CHECKING:
    from evoclaw.orchestrator.joining import Joining
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.transport.broker import EmbeddedBroker

logger = logging.getLogger(__name__)
ORCHESTRATOR = "orchestrator"
AGAIN = 2.0
"""Seconds before an edge that ended is started again."""


class House(Struct, frozen=True):
    """What is up."""

    url: str
    orchestrator: Orchestrator


class _Local(Struct, frozen=True):
    """The edge on this machine."""

    agent_id: str
    workspace: Path
    model: str


@asynccontextmanager
async def bring_up(
    *,
    host: str,
    port: int,
    engine: str,
    agent_id: str | None,
    workspace: Path,
    model: str,
    env: Mapping[str, str],
    tls: tuple[Path, Path, Path] | None = None,
) -> AsyncGenerator[House]:
    """Broker, orchestrator and edge; all gone when the block ends.

    With TLS, the broker's certificate, its key, and who signed it are given.
    """
    from evoclaw.config import default_data_folder
    from evoclaw.transport.accounts import Role
    from evoclaw.transport.broker import EmbeddedBroker
    from evoclaw.transport.engines import TlsFiles

    home = default_data_folder(env)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with AsyncExitStack() as stack:
        files = None if tls is None else TlsFiles(*tls[:2])
        broker = EmbeddedBroker(home / "broker", engine=engine, host=host, port=port, tls=files)
        await stack.enter_async_context(broker)
        url = f"{'mqtt' if tls is None else 'mqtts'}://{broker.host}:{broker.port}"
        password = await broker.renew(ORCHESTRATOR, Role.ORCHESTRATOR)
        door = Door(url, ORCHESTRATOR, password, None if tls is None else str(tls[2]))
        leave_door(home, door)
        stack.callback(_close_door, home)
        orchestrator = await stack.enter_async_context(open_fleet(env))
        orchestrator.reception.guests = _joining(home, orchestrator, broker).take
        if agent_id is not None:
            local = _Local(agent_id, workspace, model)
            config = await _describe(local, home, door, broker)
            await _pin(orchestrator, agent_id, config.parent)
            edge = asyncio.create_task(_keep_edge(config))
            stack.push_async_callback(_end, edge)
        yield House(url, orchestrator)


async def _pin(orchestrator: Orchestrator, agent_id: str, folder: Path) -> None:
    """Know the edge of this machine by the key that it has here."""
    from evoclaw.governance.receipts import DeviceKey
    from evoclaw.orchestrator.receipts import ReceiptBook

    if isinstance(book := orchestrator.reception.receipts, ReceiptBook):
        await book.pin(agent_id, DeviceKey.load_or_create(folder / "device.key").public_key)


def _joining(home: Path, orchestrator: Orchestrator, broker: EmbeddedBroker) -> Joining:
    from evoclaw.governance.grants import Signer
    from evoclaw.governance.pairing import Devices, Pairings
    from evoclaw.orchestrator.joining import Joining
    from evoclaw.orchestrator.receipts import ReceiptBook

    key = Signer.load_or_create(home / "orchestrator.key").public_key
    pairing = home / "pairing"
    send, book = orchestrator.requests.send, orchestrator.reception.receipts
    pin = book.pin if isinstance(book, ReceiptBook) else None
    return Joining(Pairings(pairing), Devices(pairing), broker.accounts, send, key, pin)


async def _describe(local: _Local, home: Path, door: Door, broker: EmbeddedBroker) -> Path:
    """Write the local edge's `agent.toml`: a full edge, trusted with everything here."""
    from evoclaw.config import write_agent_toml
    from evoclaw.governance.grants import Signer
    from evoclaw.governance.pairing import Devices
    from evoclaw.transport.accounts import write_private

    folder = home / "edge" / local.agent_id
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    password = await broker.renew(local.agent_id)
    devices = Devices(home / "pairing")
    if devices.get(local.agent_id) is None:
        devices.invite(local.agent_id, time.time())
    write_private(folder / "password", password.encode())
    values: dict[str, JSON] = {
        "agent_id": local.agent_id,
        "agent_type": "desktop",
        "capabilities": ["*"],
        "workspace": str(local.workspace),
        "data": str(folder),
        "orchestrator_keys": [Signer.load_or_create(home / "orchestrator.key").public_key],
        "broker": {
            "url": door.url,
            "username": local.agent_id,
            "password_file": str(folder / "password"),
        },
    }
    if door.ca_file is not None:
        values["broker"]["ca_file"] = door.ca_file
    if local.model:
        values["model"] = {"name": local.model}
    path = folder / "agent.toml"
    write_agent_toml(path, values, replace=True)
    return path


async def _keep_edge(config: Path) -> None:
    """Run the edge as a process of its own, and again if it ends."""
    from evoclaw.transport.child import Child

    while True:
        command = (sys.executable, "-m", "evoclaw", "edge", "--config", str(config))
        child = await Child.start(config.parent, *command)
        try:
            await child.ended.wait()
        finally:
            await child.stop()
        logger.error("the edge ended: %s; it is started again", await child.last_words())
        await asyncio.sleep(AGAIN)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _close_door(home: Path) -> None:
    from evoclaw.wiring.fleet import HERE

    (home / HERE).unlink(missing_ok=True)
