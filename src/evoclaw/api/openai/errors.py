"""Error responses in OpenAI's format."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException

from evoclaw.api.errors import Refused, refusal_of, tell_error, tell_http
from evoclaw.api.openai.shapes import ErrorBody, Problem
from evoclaw.core.errors import AgentNotFound, EvoClawError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
Asked = Request[Any, Any, Any]


class BadRequest(EvoClawError):
    """A request that cannot be fulfilled; `param` names the offending parameter."""

    def __init__(
        self, message: str, param: str | None = None, code: str | None = None, *, status: int = 400
    ) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


def problem_of(error: EvoClawError) -> tuple[int, Problem, dict[str, str]]:
    """The status, body and headers of an error response."""
    if isinstance(error, BadRequest):
        problem = Problem(str(error), _type(error.status), error.param, error.code)
        return error.status, problem, {}
    if isinstance(error, AgentNotFound):
        text = f"Unknown model {error.name!r}. Models are agents: see GET /v1/models."
        return 404, Problem(text, _type(404), "model", "model_not_found"), {}
    return _told(refusal_of(error))


def _told(refused: Refused) -> tuple[int, Problem, dict[str, str]]:
    problem = Problem(str(refused), _type(refused.status), None, refused.code)
    return refused.status, problem, refused.headers


def _type(status: int) -> str:
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def tell(request: Asked, error: EvoClawError) -> Response[ErrorBody]:
    """Exception handler for errors of EvoClaw."""
    status, problem, headers = problem_of(error)
    if status == 500:
        tell_error(request, error)  # only to log it
    return _response(status, problem, headers)


def tell_framework(request: Asked, error: HTTPException) -> Response[ErrorBody]:
    """Exception handler for the framework's errors."""
    if isinstance(error, ValidationException):
        return _response(400, _invalid(error), {})
    plain = tell_http(request, error)
    status, cause = plain.status_code or 500, plain.content.error
    return _response(status, Problem(cause.message, _type(status), None, cause.code), {})


def _invalid(error: ValidationException) -> Problem:
    """The first validation problem, with the name of its parameter."""
    found = msgspec.convert(error.extra, list[dict[str, str]])
    first = found[0] if found else {}
    where = first.get("key", "body")
    text = f"{where}: {first.get('message', 'invalid')}"
    return Problem(text, _type(400), where if first.get("source") == "body" else None, None)


def _response(status: int, problem: Problem, headers: dict[str, str]) -> Response[ErrorBody]:
    return Response(
        ErrorBody(problem), status_code=status, headers=headers, media_type="application/json"
    )
