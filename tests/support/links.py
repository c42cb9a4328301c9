"""Links of every kind, each with a connection that a test can lose."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from evoclaw.transport.link import Link
from evoclaw.transport.memory import MemoryBroker, MemoryLink
from evoclaw.transport.mqtt import Address, MqttLink
from tests.support.brokers import Broker
from tests.support.fault_proxy import FaultProxy


@dataclass
class LinkEnd:
    """One link, and what can happen to its connection."""

    link: Link
    drop: Callable[[], None]
    """Lose it without a word."""
    down: Callable[[], None]
    """Lose it, and let no new one be made."""
    up: Callable[[], None]


class Net:
    """Links to one broker."""

    async def end(self) -> LinkEnd:
        raise NotImplementedError


@dataclass
class MemoryNet(Net):
    broker: MemoryBroker = field(default_factory=MemoryBroker)

    async def end(self) -> LinkEnd:
        link = MemoryLink(self.broker)
        return LinkEnd(link, link.drop, link.unplug, link.plug)


@dataclass
class MqttNet(Net):
    broker: Broker
    stack: AsyncExitStack

    async def end(self) -> LinkEnd:
        host, port = self.broker.address.host, self.broker.address.port
        proxy = await self.stack.enter_async_context(FaultProxy(host, port))

        def down() -> None:
            proxy.refuse(True)
            proxy.cut()

        link = MqttLink(Address(proxy.host, proxy.port))
        return LinkEnd(link, proxy.cut, down, lambda: proxy.refuse(False))
