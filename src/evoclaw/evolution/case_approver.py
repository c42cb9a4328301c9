"""Answers the approval requests of a case's run, where no person is."""

from __future__ import annotations

from dataclasses import dataclass

from evoclaw.core.ports import Approval, Approver, Ask, Decision, NoApprover
from evoclaw.core.tools import Call
from evoclaw.evolution.cases import CaseFile
from evoclaw.evolution.recorded_results import RecordedResults

UNATTENDED = NoApprover("no person approves calls during an evaluation")


def case_approver(case: CaseFile, recorded: RecordedResults | None) -> Approver:
    """The approver of a run of a case; `recorded` answers its calls, if none is executed."""
    return CaseApprover(case, recorded) if case.attended else UNATTENDED


@dataclass(frozen=True, slots=True)
class CaseApprover:
    """Approves calls that the record can answer or, if calls are executed, of tools in `approve`.

    A call that a policy denies stays denied: it needs no approval.
    """

    case: CaseFile
    recorded: RecordedResults | None

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Approve the call once, or deny it."""
        if self.recorded is not None:
            approved, why = self.recorded.can_answer(call), "has a result for it"
        else:
            approved, why = call.name in self.case.case.approve, f"approves {call.name}"
        if not approved:
            return await UNATTENDED.approve(call, ask)
        return Approval(Decision.ONCE, f"the case {self.case.name!r} {why}")
