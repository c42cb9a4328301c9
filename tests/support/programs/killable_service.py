"""The service as a process of its own, which may be told to die by SIGKILL at a chosen moment.

    python -m tests.support.programs.killable_service '{…a Setting…}'
        serves until it is killed
    python -m tests.support.programs.killable_service fork_server
        forks a child for each Setting on its input

Children of a fork_server start at once: everything is imported. How each one ended is printed.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.events import Replied, ReplyEvent, TextDelta
from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.core.messages import Reply, UserMessage
from evoclaw.core.ports import AllowAll, Ports, Request
from evoclaw.core.profile import Profile
from evoclaw.orchestrator.fleet.grant_signer import GrantSigner
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.orchestrator.runs.runs import RunRequest, Runs, RunSettings
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.providers.wrappers import WriteBarrierProvider
from evoclaw.store.calls import command_tables
from evoclaw.store.calls.commands import CommandStore
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.databases.postgres import PostgresDatabase
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.governance import approvals, ledger
from evoclaw.store.governance.approvals import ApprovalStore
from evoclaw.store.governance.ledger import StoredLedger
from evoclaw.store.runs import queue
from evoclaw.store.runs.queue import RunQueue
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.sessions import Session, SessionStore
from evoclaw.transport.address import Address
from evoclaw.transport.mqtt import MqttLink
from evoclaw.trust.grants import Signer
from tests.support.waiting import until

SCHEMAS = (
    session_tables.SCHEMA,
    approvals.SCHEMA,
    command_tables.SCHEMA,
    ledger.SCHEMA,
    queue.SCHEMA,
)
EDGE = "pi"
STEPS: dict[str, tuple[tuple[type, str], ...]] = {
    "append": ((SessionStore, "_append_step"),),
    "flush": ((SqliteDatabase, "flush"), (PostgresDatabase, "flush")),
    "enqueue": ((RunQueue, "enqueue"),),
    "end_run": ((RunQueue, "end_run"),),
}
"""The methods in which a service may die; `append` can only die before it."""
BEGUN: list[str] = []
"""The runs that this process has begun: steps are counted from the first one on."""


class Setting(Struct, frozen=True, omit_defaults=True):
    """What a service works with."""

    database: str
    """The path of a file, or the address of a PostgreSQL."""
    schema: str = "evoclaw"
    model: int = 0
    """The port where the model is."""
    broker: int = 0
    username: str = ""
    password: str = ""
    key: str = ""
    """The file of the orchestrator's key."""
    begin: str = ""
    """What to say, in a run of this name that is begun if there is none."""
    idempotency: str = ""
    at_once: int = 1
    """How often that is asked for at the same time."""
    lease: float = 10.0
    holder: str = ""
    """What it is called, if that must not tell which process it is."""
    ahead: float = 0.0
    """Seconds that its clock is ahead: what others hold is over."""
    dies: str = ""
    """`step:before|after:count`."""
    until: tuple[str, ...] = ()
    """Leave when these runs have ended, and say how."""


class Model:
    """A provider whose model is another process: what it is asked is counted there."""

    profile = Profile()
    model = "test/model"

    def __init__(self, port: int) -> None:
        self._port = port

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        messages = request.history.to_tuple()
        name = next(one.text for one in messages if isinstance(one, UserMessage))
        asked = [name, sum(isinstance(one, Reply) for one in messages)]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        try:
            writer.write(msgspec.json.encode(asked) + b"\n")
            reply = msgspec.json.decode(await reader.readline(), type=Reply)
        finally:
            writer.close()
        if reply.text:
            yield TextDelta(reply.text)
        yield Replied(reply)


class Served(Struct, frozen=True):
    """What is up."""

    runs: Runs
    store: SessionStore
    orchestrator: Orchestrator


