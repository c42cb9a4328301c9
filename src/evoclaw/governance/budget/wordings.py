"""The texts about budgets, for the model and for people."""

from __future__ import annotations

from evoclaw.core.ledgers import ACTION, DOLLARS, PARTS, SECONDS, Left, Refusal
from evoclaw.core.messages import JSON

POINTS = {"turns": "EF-05", "seconds": "EF-06", "files": "EF-07", "lines": "EF-08"}


def units(kind: str, amount: int) -> float | int:
    """An amount in the unit shown to people: dollars, seconds, or a count."""
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
        what = f"the {'time' if kind == SECONDS else kind} that this run and its sub-runs have "
        return f"{what}together are used up. Answer with what you have."
    left = shown(kind, refusal.left)
    return f"only {left} left, and it takes up to {shown(kind, refusal.wanted)}. Do less at once."


def for_people(refusal: Refusal) -> str:
    """For people: which account has too little left."""
    point = POINTS.get(refusal.kind, "")
    wanted, left = shown(refusal.kind, refusal.wanted), shown(refusal.kind, refusal.left)
    over = f" within {refusal.per:,.0f} seconds" if refusal.per else ""
    text = f"{refused(refusal)} ({refusal.account}: {left} left{over}, {wanted} wanted)"
    return f"{point}: {text}" if point else text


def nearly(found: list[Left]) -> str:
    """For a person who is asked whether to continue."""
    parts = [f"{shown(left.kind, left.left)} of {shown(left.kind, left.most)}" for left in found]
    return f"the budget is nearly used: {', '.join(parts)} left"


def told(found: list[Left]) -> str:
    """For the model, appended to a result."""
    parts = [f"{shown(left.kind, left.left)} of {units(left.kind, left.most):,}" for left in found]
    return f"[Budget: {'; '.join(parts)} left. Do what matters most, then answer.]"


def figures(left: dict[str, Left]) -> dict[str, JSON]:
    """What is left, for `session_status`."""
    return {kind: units(kind, entry.left) for kind, entry in left.items()}
