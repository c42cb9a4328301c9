"""Errors of A2A: their JSON-RPC codes, HTTP statuses and reasons."""

from __future__ import annotations

from enum import Enum

from evoclaw.core.errors import AgentNotFound, EvoClawError
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.runs.requests import (
    Draining,
    EdgeNotUsable,
    EmptyMessage,
    KeyReused,
    RunNotFound,
    RunQueueFull,
    SessionBusy,
    SessionNotFound,
)

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
ERROR_DOMAIN = "a2a-protocol.org"


class A2aErrorKind(Enum):
    """The kinds of errors: JSON-RPC code, HTTP status and gRPC status of each."""

    PARSE_ERROR = -32700, 400, "INVALID_ARGUMENT"
    INVALID_REQUEST = -32600, 400, "INVALID_ARGUMENT"
    METHOD_NOT_FOUND = -32601, 404, "NOT_FOUND"
    INVALID_PARAMS = -32602, 400, "INVALID_ARGUMENT"
    INTERNAL = -32603, 500, "INTERNAL"
    UNAVAILABLE = -32603, 503, "UNAVAILABLE"
    FORBIDDEN = -32600, 403, "PERMISSION_DENIED"
    UNAUTHENTICATED = -32600, 401, "UNAUTHENTICATED"
    TASK_NOT_FOUND = -32001, 404, "NOT_FOUND"
    TASK_NOT_CANCELABLE = -32002, 400, "FAILED_PRECONDITION"
    PUSH_NOTIFICATION_NOT_SUPPORTED = -32003, 400, "FAILED_PRECONDITION"
    UNSUPPORTED_OPERATION = -32004, 400, "FAILED_PRECONDITION"
    CONTENT_TYPE_NOT_SUPPORTED = -32005, 400, "INVALID_ARGUMENT"
    VERSION_NOT_SUPPORTED = -32009, 400, "FAILED_PRECONDITION"

    @property
    def code(self) -> int:
        """The code of JSON-RPC."""
        return self.value[0]

    @property
    def http_status(self) -> int:
        """The status of the HTTP+JSON binding."""
        return self.value[1]

    @property
    def grpc_status(self) -> str:
        """The name that the HTTP+JSON binding repeats in its body."""
        return self.value[2]


class A2aError(EvoClawError):
    """A request that was refused, in the terms of A2A."""

    def __init__(self, kind: A2aErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def details(self) -> list[JSON]:
        """What a program needs to tell errors of one code apart."""
        return [{"@type": ERROR_INFO, "reason": self.kind.name, "domain": ERROR_DOMAIN}]

    @property
    def jsonrpc(self) -> dict[str, JSON]:
        """The error object of JSON-RPC."""
        return {"code": self.kind.code, "message": str(self), "data": self.details}

    @property
    def http_body(self) -> dict[str, JSON]:
        """The body of the HTTP+JSON binding."""
        return {
            "error": {
                "code": self.kind.http_status,
                "status": self.kind.grpc_status,
                "message": str(self),
                "details": self.details,
            }
        }


def task_not_found(task_id: str) -> A2aError:
    """The error for a task that does not exist, or that the caller may not see."""
    return A2aError(A2aErrorKind.TASK_NOT_FOUND, f"There is no task {task_id[:200]!r}.")


def invalid_params(message: str) -> A2aError:
    """The error for parameters that do not fit."""
    return A2aError(A2aErrorKind.INVALID_PARAMS, message)


def forbidden(scope: str) -> A2aError:
    """The error for a caller whose token lacks a scope."""
    return A2aError(
        A2aErrorKind.FORBIDDEN,
        f"The token lacks the scope {scope!r}. Ask the administrator for a token with it.",
    )


_KINDS: dict[type[EvoClawError], A2aErrorKind] = {
    RunNotFound: A2aErrorKind.TASK_NOT_FOUND,
    SessionNotFound: A2aErrorKind.INVALID_PARAMS,
    SessionBusy: A2aErrorKind.UNSUPPORTED_OPERATION,
    AgentNotFound: A2aErrorKind.INVALID_PARAMS,
    EmptyMessage: A2aErrorKind.INVALID_PARAMS,
    KeyReused: A2aErrorKind.INVALID_PARAMS,
    EdgeNotUsable: A2aErrorKind.UNSUPPORTED_OPERATION,
    RunQueueFull: A2aErrorKind.UNAVAILABLE,
    Draining: A2aErrorKind.UNAVAILABLE,
}


def to_a2a_error(error: EvoClawError) -> A2aError:
    """An error of EvoClaw in the terms of A2A."""
    if isinstance(error, A2aError):
        return error
    if isinstance(error, KeyReused):
        return invalid_params(
            "This messageId was already used for another message. Use a new one for each message."
        )
    for kind in type(error).__mro__:
        if kind in _KINDS:
            return A2aError(_KINDS[kind], str(error))
    return A2aError(A2aErrorKind.INTERNAL, str(error))
