"""A call needs every permission of its tool."""

from __future__ import annotations

from dataclasses import dataclass

from evoclaw.core.ports import ALLOW, Deny, Policy, Verdict
from evoclaw.core.tools import Call, missing_permissions
from evoclaw.core.wording import permission_denied


@dataclass(frozen=True, slots=True)
class Permissions(Policy):
    """Allow a call only if the agent holds every permission the tool needs."""

    capabilities: frozenset[str]
    """`"*"` holds all; nothing holds none."""

    async def judge(self, call: Call) -> Verdict:
        """Deny what is not held."""
        missing = missing_permissions(call.tool, self.capabilities)
        return Deny("permission", permission_denied(call.tool, missing)) if missing else ALLOW
