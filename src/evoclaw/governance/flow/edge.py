"""The information flow policy of an edge, which has no history, only the label in the command."""

from __future__ import annotations

from evoclaw.core.ports import ALLOW, Deny, Policy, Verdict
from evoclaw.core.tools import Call
from evoclaw.governance.flow.settings import DEFAULT, EdgeRule, FlowSettings, with_configured_flags


class EdgeFlow(Policy):
    """Denies acting calls in an untrusted context, if the edge is set to be strict."""

    def __init__(self, settings: FlowSettings = DEFAULT) -> None:
        self._settings = settings

    async def judge(self, call: Call) -> Verdict:
        """Allow what the orchestrator granted, unless the edge is set to be strict."""
        settings, label = self._settings, call.context.label
        if settings.edge is not EdgeRule.STRICT or not label.untrusted:
            return ALLOW
        tool = with_configured_flags(call.tool, settings)
        if not (tool.has_side_effects or (tool.sends and label.private)):
            return ALLOW
        reason = (
            "this device refuses calls that act once the model has read text from "
            f"{untrusted_sources(call)}. "
            "Continue without it, and tell the user what you would have done."
        )
        return Deny("untrusted", reason, f"{call.name} in a context with {untrusted_sources(call)}")


def untrusted_sources(call: Call) -> str:
    """The tools that the untrusted part of a call's context came from."""
    return ", ".join(call.context.label.sources) or "another agent"
