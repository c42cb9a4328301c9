"""Error responses: one JSON format, and the HTTP status of each kind of error."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException

from evoclaw.api.problems import (
    ApiError,
    ErrorBody,
    Problem,
    not_found,
    require,
    unavailable,
)
from evoclaw.core.definition_text import (
    DefinitionConflict,
    DefinitionHidden,
    DefinitionNotFound,
)
from evoclaw.core.errors import (
    AgentNotFound,
    ConfigError,
    EvoClawError,
    ProviderError,
    ProviderErrorKind,
)
from evoclaw.core.messages import JSON
from evoclaw.evolution.approval import ApprovalRefused, SignatureRefused
from evoclaw.evolution.campaign_status import CampaignStopped, EvolutionOff, RoundRefused
from evoclaw.evolution.evaluation_service import (
    EvaluationEnded,
    EvaluationNotFound,
    EvaluationRunning,
    EvaluationStopped,
)
from evoclaw.evolution.lineage import GenomeChanged, GenomeNotFound, SealedOpened
from evoclaw.governance.shared_stops import StopNotShared
from evoclaw.orchestrator.fleet.edge_genomes import EdgeRefused, EdgeSilent
from evoclaw.orchestrator.fleet.rollout_state import (
    NoEdgeSelected,
    RolloutConflict,
    RolloutNotFound,
)
from evoclaw.orchestrator.orchestrator import EdgeOffline
from evoclaw.orchestrator.runs.compaction import CannotCompact
from evoclaw.orchestrator.runs.requests import (
    Draining,
    EdgeNotUsable,
    EmptyMessage,
    KeyReused,
    RunNotFound,
    RunQueueFull,
    SessionHasHistory,
    UnknownEdge,
)
from evoclaw.orchestrator.runs.supervisor import StoreError
from evoclaw.orchestrator.runs.undo import AlreadyUndone, RunNotEnded
from evoclaw.orchestrator.sessions.conversations import SessionBusy, SessionNotFound
from evoclaw.workflows import errors as workflows

__all__ = [
    "ApiError",
    "ErrorBody",
    "Problem",
    "error_response",
    "handle_error",
    "handle_http_exception",
    "handle_internal_error",
    "internal_error",
    "not_found",
    "require",
    "to_api_error",
    "unavailable",
]
LOG = logging.getLogger("evoclaw.api")
RETRY_AFTER_S = 5
"""The `Retry-After` of errors 429 and 503 that name no other time."""


_STATUS_BY_ERROR: Mapping[type[EvoClawError], tuple[int, str]] = {
    SessionNotFound: (404, "not_found"),
    RunNotFound: (404, "not_found"),
    AgentNotFound: (404, "not_found"),
    GenomeNotFound: (404, "not_found"),
    GenomeChanged: (409, "genome_changed"),
    ApprovalRefused: (409, "not_waiting"),
    SignatureRefused: (403, "forbidden"),
    RoundRefused: (409, "busy"),
    EvolutionOff: (409, "evolution_off"),
    CampaignStopped: (409, "stopped"),
    SealedOpened: (409, "opened_before"),
    EvaluationNotFound: (404, "not_found"),
    EvaluationRunning: (409, "busy"),
    EvaluationEnded: (409, "ended"),
    EvaluationStopped: (409, "stopped"),
    RolloutNotFound: (404, "not_found"),
    NoEdgeSelected: (404, "not_found"),
    RolloutConflict: (409, "rolling_out"),
    EdgeSilent: (409, "offline"),
    EdgeRefused: (409, "refused"),
    workflows.UnknownWorkflow: (404, "not_found"),
    workflows.WorkflowRunNotFound: (404, "not_found"),
    EdgeOffline: (409, "offline"),
    SessionBusy: (409, "busy"),
    KeyReused: (409, "key_reused"),
    workflows.WorkflowKeyReused: (409, "key_reused"),
    workflows.CannotAnswer: (409, "nothing_waits"),
    SessionHasHistory: (409, "other_history"),
    workflows.NotAPerson: (403, "forbidden"),
    EmptyMessage: (422, "invalid"),
    RunNotEnded: (409, "busy"),
    AlreadyUndone: (409, "already_undone"),
    CannotCompact: (409, "cannot_compact"),
    EdgeNotUsable: (409, "other_edge"),
    UnknownEdge: (404, "not_found"),
    workflows.BadInputs: (422, "invalid"),
    DefinitionNotFound: (404, "not_found"),
    DefinitionConflict: (409, "definition_changed"),
    DefinitionHidden: (409, "contains_secret"),
    ConfigError: (422, "invalid"),
    RunQueueFull: (429, "too_many"),
    Draining: (503, "draining"),
    StoreError: (503, "store"),
    StopNotShared: (503, "store"),
}
"""The status and code of each error class; a class that is not listed has its base class's."""
_STATUS_BY_PROVIDER_ERROR: Mapping[ProviderErrorKind, tuple[int, str]] = {
    ProviderErrorKind.MODEL_NOT_FOUND: (503, "no_provider"),
    ProviderErrorKind.AUTH_ERROR: (503, "no_provider"),
    ProviderErrorKind.QUOTA_EXHAUSTED: (503, "provider_quota"),
    ProviderErrorKind.RATE_LIMITED: (503, "provider_busy"),
}


