"""A ledger under anything: it never goes over, whatever is reserved, settled, cut off, reopened."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from evoclaw.core.ledgers import Limit, Reservation
from evoclaw.governance.budget.memory_ledger import MemoryLedger
from evoclaw.store.governance.ledger import StoredLedger
from tests.support.budgets import Clock
from tests.support.properties import examples

PATHS = (
    ("tenant", "user", "run1"),
    ("tenant", "user", "run1", "child"),
    ("tenant", "run2"),
)
LIMITS = {
    "tenant": {"tokens": Limit(100), "action.relay": Limit(3, 60.0)},
    "user": {"tokens": Limit(70, 60.0)},
    "run1": {"tokens": Limit(40), "calls": Limit(5)},
    "run2": {"calls": Limit(3)},
}
amounts = st.fixed_dictionaries(
    {},
    optional={
        "tokens": st.integers(0, 30),
        "calls": st.integers(0, 2),
        "action.relay": st.integers(0, 2),
    },
)


class Model:
    """What should be true, told simply: every reservation, and when it was spent."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {}
        self.spent: list[tuple[float, tuple[str, ...], dict[str, int]]] = []

    def used(self, account: str, kind: str, now: float) -> int:
        per = LIMITS[account][kind].per
        held = sum(much.get(kind, 0) for path, much in self.open.values() if account in path)
        return held + sum(
            much.get(kind, 0)
            for at, path, much in self.spent
            if account in path and not (per and at <= now - per)
        )

    def fits(self, path: tuple[str, ...], wanted: dict[str, int], now: float) -> bool:
        return all(
            self.used(account, kind, now) + wanted[kind] <= limit.most
            for account in path
            for kind, limit in LIMITS.get(account, {}).items()
            if wanted.get(kind)
        )


class LedgerMachine(RuleBasedStateMachine):
    """Compares a ledger with the model after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock, self.model, self.count = Clock(), Model(), 0
        self.ledger: Any = None

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    async def _open_accounts(self) -> None:
        for name, limits in LIMITS.items():
            await self.ledger.open(name, limits, {})

    async def _tell(self, id: str, real: dict[str, int] | None) -> None:
        if real is None:
            self.ledger.release(id)
        else:
            self.ledger.settle(id, real)

    @rule(path=st.sampled_from(PATHS), wanted=amounts)
    def reserve(self, path: tuple[str, ...], wanted: dict[str, int]) -> None:
        self.count += 1
        fits = self.model.fits(path, wanted, self.clock.now)
        found = self.run(self.ledger.reserve(path, wanted, str(self.count)))
        assert isinstance(found, Reservation) == fits
        if fits:
            self.model.open[str(self.count)] = (path, wanted)

    @precondition(lambda self: self.model.open)
    @rule(data=st.data(), wanted=amounts)
    def reserve_again(self, data: Any, wanted: dict[str, int]) -> None:
        id = data.draw(st.sampled_from(sorted(self.model.open)))
        found = self.run(self.ledger.reserve(self.model.open[id][0], wanted, id))
        assert isinstance(found, Reservation) and not found.is_new

    @precondition(lambda self: self.model.open)
    @rule(data=st.data(), share=st.sampled_from([0.0, 0.5, 1.0]))
    def settle(self, data: Any, share: float) -> None:
        id = data.draw(st.sampled_from(sorted(self.model.open)))
        path, held = self.model.open.pop(id)
        real = {kind: int(much * share) for kind, much in held.items()}
        self.run(self._tell(id, real))
        self.run(self._tell(id, held))
        self.model.spent.append((self.clock.now, path, real))

    @precondition(lambda self: self.model.open)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        id = data.draw(st.sampled_from(sorted(self.model.open)))
        del self.model.open[id]
        self.run(self._tell(id, None))

    @rule(seconds=st.sampled_from([1.0, 29.0, 58.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def nothing_is_ever_over(self) -> None:
        if self.ledger is None:
            return
        for one in self.run(self.ledger.accounts()):
            for kind, limit in one.limits.items():
                used = one.used(kind, self.clock.now)
                assert 0 <= used <= limit.most, (one.name, kind)
                assert used == self.model.used(one.name, kind, self.clock.now), (one.name, kind)

    def teardown(self) -> None:
        self.loop.close()


class MemoryMachine(LedgerMachine):
    """In memory."""

    @initialize()
    def begin(self) -> None:
        self.ledger = MemoryLedger(self.clock)
        self.run(self._open_accounts())


class StoredMachine(LedgerMachine):
    """On disk; cut off and opened again at any time."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self._open(alone=False)

    def _open(self, *, alone: bool) -> None:
        path = Path(self.folder.name) / "budget.db"
        opening = StoredLedger.open_file(path, clock=self.clock, exclusive=alone)
        self.ledger = self.run(opening)
        self.run(self._open_accounts())

    async def _tell_and_lose(self, id: str) -> None:
        # Before the database has it.
        def lose(*_: object) -> None:
            pass

        self.ledger._steps.add = lose
        self.ledger.settle(id, {})

    async def _stop(self) -> None:
        await self.ledger.database.close()

    @rule(data=st.data(), alone=st.booleans())
    def cut_off_and_reopen(self, data: Any, alone: bool) -> None:
        if self.model.open:
            # What was said and not written is gone, as with a process that was killed: the
            # reservation stays, so more is counted than was spent, never less.
            id = data.draw(st.sampled_from(sorted(self.model.open)))
            self.run(self._tell_and_lose(id))
        self.run(self._stop())
        self._open(alone=alone)
        if alone:
            for path, held in self.model.open.values():
                self.model.spent.append((self.clock.now, path, held))
            self.model.open.clear()

    def teardown(self) -> None:
        if self.ledger is not None:
            self.run(self.ledger.__aexit__())
            self.folder.cleanup()
        super().teardown()


quick = settings(
    max_examples=examples(30), stateful_step_count=30, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(quick, max_examples=examples(60))
TestStored = StoredMachine.TestCase
TestStored.settings = quick
