"""The options of a run's budget beside its limits: prices, stop conditions, account names."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import quote

from msgspec import Struct

from evoclaw.core.labels import Principal
from evoclaw.core.ledgers import ACTION_PREFIX, AccountPath, InsufficientFunds
from evoclaw.core.ports import Deny
from evoclaw.governance.budget import wordings
from evoclaw.governance.budget.boundaries import CommandCheck
from evoclaw.governance.budget.cost_estimator import Price

StopCondition: TypeAlias = Callable[[], str]
"""Returns why a run must stop now; empty if it may continue."""


class BudgetOptions(Struct, frozen=True):
    """How a budget is enforced, beside its limits."""

    price: Price | None = None
    """The price of a model's tokens; without it no model has a price."""
    attended: bool = False
    """Whether a person can be asked when a limit is near."""
    commands: CommandCheck | None = None
    """Checks command lines (EF-03)."""
    stops: tuple[StopCondition, ...] = ()
    """Further stop conditions, checked before every reply and call."""
    clock: Callable[[], float] = time.monotonic
    """A monotonic clock, in seconds."""


DEFAULT_OPTIONS = BudgetOptions()


def account_path(principal: Principal, run_id: str) -> AccountPath:
    """The accounts of a run: tenant, user, agent, run; a level without a name is left out."""
    names = [f"tenant:{quote(principal.tenant, safe='')}"]
    for level, name in (("user", principal.user), ("agent", principal.agent)):
        if name:
            names.append(f"{names[-1]}/{level}:{quote(name, safe='')}")
    return (*names, run_account(run_id))


def run_account(run_id: str) -> str:
    """The name of the account of a run."""
    return f"run:{run_id}"


def budget_denial(refusal: InsufficientFunds) -> Deny:
    """The verdict on a call or turn that the budget has no room for."""
    code = "budget_" + refusal.kind.replace(ACTION_PREFIX, "action_")
    return Deny(code, wordings.refusal_for_model(refusal), wordings.refusal_for_people(refusal))
