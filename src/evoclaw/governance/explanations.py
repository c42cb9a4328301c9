"""Explains a verdict: what each policy says about a call, and which policy decides."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from evoclaw.core.pipeline import kind_of
from evoclaw.core.ports import Allow, Ask, Deny, Policy, Verdict
from evoclaw.core.tools import Call


class PolicyStep(Struct, frozen=True, omit_defaults=True):
    """The verdict of one policy."""

    policy: str
    verdict: str
    """`allow`, `deny` or `ask`."""
    code: str = ""
    reason: str = ""
    """For people."""


class CallExplanation(Struct, frozen=True):
    """The verdict on a call, and the verdict of each policy."""

    verdict: str
    steps: tuple[PolicyStep, ...]
    code: str = ""
    reason: str = ""
    """For people."""
    reason_for_model: str = ""
    by: str = ""
    """The policy that decides; empty if every policy allows the call."""


def policy_name(policy: Policy) -> str:
    """The class name of a policy's pipeline step."""
    return kind_of(policy).__name__


async def explain(policies: Iterable[Policy], call: Call) -> CallExplanation:
    """Ask every policy, also those that a chain would not reach; decide as the chain does.

    Do not pass policies that count or reserve when they judge, such as rates and budgets.

    Args:
        policies: In the order of the chain.
        call: The call to judge; it is not run.
    """
    verdicts = [(policy_name(policy), await policy.judge(call)) for policy in policies]
    steps = tuple(_step(name, verdict) for name, verdict in verdicts)
    for kind in (Deny, Ask):
        for name, verdict in verdicts:
            if isinstance(verdict, kind):
                step = _step(name, verdict)
                return CallExplanation(
                    step.verdict, steps, step.code, step.reason, verdict.reason, by=name
                )
    with_code = [step for step in steps if step.code]
    return CallExplanation("allow", steps, with_code[-1].code if with_code else "")


def _step(name: str, verdict: Verdict) -> PolicyStep:
    if isinstance(verdict, Allow):
        return PolicyStep(name, "allow", verdict.code)
    kind = "deny" if isinstance(verdict, Deny) else "ask"
    return PolicyStep(name, kind, verdict.code, verdict.for_people or verdict.reason)
