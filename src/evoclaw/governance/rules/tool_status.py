"""The policy for tools that the operator switched off."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from evoclaw.core.ports import ALLOW, Deny, Policy, Verdict
from evoclaw.core.tools import Call


class ToolStatus(Policy):
    """Denies tools that the operator switched off."""

    def __init__(self, off: Mapping[str, str]) -> None:
        """Switch tools off.

        Args:
            off: Tool names or globs, each with the reason; an empty reason gets a default text.
        """
        self._off = tuple(off.items())

    async def judge(self, call: Call) -> Verdict:
        """Deny a call of a tool that is switched off."""
        name = call.tool.name
        for glob, why in self._off:
            if fnmatchcase(name, glob):
                because = why or "it is switched off here"
                reason = f"the tool {name!r} cannot be used: {because}. Go on without it."
                return Deny("tool_off", reason, f"{name} is switched off: {because}")
        return ALLOW
