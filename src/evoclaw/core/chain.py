"""`Chain`: several policies as one; all must allow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import CoroutineType
from typing import Any, TypeVar

from evoclaw.core.ports import ALLOW, Ask, Deny, Policy, Verdict
from evoclaw.core.tools import Call

Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class Chain(Policy):
    """Ask policies in order; the first `Deny` wins: no approval is requested for a denied call."""

    policies: tuple[Policy, ...]
    _judging: tuple[Callable[[Call], Awaitable[Verdict]], ...] = field(init=False, repr=False)
    _admitting: tuple[Callable[[int], Awaitable[Verdict]], ...] = field(init=False, repr=False)
    """The `admit` of the policies that override it; most do not."""

    def __post_init__(self) -> None:
        admitting = (p for p in self.policies if type(p).admit is not Policy.admit)
        object.__setattr__(self, "_judging", tuple(p.judge for p in self.policies))
        object.__setattr__(self, "_admitting", tuple(p.admit for p in admitting))

    def judge(self, call: Call) -> CoroutineType[Any, Any, Verdict]:
        """Judge a call."""
        return _judge_all(self._judging, call)

    def admit(self, turn: int) -> CoroutineType[Any, Any, Verdict]:
        """Judge whether the run may have another turn."""
        return _judge_all(self._admitting, turn)


async def _judge_all(
    rules: Iterable[Callable[[Asked], Awaitable[Verdict]]], subject: Asked
) -> Verdict:
    first: Ask | None = None
    allowed = ALLOW
    for rule in rules:
        verdict = await rule(subject)
        if verdict is ALLOW:
            continue
        if isinstance(verdict, Deny):
            return verdict
        if isinstance(verdict, Ask):
            first = first or verdict
        elif verdict.code:
            # Keep the code of the policy that allowed it, for the record.
            allowed = verdict
    return first or allowed
