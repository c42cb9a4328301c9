"""What cannot be recorded is not done."""

from __future__ import annotations

from dataclasses import dataclass

from evoclaw.core.ports import ALLOW, Deny, Verdict
from evoclaw.core.tools import Call
from evoclaw.observe.audit.writer import Audit


@dataclass(frozen=True, slots=True)
class Recordable:
    """Denies every call while the audit cannot be written; for runs and for devices."""

    audit: Audit

    async def judge(self, call: Call) -> Verdict:
        """Deny if the call could not be put on record."""
        if not self.audit.failing:
            return ALLOW
        reason = "the audit cannot be written, so nothing is run; tell the user"
        return Deny("audit", reason, f"the audit cannot be written: {self.audit.failing}")

    async def admit(self, turn: int) -> Verdict:
        """Allow: a reply does nothing by itself."""
        return ALLOW
