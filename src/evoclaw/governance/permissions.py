"""Which tools an agent is offered and may call: its capabilities, and what is switched off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from evoclaw.core.pipeline import OfferStep
from evoclaw.core.ports import ALLOW, Deny, Policy, Verdict
from evoclaw.core.tools import Call, Tool, missing_permissions
from evoclaw.core.wording import permission_denied


@dataclass(frozen=True, slots=True)
class PermittedTools(OfferStep):
    """Offers only the tools whose permissions the agent holds."""

    capabilities: frozenset[str]
    """`"*"` grants all permissions; an empty set grants none."""

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Leave out the tools whose calls would be denied."""
        return [tool for tool in tools if not missing_permissions(tool, self.capabilities)]


@dataclass(frozen=True, slots=True)
class NamedTools(OfferStep):
    """Offers only the tools that the settings of an edge name."""

    names: frozenset[str]

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Leave out tools with other names."""
        return [tool for tool in tools if tool.name in self.names]


@dataclass(frozen=True, slots=True)
class Permissions(Policy):
    """Denies a call whose tool needs a permission that the agent does not hold."""

    capabilities: frozenset[str]
    """`"*"` grants all permissions; an empty set grants none."""

    async def judge(self, call: Call) -> Verdict:
        """Deny the call if a permission is missing."""
        missing = missing_permissions(call.tool, self.capabilities)
        return Deny("permission", permission_denied(call.tool, missing)) if missing else ALLOW


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
                because = why or "it is disabled here"
                reason = f"the tool {name!r} cannot be used: {because}. Continue without it."
                return Deny("tool_off", reason, f"{name} is disabled: {because}")
        return ALLOW
