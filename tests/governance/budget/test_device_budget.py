from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ToolResult
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Allow, Deny, Ports, Progress
from evoclaw.core.tools import Call
from evoclaw.edge.plans import CallPlan, ToolPlans
from evoclaw.governance.budget.device import (
    DEVICE_ACCOUNT,
    MAX_OPEN_RUNS,
    DeviceBudget,
    MeterDevice,
)
from evoclaw.governance.budget.memory_ledger import MemoryLedger
from evoclaw.governance.budget.settings import (
    AccountLimits,
    ActionLimit,
    AllowedLocations,
    BudgetSettings,
)
from evoclaw.providers.scripted import Scripted
from evoclaw.store.governance.ledger import StoredLedger
from evoclaw.transport.wire import Command
from tests.support.budgets import (
    READ,
    RELAY,
    WRITE,
    Clock,
    account,
    all_tools,
    answered,
    call,
)
from tests.support.loop import Table
from tests.support.stores import ROOT

TOGGLES = BudgetSettings(
    actions={"relay": ActionLimit(tools=("gpio",), arguments={"action": "toggle"}, most=3)}
)


def silent(text: str) -> None:
    """Nobody listens."""


async def toggle(metered: Pipeline, number: int, run: str = "r", tenant: str = "local") -> bool:
    try:
        await metered.execute(call(RELAY, number, run=run, tenant=tenant, action="toggle"), silent)
    except ToolFailure as refused:
        assert refused.kind is ErrorKind.PERMISSION_DENIED
        assert refused.details["budget"] == "action.relay"
        return False
    return True


