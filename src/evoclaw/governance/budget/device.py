"""The budget of a device: it bounds all callers together, and survives restarts of the edge."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import quote

from msgspec import Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.ledgers import FILES, NO_AMOUNTS, AccountPath, InsufficientFunds, Ledger, Limit
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.pipeline import AroundStep, Execution
from evoclaw.core.ports import Deny, Policy, Verdict
from evoclaw.core.tools import Call
from evoclaw.core.wording import denied
from evoclaw.governance.budget import wordings
from evoclaw.governance.budget.boundaries import Boundaries, CommandCheck, verdict_of
from evoclaw.governance.budget.call_usage import (
    CallUsage,
    action_matcher,
    actual_usage,
    estimate_usage,
    file_id,
)
from evoclaw.governance.budget.options import budget_denial as denial_of
from evoclaw.governance.budget.settings import BudgetSettings, limits_of

DEVICE_ACCOUNT = "device"
"""The account of all callers together; physical actions are bounded here."""
MAX_OPEN_RUNS = 256
"""Runs whose accounts are kept open."""


class DeviceReservation(Struct, frozen=True):
    """What is reserved for a call."""

    id: str
    path: AccountPath
    measured: CallUsage
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
        self._actions = action_matcher(self.settings.actions)
        self._open: dict[str, None] = {}
        """Open accounts, the most recently used last."""

    async def judge(self, call: Call) -> Verdict:
        """Deny a call outside the boundaries, or one the budget has no room for."""
        verdict = verdict_of(self._boundaries.check(call))
        if isinstance(verdict, Deny):
            return verdict
        path, measured = await self._path(call), self._estimate(call)
        if self._shortage(path, measured) is not None:
            # What was seen last may have been settled since, or be older than its window.
            await self._open_accounts(path)
        short = self._shortage(path, measured)
        return verdict if short is None else denial_of(short)

    async def reserve(self, call: Call) -> DeviceReservation:
        """Reserve what a call takes, when it starts; raises `ToolFailure` if there is no room."""
        path, measured = await self._path(call), self._estimate(call)
        files = [file_id(path[-1], name) for name in measured.files]
        also = {id: (path, {FILES: 1}) for id in files}
        found = await self._ledger.reserve(path, measured.amounts, _id(call), also=also)
        if isinstance(found, InsufficientFunds):
            text = denied(call, wordings.refusal_for_model(found))
            raise ToolFailure(ErrorKind.PERMISSION_DENIED, text, budget=found.kind)
        return DeviceReservation(_id(call), path, measured, {id: id in found.also for id in files})

    def settle(self, reserved: DeviceReservation, result: ToolResult | None) -> None:
        """Settle what a call took; without a result, all that was reserved."""
        real, changed = reserved.measured.amounts, True
        if result is not None:
            real, changed = actual_usage(reserved.measured, result)
        self._ledger.settle(reserved.id, real)
        for id, first in reserved.files.items():
            if changed:
                self._ledger.settle(id, {FILES: 1}, reserved.path)
            elif first:
                self._ledger.release(id)

    def _shortage(self, path: AccountPath, measured: CallUsage) -> InsufficientFunds | None:
        left = self._ledger.remaining(path)
        for kind, wanted in measured.amounts.items():
            bound = left.get(kind)
            if bound is not None and wanted > bound.left:
                return InsufficientFunds(kind, bound.account, bound.left, wanted, self._per(kind))
        return None

    def _estimate(self, call: Call) -> CallUsage:
        found = estimate_usage(call)
        actions = self._actions(call)
        return CallUsage({**found.amounts, **actions}, found.files) if actions else found

    def _per(self, kind: str) -> float:
        return self.settings.action_limits().get(kind, Limit(0)).per

    async def _path(self, call: Call) -> AccountPath:
        tenant = f"{DEVICE_ACCOUNT}/tenant:{quote(call.context.principal.tenant, safe='')}"
        run = f"{tenant}/run:{call.run_id}"
        if run not in self._open:
            await self._open_accounts((DEVICE_ACCOUNT, tenant, run))
        self._open.pop(run, None)
        self._open[run] = None
        self._close_oldest_runs()
        return DEVICE_ACCOUNT, tenant, run

    async def _open_accounts(self, path: AccountPath) -> None:
        settings = self.settings
        limits = (settings.action_limits(), limits_of(settings.tenant), settings.run_limits())
        for name, kinds in zip(path, limits, strict=True):
            await self._ledger.open(name, kinds, NO_AMOUNTS)
            self._open[name] = None

    def _close_oldest_runs(self) -> None:
        if len(self._open) > 2 * MAX_OPEN_RUNS:
            runs = [name for name in self._open if "/run:" in name]
            for name in runs[:-MAX_OPEN_RUNS]:
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
    return f"{DEVICE_ACCOUNT}.{call.request_id}"
