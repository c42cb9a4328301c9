"""Several policies as one: all must allow."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field

from evoclaw.core.ports import ALLOW, Ask, Deny, Policy, Verdict
from evoclaw.core.tools import Call


@dataclass(frozen=True, slots=True)
class Chain(Policy):
    """Ask in order; the first `Deny` wins, so nobody is asked about what is denied anyway."""

    policies: tuple[Policy, ...]
    _admitting: tuple[Policy, ...] = field(init=False, repr=False)
    """Those that have a say about turns; most do not."""

    def __post_init__(self) -> None:
        own = tuple(p for p in self.policies if type(p).admit is not Policy.admit)
        object.__setattr__(self, "_admitting", own)

    async def judge(self, call: Call) -> Verdict:
        """Judge a call."""
        return await _weigh(policy.judge(call) for policy in self.policies)

    async def admit(self, turn: int) -> Verdict:
        """Judge another turn."""
        return await _weigh(policy.admit(turn) for policy in self._admitting)


async def _weigh(verdicts: Iterable[Awaitable[Verdict]]) -> Verdict:
    asked: Ask | None = None
    for pending in verdicts:
        verdict = await pending
        if isinstance(verdict, Deny):
            return verdict
        if isinstance(verdict, Ask) and asked is None:
            asked = verdict
    return asked or ALLOW