def to_api_error(error: EvoClawError) -> ApiError:
    """Convert an error of EvoClaw to an `ApiError`."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ProviderError):
        status, code = _STATUS_BY_PROVIDER_ERROR.get(error.kind, (502, "provider_failed"))
        wait = error.retry_after if error.retry_after is not None else RETRY_AFTER_S
        return ApiError(status, code, str(error), retry_after=wait if status == 503 else None)
    for kind in type(error).__mro__:
        if kind in _STATUS_BY_ERROR:
            status, code = _STATUS_BY_ERROR[kind]
            wait = RETRY_AFTER_S if status in (429, 503) else None
            return ApiError(status, code, str(error), retry_after=wait)
    return ApiError(500, "failed", str(error))


AnyRequest = Request[Any, Any, Any]


def error_response(error: ApiError) -> Response[ErrorBody]:
    """The HTTP response of an error."""
    return Response(
        error.body,
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )


def handle_error(request: AnyRequest, error: EvoClawError) -> Response[ErrorBody]:
    """Exception handler for errors of EvoClaw."""
    refused = to_api_error(error)
    if refused.status == 500:
        LOG.error("%s %s: %s", request.method, request.url.path, error, exc_info=error)
    return error_response(refused)


def handle_http_exception(request: AnyRequest, error: HTTPException) -> Response[ErrorBody]:
    """Exception handler for the framework's errors: unknown paths, methods, unreadable bodies."""
    if error.status_code >= 500:
        return handle_internal_error(request, error)
    return error_response(_from_http_exception(error))


def handle_internal_error(request: AnyRequest, error: Exception) -> Response[ErrorBody]:
    """Exception handler for bugs: the log has the traceback, the caller gets a plain 500."""
    LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(internal_error())


def internal_error() -> ApiError:
    """The error for a bug: the details are in the log, not in the response."""
    return ApiError(500, "internal", "Internal error. See the server's log for the cause.")


_FRAMEWORK_MESSAGES: Mapping[int, tuple[str, str]] = {
    404: ("not_found", "Unknown path. See /openapi.json for all paths."),
    405: ("method_not_allowed", "This path does not support the method. See /openapi.json."),
    413: ("too_large", "The body is too large. Send a smaller request."),
}


def _from_http_exception(error: HTTPException) -> ApiError:
    if isinstance(error, ValidationException):
        problems: JSON = error.extra
        return ApiError(
            422, "invalid", _describe_validation(problems), details={"problems": problems}
        )
    if error.status_code in _FRAMEWORK_MESSAGES:
        return ApiError(error.status_code, *_FRAMEWORK_MESSAGES[error.status_code])
    text = f"The request cannot be parsed: {error.detail}"
    return ApiError(error.status_code, "unreadable", text)


_INVALID = "The request does not fit the schema of this path. See /openapi.json."


def _describe_validation(problems: JSON) -> str:
    """Validation problems in one line."""
    try:
        found = msgspec.convert(problems, type=list[dict[str, str]])
    except msgspec.ValidationError:
        return _INVALID
    if any(item.get("key") == "data" and item.get("message") == "'data'" for item in found):
        return "The request has no body. Send a JSON object; see /openapi.json."
    texts = [f"{item.get('key', 'body')}: {item.get('message', 'invalid')}" for item in found[:5]]
    return "; ".join(texts) or _INVALID
