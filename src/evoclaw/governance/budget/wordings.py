"""The texts about budgets, for the model and for people."""

from __future__ import annotations

from evoclaw.core.ledgers import (
    ACTION_PREFIX,
    DOLLARS,
    SECONDS,
    UNITS_PER_KIND,
    InsufficientFunds,
    RemainingBudget,
)
from evoclaw.core.messages import JSON

ENFORCEMENT_POINTS = {"turns": "EF-05", "seconds": "EF-06", "files": "EF-07", "lines": "EF-08"}


def in_display_units(kind: str, amount: int) -> float | int:
    """An amount in the unit shown to people: dollars, seconds, or a count."""
    return amount / UNITS_PER_KIND[kind] if kind in UNITS_PER_KIND else amount


def format_amount(kind: str, amount: int) -> str:
    """An amount with its unit."""
    if kind == DOLLARS:
        return f"${amount / UNITS_PER_KIND[DOLLARS]:,.4f}"
    if kind == SECONDS:
        return f"{amount / UNITS_PER_KIND[SECONDS]:,.0f} seconds"
    if kind.startswith(ACTION_PREFIX):
        return f"{amount:,} times {kind.removeprefix(ACTION_PREFIX)}"
    return f"{amount:,} {kind if amount != 1 else kind.removesuffix('s')}"


def refusal_for_model(refusal: InsufficientFunds) -> str:
    """For the model: what is used up, and what to do."""
    kind = refusal.kind
    if kind.startswith(ACTION_PREFIX):
        name = kind.removeprefix(ACTION_PREFIX)
        text = f"{name} has reached its limit within {refusal.per:,.0f} seconds"
        return f"{text}. Do not try again now; tell the user."
    if not refusal.left:
        what = (
            "this run and its sub-runs have used all of their "
            f"{'time' if kind == SECONDS else kind}"
        )
        return f"{what}. Answer with what you have."
    left = format_amount(kind, refusal.left)
    wanted = format_amount(kind, refusal.wanted)
    return f"only {left} left, and this may need {wanted}. Do less in one step."


def refusal_for_people(refusal: InsufficientFunds) -> str:
    """For people: which account has too little left."""
    point = ENFORCEMENT_POINTS.get(refusal.kind, "")
    wanted, left = (
        format_amount(refusal.kind, refusal.wanted),
        format_amount(refusal.kind, refusal.left),
    )
    over = f" within {refusal.per:,.0f} seconds" if refusal.per else ""
    text = f"{refusal_for_model(refusal)} ({refusal.account}: {left} left{over}, {wanted} wanted)"
    return f"{point}: {text}" if point else text


def near_limit_warning(found: list[RemainingBudget]) -> str:
    """For a person who is asked whether to continue."""
    parts = [
        f"{format_amount(left.kind, left.left)} of {format_amount(left.kind, left.most)}"
        for left in found
    ]
    return f"the budget is nearly used: {', '.join(parts)} left"


def budget_notice(found: list[RemainingBudget]) -> str:
    """For the model, appended to a result."""
    parts = [
        f"{format_amount(left.kind, left.left)} of {in_display_units(left.kind, left.most):,}"
        for left in found
    ]
    return f"[Budget: {'; '.join(parts)} left. Do what matters most, then answer.]"


def remaining_amounts(left: dict[str, RemainingBudget]) -> dict[str, JSON]:
    """What is left, for `session_status`."""
    return {kind: in_display_units(kind, entry.left) for kind, entry in left.items()}
