"""The exceptions of EvoClaw.

EvoClawError
├── ConfigError          invalid configuration or arguments; the message says what to do
├── SchemaError          a tool's JSON Schema is rejected at registration
├── DuplicateTool        two tools have the same name
├── AgentNotFound        no agent of this name is configured
├── RecordingError       a recording cannot be read, or does not replay
├── RunSuspended         a dependency of the run is unavailable; the run resumes later
└── ProviderError        a model gave no reply

A failure for the *model* is a `ToolResult` with an error, raised inside a tool as `ToolFailure`.
How a run ended is a `StopReason`. Neither is an exception for the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from evoclaw.core.events import StopReason
from evoclaw.core.messages import JSON, ErrorKind, Usage
from evoclaw.core.suggestions import did_you_mean


class EvoClawError(Exception):
    """The base class of all errors that are raised to the caller."""


class ConfigError(EvoClawError):
    """The configuration or an argument is invalid; the message says what to do.

    Args:
        message: What is wrong, where, and what to do.
        line: The line of the file; 0 if it is not known.
        setting: The path of the setting, such as `server.port`; empty if it is not known.
        problem: The message without the file and the line; empty: the message.
    """

    def __init__(
        self, message: str = "", *, line: int = 0, setting: str = "", problem: str = ""
    ) -> None:
        super().__init__(message)
        self.line, self.setting, self.problem = line, setting, problem or message


class SchemaError(EvoClawError):
    """A tool's JSON Schema is rejected."""

    def __init__(self, tool: str, problem: str) -> None:
        super().__init__(f"tool {tool!r}: {problem}")
        self.tool, self.problem = tool, problem


class DuplicateTool(EvoClawError):
    """Two tools have the same name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"two tools are named {name!r}; rename or remove one of them")
        self.name = name


class AgentNotFound(EvoClawError):
    """No agent of this name is configured."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"unknown agent {name!r}; known agents: {', '.join(known) or 'none'}"
            f"{did_you_mean(name, known)}"
        )
        self.name, self.known = name, tuple(known)


class RecordingError(EvoClawError):
    """A recording cannot be read, or does not replay."""


class RunSuspended(EvoClawError):
    """A dependency that the run cannot do without, such as the store, is unavailable now.

    It is not an outcome: the run is suspended, and its orchestrator resumes it later.
    """


class ProviderErrorKind(StrEnum):
    """Why there is no reply."""

    QUOTA_EXHAUSTED = "quota_exhausted"
    RATE_LIMITED = "rate_limited"
    TIMEOUT = "timeout"
    SERVER_ERROR = "server_error"
    AUTH_ERROR = "auth_error"
    MODEL_NOT_FOUND = "model_not_found"
    CONTEXT_TOO_LONG = "context_too_long"
    TOOLS_UNSUPPORTED = "tools_unsupported"
    UNKNOWN = "unknown"


class ProviderError(EvoClawError):
    """A model gave no reply."""

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
    """Raised inside the loop when the run must end; it never leaves the loop."""

    def __init__(self, stop: StopReason, reason: str = "") -> None:
        super().__init__(reason)
        self.stop, self.reason = stop, reason


class ToolFailure(Exception):
    """Raised inside a tool or executor: the message becomes a result for the model."""

    def __init__(self, kind: ErrorKind, message: str, **details: JSON) -> None:
        super().__init__(message)
        self.kind, self.message, self.details = kind, message, details
