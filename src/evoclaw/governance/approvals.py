"""A person's answers: what exactly was asked, who may answer, and for what an answer holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.ports import Approval, Approver, Ask, Decision
from evoclaw.core.redaction import Redactor, marks_of
from evoclaw.core.tools import Call, Tool

HUMAN = "human"
"""The scope that only a person's token has: without it nobody approves anything."""
LONGEST = 2_000
"""Characters of one argument that are kept to be shown; the digest covers all of it."""
MOST = 16
"""Times that, for all arguments together."""
NO_SECRETS_KNOWN = Redactor()
"""Goes by names and shapes alone."""


class ApprovalSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to a call that a person must be asked about."""

    nobody: Literal["deny", "wait"] | None = None
    """When nobody is there: refuse the call, or stop the run until somebody has answered. Not said,
    a run at a terminal refuses; one of `evoclaw up`, which people reach at any time, stops."""
    expires_s: Annotated[int, Meta(ge=1, le=31_536_000)] = 86_400
    """Seconds after which an asking, and the answer to it, is worth nothing any more."""
    patience_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    """Seconds that a run itself waits for an answer before `nobody` counts."""
    most: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    """How many askings of a tenant may wait; the next one is refused."""


class Answerer(Struct, frozen=True):
    """Who answers."""

    kind: Literal["person", "agent"]
    name: str
    tenant: str = "local"
    scopes: frozenset[str] = frozenset()

    def why_not(self, tenant: str) -> str:
        """Why this one may not answer what a tenant's run asks; empty when it may."""
        if self.kind != "person" or HUMAN not in self.scopes:
            return "only a person may approve or deny; an agent never answers for itself"
        return "" if self.tenant == tenant else "there is no such approval"


class Scope(Struct, frozen=True, array_like=True):
    """What an approval for the session covers: nothing but calls that agree in all of this."""

    tenant: str
    user: str
    agent: str
    session: str
    tool: str
    tool_sha256: str
    code: str

    @property
    def key(self) -> str:
        """The same for what it covers, and for nothing else."""
        return _digest(msgspec.to_builtins(self))

    @property
    def text(self) -> str:
        """The same for the person who is about to approve it."""
        return (
            f"every call of {self.tool} in this session that is asked about as {self.code!r}, "
            "whatever its arguments"
        )


class Asking(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that waits for a person, as it is kept and shown. Arguments are cut and redacted."""

    id: str
    run_id: str
    request_id: str
    scope: Scope
    sha256: str
    """Of the tool and the whole of the arguments: an approval holds for these alone."""
    arguments: dict[str, JSON]
    reason: str
    asked_at: float
    expires_at: float


class Answered(Struct, frozen=True, omit_defaults=True):
    """What a person said."""

    decision: Decision
    by: Answerer
    at: float
    reason: str = ""


def tool_digest(tool: Tool) -> str:
    """What a tool is taken for: one that was swapped for another has another digest."""
    return _digest(
        [
            tool.name,
            tool.version,
            tool.parameters,
            sorted(tool.permissions),
            tool.effect,
            [tool.presses, tool.sends, tool.outside, tool.private],
        ]
    )


def call_digest(call: Call) -> str:
    """What exactly would be run."""
    return _digest([tool_digest(call.tool), call.arguments])


def scope_of(call: Call, ask: Ask, session: str = "") -> Scope:
    """What an approval for the session would cover; without a session, it is the run's."""
    who: Principal = call.context.principal
    return Scope(
        who.tenant,
        who.user,
        who.agent,
        session or call.run_id,
        call.name,
        tool_digest(call.tool),
        ask.code,
    )


def shown(call: Call, redactor: Redactor = NO_SECRETS_KNOWN) -> dict[str, JSON]:
    """The arguments for a person's eyes: no secrets, and nothing without end."""
    marks = marks_of(call.tool.parameters)
    made: dict[str, JSON] = redactor.value(call.arguments, marks)
    cut = {_cut(name): _short(value) for name, value in made.items()}
    if len(msgspec.json.encode(cut)) <= MOST * LONGEST:
        return cut
    return {name: _cut(msgspec.json.encode(value).decode()) for name, value in cut.items()}


def _short(value: JSON) -> JSON:
    if isinstance(value, str):
        return _cut(value)
    if is_object(value):
        return {_cut(key): _short(inner) for key, inner in value.items()}
    return [_short(inner) for inner in value] if is_array(value) else value


def _cut(text: str) -> str:
    left_out = len(text) - LONGEST
    if left_out <= 0:
        return text
    half = LONGEST // 2
    return f"{text[:half]}[… {left_out} characters not shown …]{text[-half:]}"


def _digest(value: JSON) -> str:
    return sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


@dataclass(frozen=True, slots=True)
class Remembered:
    """Asks once about what was approved for the session; forgets with the process."""

    approver: Approver
    _approved: set[Scope] = field(default_factory=set[Scope])

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Answer from memory, or ask."""
        scope = scope_of(call, ask, "process")
        if scope in self._approved:
            return Approval(Decision.SESSION, "approved for this session")
        approval = await self.approver.approve(call, ask)
        if approval.decision is Decision.SESSION:
            self._approved.add(scope)
        return approval
