"""Pre-approval: an agent with full autonomy need not ask about commands that are only unclear."""

from __future__ import annotations

from dataclasses import dataclass

from evoclaw.core.pipeline import kind_of
from evoclaw.core.ports import Allow, Ask, Policy, Verdict
from evoclaw.core.tools import Call

PREAPPROVED_CODES = frozenset({"unreadable", "code", "environment", "maybe"})
"""Codes of an Ask which only says that a command cannot be analysed; the sandbox bounds it. The
part after a colon does not count: `maybe:NAME` means that the rule NAME may apply."""


@dataclass(frozen=True, slots=True)
class PreApproval(Policy):
    """Turns an Ask of a policy with one of these codes into an Allow; denials stay denials."""

    rule: Policy
    codes: frozenset[str] = PREAPPROVED_CODES

    @property
    def kind(self) -> type:
        """The step kind of the wrapped policy."""
        return kind_of(self.rule)

    async def judge(self, call: Call) -> Verdict:
        """Judge as the wrapped policy does; the code says that the call was pre-approved."""
        verdict = await self.rule.judge(call)
        if isinstance(verdict, Ask) and verdict.code.partition(":")[0] in self.codes:
            return Allow(f"in_advance:{verdict.code}")
        return verdict

    async def admit(self, turn: int) -> Verdict:
        """Judge a turn as the wrapped policy does."""
        return await self.rule.admit(turn)
