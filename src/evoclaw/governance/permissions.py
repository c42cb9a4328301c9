"""A call needs every permission of its tool."""

from __future__ import annotations

from dataclasses import dataclass

from evoclaw.core.ports import ALLOW, Deny, Policy, Verdict
from evoclaw.core.tools import Call, Tool
from evoclaw.core.wording import permission_denied

ALL = "*"


@dataclass(frozen=True, slots=True)
class Permissions(Policy):
    """Allow a call only if the agent holds every permission the tool needs."""

    capabilities: frozenset[str]
    """`"*"` holds all; nothing holds none."""

    def missing(self, tool: Tool) -> tuple[str, ...]:
        """What the agent lacks for a tool; without any capability it lacks even a free tool's."""
        held = self.capabilities
        if held and (ALL in held or tool.permissions <= held):
            return ()
        return tuple(sorted(tool.permissions - held)) or ("any capability",)

    async def judge(self, call: Call) -> Verdict:
        """Deny what is not held."""
        missing = self.missing(call.tool)
        return Deny("permission", permission_denied(call.tool, missing)) if missing else ALLOW
