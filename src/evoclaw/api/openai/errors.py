"""Error responses in OpenAI's format."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException

from evoclaw.api.errors import ApiError, handle_error, handle_http_exception, to_api_error
from evoclaw.api.openai.schemas import OpenAIError, OpenAIErrorBody
from evoclaw.core.errors import AgentNotFound, EvoClawError

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
AnyRequest = Request[Any, Any, Any]


class BadRequest(EvoClawError):
    """A request that cannot be fulfilled; `param` names the offending parameter."""

    def __init__(
        self, message: str, param: str | None = None, code: str | None = None, *, status: int = 400
    ) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


def to_openai_error(error: EvoClawError) -> tuple[int, OpenAIError, dict[str, str]]:
    """The status, body and headers of an error response."""
    if isinstance(error, BadRequest):
        problem = OpenAIError(str(error), _error_type(error.status), error.param, error.code)
        return error.status, problem, {}
    if isinstance(error, AgentNotFound):
        text = f"Unknown model {error.name!r}. Models are agents: see GET /v1/models."
        return 404, OpenAIError(text, _error_type(404), "model", "model_not_found"), {}
    return _from_api_error(to_api_error(error))


def _from_api_error(refused: ApiError) -> tuple[int, OpenAIError, dict[str, str]]:
    problem = OpenAIError(str(refused), _error_type(refused.status), None, refused.code)
    return refused.status, problem, refused.headers


def _error_type(status: int) -> str:
    return _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def handle_openai_error(request: AnyRequest, error: EvoClawError) -> Response[OpenAIErrorBody]:
    """Exception handler for errors of EvoClaw."""
    status, problem, headers = to_openai_error(error)
    if status == 500:
        handle_error(request, error)  # only to log it
    return _response(status, problem, headers)


def handle_openai_http_exception(
    request: AnyRequest, error: HTTPException
) -> Response[OpenAIErrorBody]:
    """Exception handler for the framework's errors."""
    if isinstance(error, ValidationException):
        return _response(400, _validation_error(error), {})
    plain = handle_http_exception(request, error)
    status, cause = plain.status_code or 500, plain.content.error
    return _response(status, OpenAIError(cause.message, _error_type(status), None, cause.code), {})


def _validation_error(error: ValidationException) -> OpenAIError:
    """The first validation problem, with the name of its parameter."""
    found = msgspec.convert(error.extra, list[dict[str, str]])
    first = found[0] if found else {}
    where = first.get("key", "body")
    text = f"{where}: {first.get('message', 'invalid')}"
    return OpenAIError(
        text, _error_type(400), where if first.get("source") == "body" else None, None
    )


def _response(
    status: int, problem: OpenAIError, headers: dict[str, str]
) -> Response[OpenAIErrorBody]:
    return Response(
        OpenAIErrorBody(problem), status_code=status, headers=headers, media_type="application/json"
    )
