"""Tools that are switched off."""

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
            off: Their names, or globs, and why; an empty reason is worded for you.
        """
        self._off = tuple(off.items())

    async def judge(self, call: Call) -> Verdict:
        """Deny what is switched off."""
        name = call.tool.name
        for glob, why in self._off:
            if fnmatchcase(name, glob):
                said = why or "it is switched off here"
                reason = f"the tool {name!r} cannot be used: {said}. Go on without it."
                return Deny("tool_off", reason, f"{name} is switched off: {said}")
        return ALLOW
