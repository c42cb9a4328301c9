"""For the tests of budgets: a clock by hand, both ledgers, and calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from evoclaw.core.agent import LoopSettings
from evoclaw.core.events import CallFinished, Record, RunFinished
from evoclaw.core.labels import Principal
from evoclaw.core.ledgers import Account, Amounts, InsufficientFunds, Ledger, Reservation
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import ToolResult, user
from evoclaw.core.ports import (
    Approval,
    Approver,
    Ask,
    Decision,
    Executor,
    NoApprover,
    Ports,
    Progress,
    Provider,
)
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import fold, new_run
from evoclaw.core.tools import Call, Context, Effect, Tool
from evoclaw.governance.budget.memory_ledger import MemoryLedger
from evoclaw.governance.budget.policy import RunBudget
from evoclaw.store.governance.ledger import StoredLedger
from tests.support.loop import Table

KINDS = ("memory", "stored")


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def open_ledger(kind: str, folder: Path, clock: Clock) -> AsyncGenerator[Ledger]:
    """A ledger of one of the two kinds."""
    if kind == "memory":
        yield MemoryLedger(clock)
        return
    async with await StoredLedger.open_file(folder / "budget.db", clock=clock) as ledger:
        yield ledger


async def account(ledger: Ledger, name: str) -> Account:
    """One account."""
    return next(one for one in await ledger.accounts() if one.name == name)


async def is_reserved(ledger: Ledger, path: tuple[str, ...], amounts: Amounts, id: str) -> bool:
    """Whether it was set aside."""
    return isinstance(await ledger.reserve(path, amounts, id), Reservation)


async def refusal_of(
    ledger: Ledger, path: tuple[str, ...], amounts: Amounts, id: str
) -> InsufficientFunds:
    """Why it was not set aside."""
    found = await ledger.reserve(path, amounts, id)
    assert isinstance(found, InsufficientFunds)
    return found


def tool(name: str, *permissions: str, **more: Any) -> Tool:
    """A tool."""
    more.setdefault("resources", ("path",))
    return Tool(name, f"{name}s", {"type": "object"}, frozenset(permissions), **more)


WRITE = tool("write", "file_write")
EDIT = tool("edit", "file_write")
PATCH = tool("apply_patch", "file_write", resources=("*",))
READ = tool("read", "file_read", effect=Effect.READ)
BASH = tool("bash", "shell", resources=("*",))
FETCH = tool("webfetch", "network", effect=Effect.READ, resources=())
SEARCH = tool("websearch", "network", effect=Effect.READ, resources=())
RELAY = tool("gpio", "device", resources=())


def call(
    which: Tool, number: int = 1, *, run: str = "r", tenant: str = "local", **args: Any
) -> Call:
    """A call, as the loop would make it."""
    context = Context(principal=Principal(tenant))
    return Call(f"c{number}", which, args, f"{run}.1.{number}.1", 10.0, context=context)


async def answered(call: Call, progress: Progress) -> str:
    """What a tool of these tests does."""
    return "ok"


def all_tools() -> Table:
    """An executor with all of these tools."""
    every = (WRITE, EDIT, PATCH, READ, BASH, FETCH, SEARCH, RELAY)
    return Table(*[(one, answered) for one in every])


class ScriptedApprover:
    """Somebody who is asked, and says what was agreed on."""

    def __init__(self, *said: Decision) -> None:
        self._said = iter(said)
        self.asked: list[tuple[str, str]] = []

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Say the next thing; no more than that."""
        self.asked.append((call.request_id, ask.code))
        return Approval(next(self._said))


async def run_with_budget(
    provider: Provider,
    budget: RunBudget,
    executor: Executor | None = None,
    *,
    approver: Approver | None = None,
    settings: LoopSettings | None = None,
    before: Sequence[Record] = (),
) -> list[Record]:
    """Run, or go on with, run `r` under a budget; its records."""
    state = fold(before) if before else new_run([user("do it")], "r")
    ports = Ports(provider, executor or all_tools(), budget, approver or NoApprover())
    bus = Bus("r", [budget], seq=len(before))
    async with asyncio.timeout(30):
        events = run_loop(state, ports, settings or LoopSettings(max_turns=500))
        return [record async for record in recorded(events, bus)]


def finished_event(records: Sequence[Record]) -> RunFinished:
    """How a run ended."""
    event = records[-1].event
    assert isinstance(event, RunFinished)
    return event


def results(records: Sequence[Record]) -> list[ToolResult]:
    """What the calls of a run gave back."""
    return [record.event.result for record in records if isinstance(record.event, CallFinished)]
