"""An orchestrator as a process of its own: reads calls from its input, prints how each ended.

Each line of input is one `Ask` as JSON; each line of output says how one ended. What was asked
before by a process that was killed is asked again by giving the next one the same lines.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.tools import Call, Tool
from evoclaw.orchestrator.fleet.grant_signer import GrantSigner
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.store.calls.commands import CommandStore
from evoclaw.tools.sets import everything
from evoclaw.transport.address import Address
from evoclaw.transport.mqtt import MqttLink
from evoclaw.trust.grants import Signer


class Setting(Struct, frozen=True):
    """Where a driver works; its command line, as JSON."""

    host: str
    port: int
    username: str
    password: str
    store: str
    key: str
    keep_alive: int = 30
    at_once: int = 64
    dies: str = ""
    """Where it ends itself, as `mortal` says."""


class Ask(Struct, frozen=True, omit_defaults=True):
    """One call."""

    id: str
    """The request id."""
    agent: str
    tool: str
    arguments: dict[str, JSON]
    epoch: int = 1
    queue: float = 30.0


class CallOutcome(Struct, frozen=True):
    """How one ended."""

    id: str
    outcome: str
    """`success`, or the kind of error."""
    text: str = ""
    details: dict[str, JSON] = {}


def tool_named(name: str) -> Tool:
    """A built-in tool; the edges have the same."""
    return next(one.tool for one in everything() if one.name == name)


async def ask(orchestrator: Orchestrator, asked: Ask) -> ToolResult:
    """Have one call run as the loop would; what it raises is a result too."""
    tool = tool_named(asked.tool)
    wanted = asked.arguments.get("timeout_ms", tool.timeout * 1000)
    seconds = wanted / 1000 if isinstance(wanted, int | float) else tool.timeout
    call = Call("c", tool, asked.arguments, asked.id, seconds, epoch=asked.epoch)
    try:
        executor = orchestrator.edge(asked.agent, queue=asked.queue)
        return await executor.execute(call, lambda text: None)
    except ToolFailure as problem:
        return call.failed(problem.kind, problem.message, **problem.details)


def outcome_of(request_id: str, result: ToolResult) -> CallOutcome:
    """A result as a line of output."""
    return CallOutcome(
        request_id, str(result.error or "success"), result.text[:500], dict(result.details)
    )


async def drive(setting: Setting) -> None:
    """Ask what comes until the input ends and everything is answered."""
    signer = Signer.load_or_create(Path(setting.key))
    address = Address(
        setting.host, setting.port, username=setting.username, password=setting.password
    )
    link = MqttLink(address, keep_alive=setting.keep_alive)
    places = asyncio.Semaphore(setting.at_once)
    async with await CommandStore.open(Path(setting.store)) as store:
        orchestrator = Orchestrator(link, store, grants=GrantSigner(signer))

        async def one(asked: Ask) -> None:
            async with places:
                result = await ask(orchestrator, asked)
            os.write(1, msgspec.json.encode(outcome_of(asked.id, result)) + b"\n")

        async with orchestrator.connected(), asyncio.TaskGroup() as group:
            lines = await _input()
            while line := await lines.readline():
                group.create_task(one(msgspec.json.decode(line, type=Ask)))


async def _input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def main() -> int:
    """Drive as the command line says."""
    setting = msgspec.json.decode(sys.argv[1], type=Setting)
    if setting.dies:
        from tests.support.programs.killable import arm

        arm(setting.dies)
    try:
        asyncio.run(drive(setting))
    except EvoClawError as problem:
        os.write(2, f"{problem}\n".encode())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
