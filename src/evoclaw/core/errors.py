"""Errors for the caller.

EvoClawError
├── ConfigError          what was configured or typed cannot work; the message says what to do
├── SchemaError          a tool's schema is refused at registration
├── DuplicateTool        two tools claim one name
├── AgentNotFound        no agent of that name is configured
├── RecordingError       a recording cannot be read, or does not replay
├── Standstill           what a run cannot do without is away; the run goes on later
└── ProviderError        no reply could be had from a model

What the *model* is told is a `ToolResult` with an error, raised inside as `ToolFailure`.
How a run ended is a `StopReason`. Neither is an exception for the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from evoclaw.core.events import StopReason
from evoclaw.core.messages import JSON, ErrorKind, Usage


class EvoClawError(Exception):
    """Anything the caller can be told about."""


class ConfigError(EvoClawError):
    """What was configured or typed cannot work."""


class SchemaError(EvoClawError):
    """A tool's JSON Schema is refused."""

    def __init__(self, tool: str, problem: str) -> None:
        super().__init__(f"tool {tool!r}: {problem}")
        self.tool, self.problem = tool, problem


class DuplicateTool(EvoClawError):
    """Two tools claim one name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"two tools are named {name!r}; rename or leave out one of them")
        self.name = name


class AgentNotFound(EvoClawError):
    """No agent of that name is configured."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"no agent {name!r}; known: {', '.join(known) or 'none'}")
        self.name, self.known = name, tuple(known)


class RecordingError(EvoClawError):
    """A recording cannot be read or does not replay."""


class Standstill(EvoClawError):
    """What a run cannot do without is away just now.

    It is no outcome: the run stands still where it is, and whoever drives it takes it up again.
    """


class ProviderErrorKind(StrEnum):
    """Whose fault it is that there is no reply."""

    QUOTA_EXHAUSTED = "quota_exhausted"
    RATE_LIMITED = "rate_limited"
    TIMEOUT = "timeout"
    SERVER_ERROR = "server_error"
    AUTH_ERROR = "auth_error"
    MODEL_NOT_FOUND = "model_not_found"
    CONTEXT_TOO_LONG = "context_too_long"
    UNKNOWN = "unknown"


class ProviderError(EvoClawError):
    """No reply could be had."""

    def __init__(
        self,
        kind: ProviderErrorKind,
        message: str,
        *,
        retry_after: float | None = None,
        usage: Usage = Usage(),
    ) -> None:
        super().__init__(message)
        self.kind, self.retry_after, self.usage = kind, retry_after, usage


class RunEnded(Exception):
    """Raised inside the loop when a step finds that the run must end; never leaves it."""

    def __init__(self, stop: StopReason, reason: str = "") -> None:
        super().__init__(reason)
        self.stop, self.reason = stop, reason


class ToolFailure(Exception):
    """Raised inside a tool or executor: the model is told, the run goes on."""

    def __init__(self, kind: ErrorKind, message: str, **details: JSON) -> None:
        super().__init__(message)
        self.kind, self.message, self.details = kind, message, details
