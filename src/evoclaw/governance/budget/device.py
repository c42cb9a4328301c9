"""The budget of a device: it bounds all callers together, and survives restarts of the edge."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import quote

from msgspec import Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.ledgers import FILES, NOTHING, Ledger, Limit, Path, Refusal
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.pipeline import AroundStep, Execution
from evoclaw.core.ports import Deny, Policy, Verdict
from evoclaw.core.tools import Call
from evoclaw.core.wording import denied
from evoclaw.governance.budget import wordings
from evoclaw.governance.budget.boundaries import Boundaries, CommandCheck, verdict_of
from evoclaw.governance.budget.measuring import Measured, file_id, matcher, measure, really
from evoclaw.governance.budget.settings import BudgetSettings, limits_of
from evoclaw.governance.budget.terms import denied as denial_of

DEVICE = "device"
"""The account of all callers together; physical actions are bounded here."""
MOST_RUNS = 256
"""Runs whose accounts are kept open."""


class Reserved(Struct, frozen=True):
    """What is reserved for a call."""

    id: str
    path: Path
    measured: Measured
    files: dict[str, bool]
    """The ids of its files, and whether this call was the first to reserve each."""


class DeviceBudget(Policy):
    """Refuses calls the budget has no room for; `MeterDevice` counts those that really run."""

    def __init__(
        self,
        ledger: Ledger,
        settings: BudgetSettings | None = None,
        *,
        commands: CommandCheck | None = None,
    ) -> None:
        """Choose the parts; physical actions need a ledger that outlives the process."""
        self.settings = settings or BudgetSettings()
        self._ledger = ledger
        self._boundaries = Boundaries(self.settings.allowed, commands)
        self._actions = matcher(self.settings.actions)
        self._open: dict[str, None] = {}
        """Open accounts, the most recently used last."""

    async def judge(self, call: Call) -> Verdict:
        """Deny a call outside the boundaries, or one the budget has no room for."""
        verdict = verdict_of(self._boundaries.check(call))
        if isinstance(verdict, Deny):
            return verdict
        path, measured = await self._path(call), self._measured(call)
        left = self._ledger.left(path)
        for kind, wanted in measured.amounts.items():
            bound = left.get(kind)
            if bound is not None and wanted > bound.left:
                short = Refusal(kind, bound.account, bound.left, wanted, self._per(kind))
                return denial_of(short)
        return verdict

    async def reserve(self, call: Call) -> Reserved:
        """Reserve what a call takes, when it starts; raises `ToolFailure` if there is no room."""
        path, measured = await self._path(call), self._measured(call)
        files = [file_id(path[-1], name) for name in measured.files]
        also = {id: (path, {FILES: 1}) for id in files}
        found = await self._ledger.reserve(path, measured.amounts, _id(call), also=also)
        if isinstance(found, Refusal):
            text = denied(call, wordings.refused(found))
            raise ToolFailure(ErrorKind.PERMISSION_DENIED, text, budget=found.kind)
        return Reserved(_id(call), path, measured, {id: id in found.also for id in files})

    def settle(self, reserved: Reserved, result: ToolResult | None) -> None:
        """Settle what a call took; without a result, all that was reserved."""
        real, changed = reserved.measured.amounts, True
        if result is not None:
            real, changed = really(reserved.measured, result)
        self._ledger.settle(reserved.id, real)
        for id, first in reserved.files.items():
            if changed:
                self._ledger.settle(id, {FILES: 1}, reserved.path)
            elif first:
                self._ledger.release(id)

    def _measured(self, call: Call) -> Measured:
        found = measure(call)
        actions = self._actions(call)
        return Measured({**found.amounts, **actions}, found.files) if actions else found

    def _per(self, kind: str) -> float:
        return self.settings.of_actions().get(kind, Limit(0)).per

    async def _path(self, call: Call) -> Path:
        tenant = f"{DEVICE}/tenant:{quote(call.context.principal.tenant, safe='')}"
        run = f"{tenant}/run:{call.run_id}"
        if run not in self._open:
            if DEVICE not in self._open:
                await self._ledger.open(DEVICE, self.settings.of_actions(), NOTHING)
                self._open[DEVICE] = None
            if tenant not in self._open:
                await self._ledger.open(tenant, limits_of(self.settings.tenant), NOTHING)
                self._open[tenant] = None
            await self._ledger.open(run, self.settings.of_run(), NOTHING)
        self._open.pop(run, None)
        self._open[run] = None
        self._let_go()
        return DEVICE, tenant, run

    def _let_go(self) -> None:
        if len(self._open) > 2 * MOST_RUNS:
            runs = [name for name in self._open if "/run:" in name]
            for name in runs[:-MOST_RUNS]:
                del self._open[name]
                self._ledger.close(name)


class MeterDevice(AroundStep):
    """Reserves what the call takes from the device's budget, and settles what it really took."""

    def __init__(self, budget: DeviceBudget, free: frozenset[str] = frozenset()) -> None:
        """`free` tools cost nothing, such as reading more of an output already paid for."""
        self._budget, self._free = budget, free

    @asynccontextmanager
    async def around(self, execution: Execution) -> AsyncGenerator[None]:
        """Reserve, run, settle; without a result the full reservation is spent."""
        if execution.call.name in self._free:
            yield
            return
        reserved = await self._budget.reserve(execution.call)
        try:
            yield
        finally:
            self._budget.settle(reserved, execution.result)


def _id(call: Call) -> str:
    """The id of the device's reservation, distinct from the orchestrator's."""
    return f"{DEVICE}.{call.request_id}"
