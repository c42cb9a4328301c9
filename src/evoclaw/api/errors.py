"""What a caller is told when something cannot be done: one shape, the right status, what to do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from msgspec import Struct

from evoclaw.core.errors import (
    AgentNotFound,
    ConfigError,
    EvoClawError,
    ProviderError,
    ProviderErrorKind,
)
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.errands import (
    Draining,
    KeyReused,
    NoRun,
    NothingAsked,
    OtherHistory,
    TooMany,
)
from evoclaw.orchestrator.orchestrator import NotThere
from evoclaw.orchestrator.runs.tending import StoreError
from evoclaw.orchestrator.sessions.sessions import Busy, NoSession
from evoclaw.workflows import errors as workflows

T = TypeVar("T")
LOG = logging.getLogger("evoclaw.api")
NO_DETAILS: Mapping[str, JSON] = {}
RETRY = 5
"""Seconds after which a client may try again what was refused for want of room."""


class Problem(Struct, frozen=True, omit_defaults=True):
    """What went wrong, and what to do about it."""

    code: str
    """Short and stable: for programs."""
    message: str
    """For people."""
    details: dict[str, JSON] = {}


class ErrorBody(Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: Problem


class NotGiven(EvoClawError):
    """This process was not given what a further route needs."""


class Refused(EvoClawError):
    """Raise it in a route: the caller gets this status, code and message.

    Args:
        status: Of HTTP.
        code: Short and stable: for programs.
        message: What went wrong and what to do, for people.
        details: Data for programs.
        retry_after: Seconds after which it may be tried again.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        details: Mapping[str, JSON] = NO_DETAILS,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.details = status, code, dict(details)
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """What goes with the answer beside its body."""
        found: dict[str, str] = {}
        if self.retry_after is not None:
            found["retry-after"] = str(max(1, round(self.retry_after)))
        if self.status == 401:
            found["www-authenticate"] = "Bearer"
        if self.status in (408, 413):
            found["connection"] = "close"  # the rest of the body is not worth reading
        return found

    @property
    def body(self) -> ErrorBody:
        """The answer's body."""
        return ErrorBody(Problem(self.code, str(self), self.details))


def not_found(what: str) -> Refused:
    """There is none of that id, as far as this caller can know."""
    return Refused(404, "not_found", f"there is no such {what}; list them to see which there are")


def absent(what: str) -> Refused:
    """This process was not given what a route needs."""
    return Refused(503, "unavailable", f"{what} are not available in this process")


def given(part: T | None, what: str) -> T:
    """What a route needs; `Refused` if this process does not have it."""
    if part is None:
        raise absent(what)
    return part


_STATUS: Mapping[type[EvoClawError], tuple[int, str]] = {
    NoSession: (404, "not_found"),
    NoRun: (404, "not_found"),
    AgentNotFound: (404, "not_found"),
    workflows.NoWorkflow: (404, "not_found"),
    workflows.NoWorkflowRun: (404, "not_found"),
    NotThere: (409, "offline"),
    Busy: (409, "busy"),
    KeyReused: (409, "key_reused"),
    workflows.KeyReused: (409, "key_reused"),
    workflows.CannotAnswer: (409, "nothing_waits"),
    OtherHistory: (409, "other_history"),
    workflows.NotAPerson: (403, "forbidden"),
    NothingAsked: (422, "invalid"),
    workflows.BadInputs: (422, "invalid"),
    ConfigError: (422, "invalid"),
    TooMany: (429, "too_many"),
    Draining: (503, "draining"),
    NotGiven: (503, "unavailable"),
    StoreError: (503, "store"),
}
"""The answer to each kind of error; a kind that is not named is answered as the one above it."""
_PROVIDER: Mapping[ProviderErrorKind, tuple[int, str]] = {
    ProviderErrorKind.MODEL_NOT_FOUND: (503, "no_provider"),
    ProviderErrorKind.AUTH_ERROR: (503, "no_provider"),
    ProviderErrorKind.QUOTA_EXHAUSTED: (503, "provider_quota"),
    ProviderErrorKind.RATE_LIMITED: (503, "provider_busy"),
}


def refusal_of(error: EvoClawError) -> Refused:
    """The answer to an error of ours."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, ProviderError):
        status, code = _PROVIDER.get(error.kind, (502, "provider_failed"))
        wait = error.retry_after if error.retry_after is not None else RETRY
        return Refused(status, code, str(error), retry_after=wait if status == 503 else None)
    for kind in type(error).__mro__:
        if kind in _STATUS:
            status, code = _STATUS[kind]
            wait = RETRY if status in (429, 503) else None
            return Refused(status, code, str(error), retry_after=wait)
    return Refused(500, "failed", str(error))


Asked = Request[Any, Any, Any]


def answer(refused: Refused) -> Response[ErrorBody]:
    """A refusal as a response."""
    return Response(
        refused.body,
        status_code=refused.status,
        headers=refused.headers,
        media_type="application/json",
    )


def tell_error(request: Asked, error: EvoClawError) -> Response[ErrorBody]:
    """Answer an error of ours."""
    refused = refusal_of(error)
    if refused.status == 500:
        LOG.error("%s %s: %s", request.method, request.url.path, error, exc_info=error)
    return answer(refused)


def tell_http(request: Asked, error: HTTPException) -> Response[ErrorBody]:
    """Answer what the framework refused: unknown paths, other methods, what cannot be read."""
    if error.status_code >= 500:
        return tell_fault(request, error)
    return answer(_of_framework(error))


def tell_fault(request: Asked, error: Exception) -> Response[ErrorBody]:
    """Answer a fault of ours: the log says which, the caller only that it was one."""
    LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer(fault())


def fault() -> Refused:
    """Something of ours is broken; which is for the log to say, not for the caller."""
    return Refused(500, "internal", "this is a fault of the server; its log says which")


_FRAMEWORK: Mapping[int, tuple[str, str]] = {
    404: ("not_found", "there is nothing under this address; see /openapi.json"),
    405: ("method_not_allowed", "this address does not take that method; see /openapi.json"),
    413: ("too_large", "the body is too large; send less at once"),
}


def _of_framework(error: HTTPException) -> Refused:
    if isinstance(error, ValidationException):
        problems: JSON = error.extra
        return Refused(422, "invalid", _worded(problems), details={"problems": problems})
    if error.status_code in _FRAMEWORK:
        return Refused(error.status_code, *_FRAMEWORK[error.status_code])
    text = f"this cannot be read: {error.detail}"
    return Refused(error.status_code, "unreadable", text)


def _worded(problems: JSON) -> str:
    """What is wrong with what was sent, in one line."""
    try:
        found = msgspec.convert(problems, type=list[dict[str, str]])
    except msgspec.ValidationError:
        return "what was sent is not what this address takes; see /openapi.json"
    said = [f"{one.get('key', 'body')}: {one.get('message', 'wrong')}" for one in found[:5]]
    return "; ".join(said) or "what was sent is not what this address takes; see /openapi.json"
