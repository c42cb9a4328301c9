"""Errors with an HTTP status: what failed, and what to do next. Needs no HTTP framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON

T = TypeVar("T")
NO_DETAILS: Mapping[str, JSON] = {}


class Problem(Struct, frozen=True, omit_defaults=True):
    """What failed, and what to do next."""

    code: str
    """A short, stable code for programs."""
    message: str
    """What failed and what to do, for people."""
    details: dict[str, JSON] = {}
    """Structured data for programs."""


class ErrorBody(Struct, frozen=True):
    """The body of every error response."""

    error: Problem
    """The error."""


class ApiError(EvoClawError):
    """An error with an HTTP status: raised in a route, it becomes the response.

    Args:
        status: The HTTP status.
        code: A short, stable code for programs.
        message: What failed and what to do, for people.
        details: Structured data for programs.
        retry_after: Seconds after which the caller may try again.
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
        """The headers of the response."""
        found: dict[str, str] = {}
        if self.retry_after is not None:
            found["retry-after"] = str(max(1, round(self.retry_after)))
        if self.status == 401:
            found["www-authenticate"] = "Bearer"
        if self.status in (408, 413):
            found["connection"] = "close"  # the rest of the body is not read
        return found

    @property
    def body(self) -> ErrorBody:
        """The body of the response."""
        return ErrorBody(Problem(self.code, str(self), self.details))


def not_found(what: str) -> ApiError:
    """The error for an id that does not exist, or that the caller may not see."""
    return ApiError(
        404, "not_found", f"There is no such {what}. List the existing ones to find its id."
    )


def unavailable(what: str) -> ApiError:
    """The error of a route whose dependency this process does not have."""
    return ApiError(503, "unavailable", f"This process does not provide {what}.")


def require(dependency: T | None, what: str) -> T:
    """A dependency of a route; `ApiError` 503 if this process does not have it."""
    if dependency is None:
        raise unavailable(what)
    return dependency
