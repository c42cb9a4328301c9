"""Why a call is judged as it is: each rule asked, and which one decides."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from evoclaw.core.pipeline import kind_of
from evoclaw.core.ports import Allow, Ask, Deny, Policy, Verdict
from evoclaw.core.tools import Call


class Step(Struct, frozen=True, omit_defaults=True):
    """What one rule says."""

    policy: str
    verdict: str
    """`allow`, `deny` or `ask`."""
    code: str = ""
    reason: str = ""
    """For people."""


class Explained(Struct, frozen=True):
    """What becomes of a call, and what each rule said of it."""

    verdict: str
    steps: tuple[Step, ...]
    code: str = ""
    reason: str = ""
    """For people."""
    reason_for_model: str = ""
    by: str = ""
    """The rule that decides; empty when nothing speaks against the call."""


def name_of(policy: Policy) -> str:
    """The name of the step that a policy is."""
    return kind_of(policy).__name__


async def explain(policies: Iterable[Policy], call: Call) -> Explained:
    """Ask every rule, also those that a chain would not reach; decided as the chain decides.

    Give it none that counts what it is asked.

    Args:
        policies: In the order of the chain.
        call: It is judged, never run.
    """
    said = [(name_of(one), await one.judge(call)) for one in policies]
    steps = tuple(_step(who, verdict) for who, verdict in said)
    for kind in (Deny, Ask):
        for who, verdict in said:
            if isinstance(verdict, kind):
                step = _step(who, verdict)
                return Explained(
                    step.verdict, steps, step.code, step.reason, verdict.reason, by=who
                )
    whose = [step for step in steps if step.code]
    return Explained("allow", steps, whose[-1].code if whose else "")


def _step(who: str, verdict: Verdict) -> Step:
    if isinstance(verdict, Allow):
        return Step(who, "allow", verdict.code)
    kind = "deny" if isinstance(verdict, Deny) else "ask"
    return Step(who, kind, verdict.code, verdict.for_people or verdict.reason)
