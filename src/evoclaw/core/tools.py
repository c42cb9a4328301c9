"""`Tool`: what the model may call. `Call`: one call that passed its checks."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from evoclaw.core.history import History
from evoclaw.core.labels import CLEAN, LOCAL_PRINCIPAL, Label, Principal
from evoclaw.core.messages import JSON, ErrorBlock, ErrorKind, TextBlock, ToolResult


class Effect(StrEnum):
    """What a tool does to its resource."""

    READ = "read"
    WRITE = "write"


ALL_PERMISSIONS = "*"
"""A capability that includes every permission."""
ANY_RESOURCE = "*"
"""A resource that conflicts with all others: only reading calls may run concurrently."""


UNDO_TOOL = "undo"
"""The tool of edges that takes back file changes. People use it; models are not offered it."""
WAITING_PERMISSIONS = frozenset({"interact", "session"})
"""Permissions of tools that wait for people or other runs, and keep their own timeout."""


class Tool(Struct, frozen=True, omit_defaults=True):
    """A tool that the model may call, and what policies and executors must know about it."""

    name: str
    description: str
    parameters: dict[str, JSON]
    """JSON Schema of the arguments object."""
    permissions: frozenset[str] = frozenset()
    """The agent must hold all of them."""
    effect: Effect = Effect.WRITE
    resources: tuple[str, ...] = (ANY_RESOURCE,)
    """The arguments that name what a call touches; `("*",)`: everything, `()`: nothing."""
    timeout: float = 10.0
    """Seconds."""
    max_timeout: float = 60.0
    """The longest timeout that a call may request with a `timeout_ms` argument."""
    idempotent: bool = False
    """Running it twice does no more than running it once."""
    streams: bool = False
    """Whether it reports output while it runs."""
    slack: float = 0.0
    """Seconds of transport delay allowed on top of the timeout, which the remote side enforces
    itself."""
    version: str = "1"
    aliases: tuple[str, ...] = ()
    """Other names that the model may use; they are not offered."""
    outside: bool = False
    """Its results contain untrusted text: web pages, mail, messages of other agents."""
    private: bool = False
    """Its results contain confidential data."""
    acts: bool | None = None
    """It has effects outside the conversation and the workspace, such as a change or a message;
    None: if its effect is `write`."""
    sends: bool = False
    """Its arguments are sent to where outsiders may read them, though it changes nothing."""
    isolated: bool = False
    """Its function runs in a sandboxed process of its own, not in this process."""

    @property
    def label(self) -> Label:
        """The label of its results."""
        if not (self.outside or self.private):
            return CLEAN
        return Label(self.outside, self.private, (self.name,))

    @property
    def has_side_effects(self) -> bool:
        """Whether a call has effects outside the conversation."""
        return self.effect is Effect.WRITE if self.acts is None else self.acts


class UnavailableTool(Struct, frozen=True):
    """A tool that cannot be used now."""

    tool: Tool
    why: str
    """The reason, and what to do about it."""

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool.name


class Context(Struct, frozen=True):
    """What the model had seen when it made a call, and on whose behalf it acts."""

    label: Label = CLEAN
    """The label of everything that the model had seen."""
    history: History | None = None
    """The messages themselves; None if the call came over the wire."""
    principal: Principal = LOCAL_PRINCIPAL


EMPTY_CONTEXT = Context()


class Call(Struct, frozen=True):
    """A call whose tool exists and whose arguments are valid: ready to be judged and run."""

    id: str
    tool: Tool
    arguments: dict[str, JSON]
    request_id: str
    """`<run id>.<turn>.<index>.<attempt>`: the same after a restart, so no call runs twice."""
    timeout: float
    """Seconds that this call may take: the tool's timeout, or the requested one, clamped."""
    resumed: bool = False
    """It was started before a crash, and its outcome is unknown: run it again only if it is safe to
    repeat, or if the executor remembers its request id."""
    epoch: int = 1
    """How often its run was started or resumed. An orchestrator with a lower epoch is fenced."""
    context: Context = EMPTY_CONTEXT
    machine: str = ""
    """The machine that will run it, by the name that people know: an edge, mostly. Empty: the
    machine that drives the run."""

    @property
    def run_id(self) -> str:
        """The run it belongs to."""
        return self.request_id.partition(".")[0]

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool.name

    @property
    def safe_to_repeat(self) -> bool:
        """Whether the call may be run twice: it only reads, or is idempotent."""
        return self.tool.effect is Effect.READ or self.tool.idempotent

    @property
    def only_reads_here(self) -> bool:
        """Whether it changes nothing, and reaches nothing outside the machine that it runs on.

        Then it may run before its start is stored: after a crash it would be repeated anyway.
        """
        tool = self.tool
        reaches_out = tool.outside or tool.sends or tool.has_side_effects
        return tool.effect is Effect.READ and not reaches_out

    def ok(self, text: str, **details: JSON) -> ToolResult:
        """A successful result of plain text."""
        return ToolResult(self.id, self.tool.name, (TextBlock(text),), details=details)

    def failed(self, kind: ErrorKind, text: str, **details: JSON) -> ToolResult:
        """The result of a failed call, with an error for the model."""
        return failure(self.id, self.tool.name, kind, text, **details)


def failure(call_id: str, name: str, kind: ErrorKind, text: str, **details: JSON) -> ToolResult:
    """The result of a call that did not succeed."""
    return ToolResult(call_id, name, (ErrorBlock(kind, text),), error=kind, details=details)


def missing_permissions(tool: Tool, held: frozenset[str]) -> tuple[str, ...]:
    """The permissions that are missing to use a tool; without any capability no tool is allowed."""
    if held and (ALL_PERMISSIONS in held or tool.permissions <= held):
        return ()
    return tuple(sorted(tool.permissions - held)) or ("any capability",)
