"""How budgets speak: to the model, and to people."""

from __future__ import annotations

from evoclaw.core.ledgers import ACTION, DOLLARS, PARTS, SECONDS, Left, Refusal
from evoclaw.core.messages import JSON

POINTS = {"turns": "EF-05", "seconds": "EF-06", "files": "EF-07", "lines": "EF-08"}


def units(kind: str, amount: int) -> float | int:
    """An amount in the unit that people use."""
    return amount / PARTS[kind] if kind in PARTS else amount


def shown(kind: str, amount: int) -> str:
    """An amount with its unit."""
    if kind == DOLLARS:
        return f"${amount / PARTS[DOLLARS]:,.4f}"
    if kind == SECONDS:
        return f"{amount / PARTS[SECONDS]:,.0f} seconds"
    if kind.startswith(ACTION):
        return f"{amount:,} times {kind.removeprefix(ACTION)}"
    return f"{amount:,} {kind if amount != 1 else kind.removesuffix('s')}"


def refused(refusal: Refusal) -> str:
    """For the model: what is used up, and what to do."""
    kind = refusal.kind
    if kind.startswith(ACTION):
        name = kind.removeprefix(ACTION)
        text = f"{name} may not be done more often within {refusal.per:,.0f} seconds"
        return f"{text}. Do not try again now; tell the user."
    if not refusal.left:
        said = f"the {'time' if kind == SECONDS else kind} that this run and its sub-runs have "
        return f"{said}together are used up. Answer with what you have."
    left = shown(kind, refusal.left)
    return f"only {left} left, and it takes up to {shown(kind, refusal.wanted)}. Do less at once."


def for_people(refusal: Refusal) -> str:
    """For people: which account has not enough."""
    point = POINTS.get(refusal.kind, "")
    wanted, left = shown(refusal.kind, refusal.wanted), shown(refusal.kind, refusal.left)
    over = f" within {refusal.per:,.0f} seconds" if refusal.per else ""
    said = f"{refused(refusal)} ({refusal.account}: {left} left{over}, {wanted} wanted)"
    return f"{point}: {said}" if point else said


def nearly(found: list[Left]) -> str:
    """For a person who is asked whether to go on."""
    parts = [f"{shown(one.kind, one.left)} of {shown(one.kind, one.most)}" for one in found]
    return f"the budget is nearly used: {', '.join(parts)} left"


def told(found: list[Left]) -> str:
    """For the model, below a result."""
    parts = [f"{shown(one.kind, one.left)} of {units(one.kind, one.most):,}" for one in found]
    return f"[Budget: {'; '.join(parts)} left. Do what matters most, then answer.]"


def figures(left: dict[str, Left]) -> dict[str, JSON]:
    """What is left, for `session_status`."""
    return {kind: units(kind, one.left) for kind, one in left.items()}
