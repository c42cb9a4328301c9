"""A person's answers, kept for as long as they were given for."""

from __future__ import annotations

from dataclasses import dataclass, field

from evoclaw.core.ports import Approval, Approver, Ask, Decision
from evoclaw.core.tools import Call


@dataclass(frozen=True, slots=True)
class Remembered:
    """Ask a person once about a tool that was approved for the session."""

    approver: Approver
    _tools: set[str] = field(default_factory=set[str])

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Answer from memory, or ask."""
        if call.name in self._tools:
            return Approval(Decision.SESSION, "approved for this session")
        approval = await self.approver.approve(call, ask)
        if approval.decision is Decision.SESSION:
            self._tools.add(call.name)
        return approval
