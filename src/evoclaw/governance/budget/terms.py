"""What holds for a run's budget beside its amounts: whose it is, what tokens cost, who is asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import quote

from msgspec import Struct

from evoclaw.core.labels import Principal
from evoclaw.core.ledgers import ACTION, Path, Refusal
from evoclaw.core.ports import Deny
from evoclaw.governance.budget import wordings
from evoclaw.governance.budget.boundaries import CommandCheck
from evoclaw.governance.budget.foresight import Price

StopCondition: TypeAlias = Callable[[], str]
"""Why a run must stop now; empty while it need not."""


class Terms(Struct, frozen=True):
    """How a budget is kept to."""

    price: Price | None = None
    """What a model's tokens cost; without it no model has a price."""
    attended: bool = False
    """Whether somebody can be asked when a limit is near."""
    commands: CommandCheck | None = None
    """Judges command lines (EF-03)."""
    stops: tuple[StopCondition, ...] = ()
    """Further reasons to stop, looked at before every reply and call."""
    clock: Callable[[], float] = time.monotonic
    """Seconds that never go back."""


USUAL = Terms()


def path_of(principal: Principal, run_id: str) -> Path:
    """Tenant, user, agent, run; a level that nobody named is left out."""
    names = [f"tenant:{quote(principal.tenant, safe='')}"]
    for level, name in (("user", principal.user), ("agent", principal.agent)):
        if name:
            names.append(f"{names[-1]}/{level}:{quote(name, safe='')}")
    return (*names, f"run:{run_id}")


def denied(refusal: Refusal) -> Deny:
    """The verdict on what there is not enough for."""
    code = "budget_" + refusal.kind.replace(ACTION, "action_")
    return Deny(code, wordings.refused(refusal), wordings.for_people(refusal))