@asynccontextmanager
async def served(setting: Setting) -> AsyncGenerator[Served]:
    """The service, with the tools of one edge; it drives runs while the block lasts."""
    async with AsyncExitStack() as stack:
        is_file = "://" not in setting.database
        place = Path(setting.database) if is_file else setting.database
        database = await open_database(place, SCHEMAS, schema=setting.schema)
        stack.push_async_callback(database.close)
        link = MqttLink(
            Address(
                "127.0.0.1", setting.broker, username=setting.username, password=setting.password
            ),
            keep_alive=5,
        )
        signer = Signer.load_or_create(Path(setting.key))
        orchestrator = Orchestrator(link, CommandStore(database), grants=GrantSigner(signer))
        await stack.enter_async_context(orchestrator.connected())
        member = await orchestrator.wait_for(EDGE, 30)
        await until(lambda: len(member.tools) > 0, say="the tools of the edge")

        async def settle() -> None:
            await database.write(lambda connection: None)

        def equip(agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
            model = WriteBarrierProvider(Model(setting.model), settle)
            return Ports(model, orchestrator.edge(EDGE), AllowAll())

        lead = Agent("lead", "test/model", "", frozenset({"*"}), LoopSettings(max_turns=20))
        store = SessionStore(database)
        talks = Conversations(
            store,
            {"lead": lead},
            equip,
            approvals=ApprovalStore(database),
            ledger=StoredLedger(database, wait=False),
            defer_commits=True,
        )
        limits = RunSettings(lease_s=setting.lease, look_s=0.1)
        runs = Runs(
            talks,
            agent="lead",
            settings=limits,
            process_identity=setting.holder,
            clock=lambda: time.time() + setting.ahead,
        )
        await stack.enter_async_context(runs.serving())
        yield Served(runs, store, orchestrator)


async def serve(setting: Setting) -> None:
    """Begin what is to be begun, and wait for what is waited for."""
    async with served(setting) as house:
        if setting.begin:
            BEGUN.append(setting.begin)
            errand = RunRequest(setting.begin)
            starts = [
                house.runs.start(
                    LOCAL_PRINCIPAL,
                    errand,
                    key=setting.idempotency,
                    run_id="" if setting.idempotency else setting.begin,
                )
                for _ in range(setting.at_once)
            ]
            found = {view.run_id for view, _ in await asyncio.gather(*starts)}
            os.write(1, f"begun {' '.join(sorted(found))}\n".encode())
        for run_id in setting.until:
            result = await house.runs.result("local", run_id)
            os.write(1, f"ended {run_id} {result.stop} {result.text}\n".encode())
        if not setting.until:
            await asyncio.Event().wait()


def arm(point: str) -> None:
    """Have this process die at `step:when:count`, the count-th time the step is taken."""
    name, when, count = point.split(":")
    for owner, method in STEPS[name]:
        step: Callable[..., Any] = getattr(owner, method)
        setattr(owner, method, _mortal(step, when, int(count)))


def _mortal(step: Callable[..., Any], when: str, count: int) -> Callable[..., Any]:
    taken = 0

    def is_last() -> bool:
        nonlocal taken
        taken += bool(BEGUN)
        return taken == count

    @functools.wraps(step)
    def mortal(*arguments: Any, **named: Any) -> Any:
        if is_last():
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*arguments, **named)

    @functools.wraps(step)
    async def mortal_after(*arguments: Any, **named: Any) -> Any:
        last = is_last()
        result = await step(*arguments, **named)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return mortal if when == "before" else mortal_after


def run(setting: Setting) -> None:
    """Be a service."""
    if setting.dies:
        arm(setting.dies)
    asyncio.run(serve(setting))


def fork_server() -> None:
    """Have a child for each line of input, one after the other."""
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run(msgspec.json.decode(line, type=Setting))
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        os.write(1, f"gone {os.waitstatus_to_exitcode(status)}\n".encode())


def main() -> int:
    """As the command line says."""
    if sys.argv[1] == "fork_server":
        fork_server()
    else:
        run(msgspec.json.decode(sys.argv[1], type=Setting))
    return 0


if __name__ == "__main__":
    sys.exit(main())
