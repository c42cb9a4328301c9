"""How much an agent may do by itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from evoclaw.core.ports import ALLOW, Ask, Deny, Policy, Verdict
from evoclaw.core.tools import Call, Effect


class Level(StrEnum):
    """The three levels."""

    READ_ONLY = "read_only"
    SUPERVISED = "supervised"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Autonomy(Policy):
    """Reading is free; what writes or executes is denied, asked for, or free, by level."""

    level: Level

    async def judge(self, call: Call) -> Verdict:
        """Judge by the tool's effect."""
        if call.tool.effect is Effect.READ or self.level is Level.FULL:
            return ALLOW
        if self.level is Level.READ_ONLY:
            reason = "this run is read-only. Go on without it or tell the user what you would do."
            return Deny("read_only", reason, "the run is read-only")
        return Ask("supervised", f"{call.name} writes or executes")
