"""Calls that pass a call on to a device: what is passed on is judged like a call of our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from evoclaw.core.messages import JSON, is_object
from evoclaw.core.ports import ALLOW, Ask, Deny, Policy, Verdict
from evoclaw.core.tools import Call, Tool

if TYPE_CHECKING:
    from evoclaw.orchestrator.fleet.fleet import Fleet

Passed: TypeAlias = Callable[[Call], Sequence[Call]]
"""The calls that one call is on the devices it goes to: none for most, several if these differ."""


def passed_on(fleet: Fleet) -> Passed:
    """By what the devices of a fleet have; which of them is meant does not matter."""

    def passed(call: Call) -> Sequence[Call]:
        name, params = _inside(call)
        if not name:
            return ()
        found: list[Tool] = []
        for member in fleet.members():
            hit = member.tools.find(name)
            if hit is not None and hit[0] not in found:
                found.append(hit[0])
        return [replace(call, tool=tool, arguments=params) for tool in found]

    return passed


def _inside(call: Call) -> tuple[str, dict[str, JSON]]:
    """The tool that a device is asked to use, and its arguments."""
    given = call.arguments
    params = given.get("params")
    inner = params if is_object(params) else {}
    match call.tool.name, given.get("action"):
        case ("edge_call", str(action)):
            return action, inner
        case ("nodes", "notify"):
            return "notify", {"message": given.get("message", "")}
        case ("nodes", "run") if isinstance(what := given.get("what"), str):
            return what, inner
        case _:
            return "", {}


@dataclass(frozen=True, slots=True)
class PassedOn(Policy):
    """Judges what is passed on by the rules for calls of our own."""

    rules: Policy
    passed: Passed

    async def judge(self, call: Call) -> Verdict:
        """Deny or ask as soon as one of the calls that it would be is denied or asked about."""
        first: Ask | None = None
        for inner in self.passed(call):
            verdict = await self.rules.judge(inner)
            if isinstance(verdict, Deny):
                return verdict
            if isinstance(verdict, Ask) and first is None:
                first = verdict
        return first or ALLOW


@dataclass(frozen=True, slots=True)
class CountedAs(Policy):
    """Has a budget count what is passed on: the lines of a file, the toggles of a relay."""

    budget: Policy
    passed: Passed

    async def judge(self, call: Call) -> Verdict:
        """Set aside what the call on the device will use."""
        inner = self.passed(call)
        return await self.budget.judge(inner[0] if inner else call)

    async def admit(self, turn: int) -> Verdict:
        """Judge a turn as the budget does."""
        return await self.budget.admit(turn)
