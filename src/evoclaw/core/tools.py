"""What can be asked for (`Tool`), and one asking that passed its checks (`Call`)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from evoclaw.core.history import History
from evoclaw.core.labels import CLEAN, LOCAL, Label, Principal
from evoclaw.core.messages import JSON, ErrorBlock, ErrorKind, TextBlock, ToolResult


class Effect(StrEnum):
    """What a tool does to its resource."""

    READ = "read"
    WRITE = "write"


ALL = "*"
"""As a capability: every permission."""
EVERYTHING = "*"
"""As a resource: the call may touch anything, so nothing runs beside it unless both only read."""


class Tool(Struct, frozen=True, omit_defaults=True):
    """What the model may ask for, and what the house must know before it runs."""

    name: str
    description: str
    parameters: dict[str, JSON]
    """JSON Schema of the arguments object."""
    permissions: frozenset[str] = frozenset()
    """All of them must be held by the agent."""
    effect: Effect = Effect.WRITE
    resources: tuple[str, ...] = (EVERYTHING,)
    """The arguments that name what a call touches; `("*",)` is everything, `()` nothing."""
    timeout: float = 10.0
    """Seconds."""
    max_timeout: float = 60.0
    """What a call may ask for at most, with a `timeout_ms` argument."""
    idempotent: bool = False
    """Running it twice does no more than running it once."""
    streams: bool = False
    """It reports output while it runs."""
    slack: float = 0.0
    """Seconds that the way to where it runs and back may take on top: whoever runs it there keeps
    to the timeout by himself."""
    version: str = "1"
    aliases: tuple[str, ...] = ()
    """Other names by which it may be called; they are not offered."""
    outside: bool = False
    """Its results hold what outsiders may have written: pages, mail, other agents' words."""
    private: bool = False
    """Its results hold what is not for everybody."""
    acts: bool | None = None
    """It changes something, or tells somebody, beyond this conversation and the workspace; None:
    unless it only reads."""
    sends: bool = False
    """Its arguments leave for a place that outsiders may read, though it changes nothing."""

    @property
    def label(self) -> Label:
        """Of what its results hold."""
        if not (self.outside or self.private):
            return CLEAN
        return Label(self.outside, self.private, (self.name,))

    @property
    def presses(self) -> bool:
        """Whether running it has consequences outside of the conversation."""
        return self.effect is Effect.WRITE if self.acts is None else self.acts


class UnavailableTool(Struct, frozen=True):
    """A tool that cannot be used here and now."""

    tool: Tool
    why: str
    """The reason, and what to do about it."""

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool.name


class Context(Struct, frozen=True):
    """What the model had seen when it asked, and on whose behalf it asks."""

    label: Label = CLEAN
    """Of everything seen, joined."""
    history: History | None = None
    """The messages themselves; not there where the call came over the wire."""
    principal: Principal = LOCAL


NOTHING_SEEN = Context()


class Call(Struct, frozen=True):
    """A call whose tool exists and whose arguments fit: ready to be judged and run."""

    id: str
    tool: Tool
    arguments: dict[str, JSON]
    request_id: str
    """`<run id>.<turn>.<index>.<attempt>`: the same after a restart, so no call runs twice."""
    timeout: float
    """Seconds this call may take: the tool's, or the asked one, clamped."""
    resumed: bool = False
    """It was started before a crash and its outcome is not known: run it again only if that does
    no harm, or if whoever runs it remembers its request id."""
    epoch: int = 1
    """How often its run was taken up, this time included: whoever holds a lower one is out."""
    context: Context = NOTHING_SEEN

    @property
    def run_id(self) -> str:
        """The run it belongs to."""
        return self.request_id.partition(".")[0]

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool.name

    @property
    def harmless(self) -> bool:
        """Whether running it once more does no more than running it once."""
        return self.tool.effect is Effect.READ or self.tool.idempotent

    def ok(self, text: str, **details: JSON) -> ToolResult:
        """Answer with text."""
        return ToolResult(self.id, self.tool.name, (TextBlock(text),), details=details)

    def failed(self, kind: ErrorKind, text: str, **details: JSON) -> ToolResult:
        """Answer with a failure worded for the model."""
        return failure(self.id, self.tool.name, kind, text, **details)


def failure(call_id: str, name: str, kind: ErrorKind, text: str, **details: JSON) -> ToolResult:
    """Make the result of a call that did not succeed."""
    return ToolResult(call_id, name, (ErrorBlock(kind, text),), error=kind, details=details)


def missing_permissions(tool: Tool, held: frozenset[str]) -> tuple[str, ...]:
    """What is lacking to use a tool; whoever holds nothing may not even use a free one."""
    if held and (ALL in held or tool.permissions <= held):
        return ()
    return tuple(sorted(tool.permissions - held)) or ("any capability",)
