"""An edge that signs, alone with its journal: to be killed, and looked at afterwards.

    python -m tests.support.programs.signing_edge FOLDER COUNT [step:when:count]

Asks itself for so many calls, one id each, and ends when all have ended. What it said is appended
to `said.jsonl`, as somebody on the network would have heard it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from evoclaw.core.ports import Ports
from evoclaw.edge.assemble import assemble
from evoclaw.edge.device import DeviceLimits, EdgeIdentity
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.permissions import Permissions
from evoclaw.providers.scripted import Scripted
from evoclaw.store.calls.journal import Journal
from evoclaw.transport.link import MessageProperties
from evoclaw.transport.memory import MemoryBroker, MemoryLink
from evoclaw.transport.topics import TopicKind, topic
from evoclaw.transport.wire import Command, encode
from evoclaw.trust.receipts import DeviceKey
from tests.support.light_edges import marking_tool
from tests.support.programs.killable import arm
from tests.support.waiting import until


class LoggingLink(MemoryLink):
    """A link that writes down what goes over it, before it does."""

    def __init__(self, broker: MemoryBroker, path: Path) -> None:
        super().__init__(broker)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        properties: MessageProperties | None = None,
    ) -> None:
        if topic.endswith("/reports"):
            os.write(self._file, payload + b"\n")
        await super().publish(topic, payload, retain=retain, properties=properties)


async def work(folder: Path, count: int) -> None:
    """Be the edge until every call has ended."""
    broker = MemoryBroker()
    executor = LocalExecutor([marking_tool(folder / "marks")])
    async with await Journal.open(folder / "journal.db") as journal:
        edge = await assemble(
            EdgeIdentity("pi"),
            LoggingLink(broker, folder / "said.jsonl"),
            journal,
            Ports(Scripted(), executor, Permissions(frozenset({"*"}))),
            limits=DeviceLimits(concurrency=8, queue=1000, resend_delay_s=0.05),
            key=DeviceKey.load_or_create(folder / "device.key"),
        )
        serving = asyncio.create_task(edge.run())
        await until(lambda: edge.parts.link.is_up)
        for n in range(count):
            asked = {"tool": "mark", "parameters": {"text": f"r.{n}"}}
            command = encode(Command("tool", asked, f"r.{n}.0.1", run_id="r"))
            broker.publish(topic("pi", TopicKind.COMMANDS), command, retain=False)
        await until(lambda: len(edge.reports.unacknowledged) == count and not edge.calls.live)
        edge.stop()
        await serving


def main() -> None:
    """Read the command line."""
    folder, count, *point = sys.argv[1:]
    for one in point:
        arm(one)
    asyncio.run(work(Path(folder), int(count)))


if __name__ == "__main__":
    main()
