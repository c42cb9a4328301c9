"""Calls that forward a call to an edge: policies and budgets also apply to the forwarded call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from evoclaw.core.ports import ALLOW, Ask, Deny, Policy, Verdict
from evoclaw.core.tools import Call
from evoclaw.governance.budget.policy import RunBudget
from evoclaw.governance.rate_limits import RateLimits

ForwardedCallsOf: TypeAlias = Callable[[Call], Sequence[Call]]
"""The calls on edges that a call forwards: none for most calls, several if the edges differ."""


@dataclass(frozen=True, slots=True)
class ForwardedCalls(Policy):
    """Judges the call that `edge_call` or `nodes` forwards by the same rules."""

    rules: Policy
    forwarded: ForwardedCallsOf

    async def judge(self, call: Call) -> Verdict:
        """Deny or ask as soon as one of the forwarded calls is denied or asked about."""
        first: Ask | None = None
        for inner in self.forwarded(call):
            verdict = await self.rules.judge(inner)
            if isinstance(verdict, Deny):
                return verdict
            if isinstance(verdict, Ask) and first is None:
                first = verdict
        return first or ALLOW


@dataclass(frozen=True, slots=True)
class ForwardedRates(Policy):
    """Counts a call for its own tool and for the tool of the edge that it forwards to."""

    rates: RateLimits
    forwarded: ForwardedCallsOf

    @property
    def kind(self) -> type:
        """The step kind of the rate limits."""
        return RateLimits

    async def judge(self, call: Call) -> Verdict:
        """Deny the call if one of its tools was called too often."""
        inner = (forwarded.tool.name for forwarded in self.forwarded(call))
        return await self.rates.count(call, (call.tool.name, *inner))


@dataclass(frozen=True, slots=True)
class ForwardedBudget(Policy):
    """Has a budget count the forwarded call: the lines of a file, the toggles of a relay."""

    budget: Policy
    forwarded: ForwardedCallsOf

    @property
    def kind(self) -> type:
        """The step kind of the budget."""
        return RunBudget

    async def judge(self, call: Call) -> Verdict:
        """Reserve what the call on the edge will use."""
        inner = self.forwarded(call)
        return await self.budget.judge(inner[0] if inner else call)

    async def admit(self, turn: int) -> Verdict:
        """Judge a turn as the budget does."""
        return await self.budget.admit(turn)
