"""Permissions: the capabilities of an agent decide which tools it is offered and may call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
class Permissions(Policy):
    """Denies a call whose tool needs a permission that the agent does not hold."""

    capabilities: frozenset[str]
    """`"*"` grants all permissions; an empty set grants none."""

    async def judge(self, call: Call) -> Verdict:
        """Deny the call if a permission is missing."""
        missing = missing_permissions(call.tool, self.capabilities)
        return Deny("permission", permission_denied(call.tool, missing)) if missing else ALLOW
