"""Approvals: what a person is asked, who may answer, and which calls an answer covers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from evoclaw.core.encoding import json_digest
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.ports import Approval, Approver, Ask, Decision
from evoclaw.core.redaction import Redactor, secret_fields_of
from evoclaw.core.tools import Call, Tool
from evoclaw.governance.approval_targets import target_of

HUMAN_SCOPE = "human"
"""The token scope of a person; a token without it cannot approve or deny."""
MAX_SHOWN_ARGUMENT_CHARS = 2_000
"""Characters of one argument that are stored for display; the digest covers the full value."""
MAX_SHOWN_ARGUMENTS = 16
"""All arguments together may be this many times `MAX_SHOWN_ARGUMENT_CHARS`."""
AUTONOMY_CODE = "supervised"
"""Why a supervised agent asks before a call that acts; `supervised_write` if it only writes."""
NEVER_EXPIRES_AT = 253_402_300_799.0
"""The end of the year 9999: when an approval for the step of a workflow expires."""
DEFAULT_REDACTOR = Redactor()
"""Redacts by parameter names and value patterns only; it knows no configured secrets."""


class ApprovalSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to a call that needs a person's approval."""

    nobody: Literal["deny", "wait"] | None = None
    """When no person answers: refuse the call (`deny`), or suspend the run until someone does
    (`wait`). By default a run at a terminal refuses, and a run of `evoclaw up` waits."""
    expires_s: Annotated[int, Meta(ge=1, le=31_536_000)] = 86_400
    """Seconds after which an approval request, and the answer to it, expires."""
    patience_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    """Seconds that a run waits for an answer before `nobody` applies."""
    most: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    """Maximum number of pending approval requests of a tenant; the next one is refused."""

    def for_service(self) -> ApprovalSettings:
        """The same for runs of `evoclaw up`: they wait, unless `nobody` is set."""
        return replace(self, nobody="wait") if self.nobody is None else self


class Answerer(Struct, frozen=True):
    """The person or agent that answers an approval request."""

    kind: Literal["person", "agent"]
    name: str
    tenant: str = "local"
    scopes: frozenset[str] = frozenset()

    def refusal_reason(self, tenant: str) -> str:
        """Why this answerer may not answer for a tenant's run; empty if it may."""
        if self.kind != "person" or HUMAN_SCOPE not in self.scopes:
            return "only a person may approve or deny; an agent never answers for itself"
        return "" if self.tenant == tenant else "there is no such approval"


class WorkflowStepRef(Struct, frozen=True):
    """The step of a workflow whose run makes a call, bound to the definition of the workflow."""

    workflow: str
    step: str
    sha256: str
    """Of the whole definition: in another one, the step may do something else."""
    fixed: bool = False
    """Whether the definition says which call it is, as for a tool step; an agent chooses calls."""


class ApprovalScope(Struct, frozen=True, array_like=True):
    """What an approval covers beyond one call: only calls that match every field."""

    tenant: str
    user: str
    agent: str
    session: str
    tool: str
    tool_sha256: str
    code: str
    machine: str = ""
    """Where the calls run; empty for the machine that drives the run."""
    target: str = ""
    """Which calls of the tool, in words: a command prefix, a path, or one exact call."""
    target_sha256: str = ""
    """The digest of what `target` may show in part only."""
    step: WorkflowStepRef | None = None
    """Instead of a session: the step of a workflow, in all its runs."""

    @property
    def key(self) -> str:
        """A digest that identifies the scope."""
        same = replace(self, target="") if self.target_sha256 else self
        return json_digest(msgspec.to_builtins(same))

    @property
    def description(self) -> str:
        """The scope in words, for the person who is asked."""
        where = self.machine or "this machine"
        if self.step is None:
            return (
                f"{self.tool} on {where}: {self.target}; in this session, "
                f"for the reason {self.code!r}"
            )
        step = (
            f"step {self.step.step!r} of workflow {self.step.workflow!r} from now on, "
            f"until its definition changes (sha256 {self.step.sha256[:12]})"
        )
        if not self.tool:
            return step
        what = "with the arguments of the definition" if self.step.fixed else self.target
        place = "" if self.step.fixed else f" on {where}"
        return f"{step}: {self.tool}{place} {what}, for the reason {self.code!r}"


class ApprovalRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that waits for approval, as stored and shown: arguments truncated and redacted."""

    id: str
    run_id: str
    request_id: str
    scope: ApprovalScope
    sha256: str
    """The digest of the tool and the full arguments: an approval covers exactly these."""
    arguments: dict[str, JSON]
    reason: str
    asked_at: float
    expires_at: float
    step_scope: ApprovalScope | None = None
    """What an approval for its step would cover, if a workflow makes the call."""


class ApprovalAnswer(Struct, frozen=True, omit_defaults=True):
    """A person's answer to an approval request."""

    decision: Decision
    by: Answerer
    at: float
    reason: str = ""
    arguments: dict[str, JSON] | None = None
    """The arguments that the person put in place of the call's."""


def tool_digest(tool: Tool) -> str:
    """The identity of a tool: a tool replaced under the same name has another digest."""
    return json_digest(
        [
            tool.name,
            tool.version,
            tool.parameters,
            sorted(tool.permissions),
            tool.effect,
            [tool.has_side_effects, tool.sends, tool.outside, tool.private],
        ]
    )


def call_digest(call: Call) -> str:
    """The identity of a call: its tool, its full arguments, and the machine if it is another."""
    identity: list[JSON] = [tool_digest(call.tool), call.arguments]
    return json_digest([*identity, call.machine] if call.machine else identity)


def scope_of(
    call: Call, ask: Ask, session: str = "", redactor: Redactor = DEFAULT_REDACTOR
) -> ApprovalScope:
    """What an approval for the session would cover; without a session, the scope is the run."""
    who, target = call.context.principal, target_of(call, redactor)
    return ApprovalScope(
        who.tenant,
        who.user,
        who.agent,
        session or call.run_id,
        call.name,
        tool_digest(call.tool),
        ask.code,
        call.machine,
        target.text,
        target.sha256,
    )


def step_scope_of(
    call: Call, ask: Ask, step: WorkflowStepRef, redactor: Redactor = DEFAULT_REDACTOR
) -> ApprovalScope:
    """What an approval for the step of a workflow would cover, in all runs of the workflow."""
    who = call.context.principal
    if step.fixed:
        return fixed_step_scope(who.tenant, step, call.name, ask.code)
    target = target_of(call, redactor)
    return ApprovalScope(
        who.tenant,
        "",
        who.agent,
        "",
        call.name,
        tool_digest(call.tool),
        ask.code,
        call.machine,
        target.text,
        target.sha256,
        step,
    )


def fixed_step_scope(
    tenant: str, step: WorkflowStepRef, tool: str = "", code: str = AUTONOMY_CODE
) -> ApprovalScope:
    """What an approval covers for a step that its definition describes completely.

    Args:
        tenant: The tenant.
        step: The step.
        tool: The tool that it calls; empty for a step that only asks a person.
        code: Why a person is asked; the codes of the autonomy level count as one.
    """
    code = AUTONOMY_CODE if code.startswith(AUTONOMY_CODE) else code
    return ApprovalScope(tenant, "", "", "", tool, "", code if tool else "", step=step)


def displayed_arguments(call: Call, redactor: Redactor = DEFAULT_REDACTOR) -> dict[str, JSON]:
    """The arguments as shown to a person: redacted and truncated."""
    marks = secret_fields_of(call.tool.parameters)
    made: dict[str, JSON] = redactor.value(call.arguments, marks)
    cut = {_truncate_text(name): _truncate_value(value) for name, value in made.items()}
    if len(msgspec.json.encode(cut)) <= MAX_SHOWN_ARGUMENTS * MAX_SHOWN_ARGUMENT_CHARS:
        return cut
    return {
        name: _truncate_text(msgspec.json.encode(value).decode()) for name, value in cut.items()
    }


def _truncate_value(value: JSON) -> JSON:
    if isinstance(value, str):
        return _truncate_text(value)
    if is_object(value):
        return {_truncate_text(key): _truncate_value(inner) for key, inner in value.items()}
    return [_truncate_value(inner) for inner in value] if is_array(value) else value


def _truncate_text(text: str) -> str:
    left_out = len(text) - MAX_SHOWN_ARGUMENT_CHARS
    if left_out <= 0:
        return text
    half = MAX_SHOWN_ARGUMENT_CHARS // 2
    return f"{text[:half]}[… {left_out} characters not shown …]{text[-half:]}"


@dataclass(frozen=True, slots=True)
class SessionApprovalCache:
    """Does not ask again about what was approved for the session; lost when the process ends."""

    approver: Approver
    _approved: set[ApprovalScope] = field(default_factory=set[ApprovalScope])

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Answer from the cache, or ask the approver."""
        scope = scope_of(call, ask, "process")
        if scope in self._approved:
            return Approval(Decision.SESSION, "approved for this session")
        approval = await self.approver.approve(call, ask)
        if approval.decision is Decision.SESSION:
            self._approved.add(scope)
        return approval
