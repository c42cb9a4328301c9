"""Opens the ledger of budgets, and prices the models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.core.ledgers import Ledger
    from evoclaw.core.messages import Usage
    from evoclaw.governance.budget.cost_estimator import Price
    from evoclaw.governance.budget.settings import BudgetSettings

MAX_CACHED_PRICES = 256
"""Models whose price is cached; callers may name any model."""


@asynccontextmanager
async def open_ledger(env: Mapping[str, str]) -> AsyncGenerator[Ledger]:
    """The ledger that all processes of this machine share."""
    from evoclaw.store.governance.ledger import SCHEMA, StoredLedger
    from evoclaw.wiring.store import connect_database

    # A reservation need not survive a power cut: the work that it reserves for does not either.
    async with (
        connect_database(env, SCHEMA, durable=False) as database,
        StoredLedger(database, database.time) as ledger,
    ):
        await ledger.start()
        yield ledger


@asynccontextmanager
async def ledger_for(settings: BudgetSettings, env: Mapping[str, str]) -> AsyncGenerator[Ledger]:
    """Where a run's spending is counted.

    A budget of a single run is counted in memory, and rebuilt from its records after a crash. A
    budget that several runs share is counted in the store.
    """
    from evoclaw.governance.budget.memory_ledger import MemoryLedger
    from evoclaw.governance.budget.settings import AccountLimits

    shared = (settings.tenant, settings.user, settings.agent)
    if not settings.actions and all(kinds == AccountLimits() for kinds in shared):
        yield MemoryLedger()
        return
    async with open_ledger(env) as ledger:
        yield ledger


def price_for(name: str) -> Price:
    """The maximum price of a reply; `A,B` has the price of the dearer model."""
    from evoclaw.governance.budget.cost_estimator import highest_price
    from evoclaw.providers.prices import price_function

    def priced(model: str) -> Callable[[str, Usage], float | None]:
        price = price_function(model)
        return lambda _, usage: price(model.partition("/")[2], usage)

    return highest_price([priced(model.strip()) for model in name.split(",")])


def price_of_any_model() -> Price:
    """The maximum price of a reply, for any model."""
    known: dict[str, Price] = {}

    def price(model: str, usage: Usage) -> float | None:
        price_of_model = known.get(model) or price_for(model)
        if len(known) < MAX_CACHED_PRICES:
            known[model] = price_of_model
        return price_of_model(model, usage)

    return price