async def test_hourly_actions_are_limited_across_callers_and_restarts(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "budget.db"
    ran: list[bool] = []
    for boot, (run, tenant) in enumerate([("r1", "a"), ("r2", "b"), ("r1", "a"), ("r3", "c")]):
        async with await StoredLedger.open_file(path, exclusive=True, clock=clock) as ledger:
            metered = Pipeline([all_tools()], [MeterDevice(DeviceBudget(ledger, TOGGLES))])
            ran.append(await toggle(metered, boot, run, tenant))
        clock.now += 60
    assert ran == [True, True, True, False]
    async with await StoredLedger.open_file(path, exclusive=True, clock=clock) as ledger:
        clock.now += 3_600
        assert await toggle(
            Pipeline([all_tools()], [MeterDevice(DeviceBudget(ledger, TOGGLES))]), 9
        )


async def test_concurrent_orchestrators_share_one_action_limit(tmp_path: Path) -> None:
    async with await StoredLedger.open_file(tmp_path / "budget.db") as ledger:
        table = all_tools()
        metered = Pipeline([table], [MeterDevice(DeviceBudget(ledger, TOGGLES))])
        racing = [toggle(metered, n, f"run{n % 2}", f"tenant{n % 2}") for n in range(20)]
        assert sum(await asyncio.gather(*racing)) == 3
        assert len(table.started) == 3


DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from evoclaw.core.pipeline import Pipeline
from evoclaw.governance.budget.device import DeviceBudget, MeterDevice
from evoclaw.store.governance.ledger import StoredLedger
from tests.support.budgets import RELAY, call
from tests.governance.budget.test_device_budget import TOGGLES
from tests.support.loop import Table

async def die(call, progress):
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    ledger = await StoredLedger.open_file(Path(sys.argv[1]), exclusive=True, durable=True)
    metered = Pipeline([Table((RELAY, die))], [MeterDevice(DeviceBudget(ledger, TOGGLES))])
    await metered.execute(call(RELAY, int(sys.argv[2]), action="toggle"), print)

asyncio.run(main())
"""


@pytest.mark.process
async def test_an_action_interrupted_by_a_device_crash_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "budget.db"
    for number in ("1", "2"):
        dying = await asyncio.create_subprocess_exec(
            sys.executable, "-c", DYING, str(path), number, cwd=ROOT
        )
        async with asyncio.timeout(30):
            assert await dying.wait() == -signal.SIGKILL
    async with await StoredLedger.open_file(path, exclusive=True) as ledger:
        metered = Pipeline([all_tools()], [MeterDevice(DeviceBudget(ledger, TOGGLES))])
        assert [await toggle(metered, n) for n in (3, 4)] == [True, False]


async def test_a_repeated_call_is_counted_once() -> None:
    ledger = MemoryLedger()
    metered = Pipeline([all_tools()], [MeterDevice(DeviceBudget(ledger, TOGGLES))])
    assert [await toggle(metered, 1) for _ in range(5)] == [True] * 5
    assert (await account(ledger, DEVICE_ACCOUNT)).spent["action.relay"] == 1


async def test_a_call_over_budget_is_refused_before_it_is_queued() -> None:
    ledger = MemoryLedger()
    budget = DeviceBudget(ledger, TOGGLES)
    metered = Pipeline([all_tools()], [MeterDevice(budget)])
    wanted = call(RELAY, 9, action="toggle")
    assert isinstance(await budget.judge(wanted), Allow)
    for number in range(3):
        assert await toggle(metered, number)
    verdict = await budget.judge(wanted)
    assert isinstance(verdict, Deny) and "within 3,600 seconds" in verdict.reason
    assert (await account(ledger, DEVICE_ACCOUNT)).held == {}, "to judge takes nothing"


async def test_runs_of_each_tenant_have_their_own_budget_on_the_device() -> None:
    ledger = MemoryLedger()
    settings = BudgetSettings(calls=2, tenant=AccountLimits(calls=3, per="1h"))
    metered = Pipeline([all_tools()], [MeterDevice(DeviceBudget(ledger, settings))])

    async def works(number: int, run: str, tenant: str) -> bool:
        try:
            await metered.execute(call(READ, number, run=run, tenant=tenant, path="x"), silent)
        except ToolFailure:
            return False
        return True

    assert [await works(n, "r", "a") for n in range(3)] == [True, True, False]
    assert [await works(n, "s", "a") for n in range(3)] == [True, False, False], "the tenant's"
    assert await works(1, "r", "b"), "the same name is another's run"


async def test_usage_of_a_failed_or_cancelled_call_is_counted() -> None:
    ledger = MemoryLedger()

    class Odd(Table):
        async def execute(self, call: Call, progress: Progress) -> ToolResult:
            if call.name == "write":
                raise ToolFailure(ErrorKind.NOT_FOUND, "no such folder")
            raise asyncio.CancelledError

    metered = Pipeline(
        [Odd((WRITE, answered), (RELAY, answered))], [MeterDevice(DeviceBudget(ledger, TOGGLES))]
    )
    refused = await metered.execute(call(WRITE, 1, path="a", content="x\n"), silent)
    assert refused.error is ErrorKind.NOT_FOUND
    with pytest.raises(asyncio.CancelledError):
        await metered.execute(call(RELAY, 2, action="toggle"), silent)
    found = await account(ledger, DEVICE_ACCOUNT)
    assert found.spent["calls"] == 2 and found.spent["action.relay"] == 1
    assert "lines" not in found.spent and "files" not in found.spent
    assert not found.held


async def test_accounts_of_old_runs_are_removed_but_not_of_device_and_tenants() -> None:
    ledger = MemoryLedger()
    metered = Pipeline([all_tools()], [MeterDevice(DeviceBudget(ledger, TOGGLES))])
    for number in range(2 * MAX_OPEN_RUNS + 2):
        await metered.execute(call(READ, 1, run=f"r{number}", path="x"), silent)
    names = [one.name for one in await ledger.accounts()]
    assert len(names) <= 2 * MAX_OPEN_RUNS + 2
    assert {DEVICE_ACCOUNT, "device/tenant:local"} <= set(names)


async def test_the_edge_refuses_a_command_over_its_own_budget() -> None:
    ledger = MemoryLedger()
    settings = BudgetSettings(actions=TOGGLES.actions, allowed=AllowedLocations(read=("data/**",)))
    budget = DeviceBudget(ledger, settings)
    plans = ToolPlans(Ports(Scripted(), Pipeline([all_tools()], [MeterDevice(budget)]), budget))

    async def ask(number: int, tool: str, **parameters: str) -> ToolResult:
        payload: dict[str, JSON] = {"tool": tool, "parameters": parameters}
        command = Command("tool", payload, f"r.1.{number}.1", tenant=f"t{number}")
        plan = await plans.plan(command)
        return await plan.work(Deadline(), silent) if isinstance(plan, CallPlan) else plan

    errors = [(await ask(n, "gpio", action="toggle")).error for n in range(5)]
    assert errors == [None, None, None, *[ErrorKind.PERMISSION_DENIED] * 2]
    assert (await ask(6, "read", path="/etc/passwd")).error is ErrorKind.PERMISSION_DENIED
    assert (await ask(7, "read", path="data/x")).error is None
