"""What a person said yes to in advance, by letting an agent act by itself."""

from __future__ import annotations

from dataclasses import dataclass

from evoclaw.core.pipeline import kind_of
from evoclaw.core.ports import Allow, Ask, Policy, Verdict
from evoclaw.core.tools import Call

UNCLEAR = frozenset({"unreadable", "code", "environment", "maybe"})
"""Askings that say no more than that a command cannot be seen through: the sandbox bounds it. What
stands behind a colon does not count: `maybe:NAME` is that the rule of this name may be meant."""


@dataclass(frozen=True, slots=True)
class InAdvance(Policy):
    """Answers some askings of a rule with the yes that was given in advance; denials stay."""

    rule: Policy
    codes: frozenset[str] = UNCLEAR

    @property
    def kind(self) -> type:
        """It stands where the rule stands."""
        return kind_of(self.rule)

    async def judge(self, call: Call) -> Verdict:
        """Judge as the rule does, and say whose word it was."""
        verdict = await self.rule.judge(call)
        if isinstance(verdict, Ask) and verdict.code.partition(":")[0] in self.codes:
            return Allow(f"in_advance:{verdict.code}")
        return verdict

    async def admit(self, turn: int) -> Verdict:
        """Judge as the rule does."""
        return await self.rule.admit(turn)
