"""The ledger of this machine, and what its models cost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.core.ledgers import Ledger
    from evoclaw.core.messages import Usage
    from evoclaw.governance.budget.foresight import Price
    from evoclaw.governance.budget.settings import BudgetSettings
    from evoclaw.store.databases.database import Database


@asynccontextmanager
async def open_ledger(
    env: Mapping[str, str], *, database: Database | None = None
) -> AsyncGenerator[Ledger]:
    """The ledger that all processes of this machine share."""
    from evoclaw.store.governing.ledger import SCHEMA, StoredLedger
    from evoclaw.wiring.store import clock_of, opened

    # By itself, a reservation need not outlive a power cut: what it was to pay for did not either.
    async with (
        opened(env, SCHEMA, given=database, durable=False) as kept,
        StoredLedger(kept, clock_of(kept)) as ledger,
    ):
        await ledger.begin()
        yield ledger


@asynccontextmanager
async def ledger_for(
    settings: BudgetSettings, env: Mapping[str, str], *, database: Database | None = None
) -> AsyncGenerator[Ledger]:
    """Where a run's spending is counted.

    A budget of the run alone is counted in memory: its records tell it again after a crash. One
    that several runs share is kept where all of them find it.
    """
    from evoclaw.governance.budget.memory import MemoryLedger
    from evoclaw.governance.budget.settings import Kinds

    shared = (settings.tenant, settings.user, settings.agent)
    if not settings.actions and all(kinds == Kinds() for kinds in shared):
        yield MemoryLedger()
        return
    async with open_ledger(env, database=database) as ledger:
        yield ledger


def price_for(name: str) -> Price:
    """What a reply costs at most; `A,B` is priced by the dearer."""
    from evoclaw.governance.budget.foresight import dearest
    from evoclaw.providers.prices import prices

    def priced(model: str) -> Callable[[str, Usage], float | None]:
        price = prices(model)
        return lambda _, usage: price(model.partition("/")[2], usage)

    return dearest([priced(one.strip()) for one in name.split(",")])
