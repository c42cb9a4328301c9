"""The OpenAPI document, with the error responses and the scope of every route."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from litestar import Litestar
from litestar.di import Provide
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import (
    Components,
    OpenAPI,
    OpenAPIHeader,
    OpenAPIMediaType,
    OpenAPIResponse,
    Operation,
    Reference,
    Schema,
    SecurityScheme,
    Tag,
)
from litestar.openapi.spec.enums import OpenAPIType
from litestar.routes import HTTPRoute

from evoclaw.api.auth import ANY_CALLER, PUBLIC, is_public
from evoclaw.api.openapi_page import render_page
from evoclaw.api.openapi_schemas import use_msgspec_schemas
from evoclaw.core.messages import JSON
from evoclaw.core.version import VERSION

DESCRIPTION = """EvoClaw runs LLM agents and their tools on your machines. Every tool call is
checked by policies before it runs, sandboxed while it runs, recorded, and never run twice.

Send a token as `Authorization: Bearer ec_…`; a token opens the data of one tenant.
The data of other tenants and users is answered with 404, as if it did not exist."""
BEARER = "token"
OPENAI = "openai"
"""The tag of routes that answer errors in OpenAI's format."""
TAGS = {
    "agents": "Define, check and invoke agents.",
    OPENAI: "Invoke agents through OpenAI-compatible chat completions.",
    "runs": "Start, watch, steer, answer and cancel runs.",
    "sessions": "Conversations and their messages.",
    "approvals": "Tool calls and questions that wait for a person.",
    "workflows": "Multi-step workflows that call agents and tools.",
    "channels": "Webhooks that deliver messages to agents, and failed deliveries.",
    "notifications": "Notifiers that report to people, and the browsers that receive Web Push.",
    "events": "Changes of edges, runs, approvals and questions, as a stream.",
    "figures": "Metrics of runs and tool calls, from stored records.",
    "fleet": "Edges: status, pairing and tools.",
    "tools": "The tools of this orchestrator.",
    "skills": "The skills of this orchestrator.",
    "memory": "Notes that agents keep between sessions.",
    "audit": "The audit log.",
    "budgets": "Limits and spending.",
    "policy": "The policies that judge tool calls.",
    "evolution": "Genomes of agents and edges, and cases to evaluate agents with.",
    "stops": "The emergency stop.",
    "settings": "The settings file of the service.",
    "tokens": "API tokens.",
    "health": "Liveness, readiness and Prometheus metrics.",
}
_ERRORS: Mapping[int, tuple[str, str]] = {
    400: ("Unreadable", "The request cannot be parsed."),
    401: ("Unauthorized", "The token is missing or invalid."),
    403: ("Forbidden", "The token lacks the scope, or the web origin is not allowed."),
    404: ("NotFound", "The id does not exist, or the caller may not see it."),
    405: ("MethodNotAllowed", "The path does not support this method."),
    408: ("TooSlow", "The body did not arrive in time."),
    409: ("Conflict", "The current state does not allow this; the message says why."),
    413: ("TooLarge", "The body is too large."),
    421: ("UnknownHost", "The `Host` header is not one of the configured names."),
    422: ("Invalid", "The request does not fit the schema; `details` says where."),
    429: ("TooMany", "Too many requests; `Retry-After` says when to try again."),
    500: ("Fault", "Internal error; the server's log says which."),
    503: ("Unavailable", "Not available now, or not in this process; the message says why."),
}
_WRITE_ONLY_STATUSES = (408, 409, 413)
_METHODS = ("get", "post", "patch", "put", "delete")


class OpenApiDocument:
    """The OpenAPI document as JSON and as HTML, built on the first request.

    Building takes a second and is rarely needed, so it runs in a thread, on a second application.
    """

    def __init__(self, routes: Sequence[Any]) -> None:
        self._routes = routes
        self._lock = asyncio.Lock()
        self._rendered: tuple[bytes, bytes] | None = None

    async def json(self) -> bytes:
        """The OpenAPI document."""
        return (await self._render_once())[0]

    async def page(self) -> bytes:
        """The OpenAPI document as an HTML page."""
        return (await self._render_once())[1]

    async def _render_once(self) -> tuple[bytes, bytes]:
        async with self._lock:
            if self._rendered is None:
                self._rendered = await asyncio.to_thread(self._render)
        return self._rendered

    def _render(self) -> tuple[bytes, bytes]:
        document = build_openapi(self._routes)
        return msgspec.json.encode(document), render_page(document).encode()


def build_openapi(routes: Sequence[Any]) -> dict[str, JSON]:
    """Build the OpenAPI document of the routes."""
    app = Litestar(
        routes,
        openapi_config=_openapi_config(),
        # Declared so that Litestar does not document them as parameters; no request is served here.
        dependencies={
            name: Provide(lambda: None, sync_to_thread=False) for name in ("parts", "caller")
        },
    )
    _add_error_responses(app.openapi_schema)
    _add_summaries(app.openapi_schema)
    _add_scopes(app)
    document: dict[str, JSON] = msgspec.to_builtins(app.openapi_schema.to_schema())
    use_msgspec_schemas(document, app)
    return document


def _add_summaries(document: OpenAPI) -> None:
    """Use the first sentence of each description as the summary, not the name of the handler."""
    for item in (document.paths or {}).values():
        for method in _METHODS:
            operation = getattr(item, method)
            if isinstance(operation, Operation):
                first_line = (operation.description or "").partition("\n")[0]
                operation.summary = first_line.partition(". ")[0].removesuffix(".")


def _add_scopes(app: Litestar) -> None:
    """Add the required scope to each operation."""
    for route in app.routes:
        item = (app.openapi_schema.paths or {}).get(route.path_format)
        if item is None or not isinstance(route, HTTPRoute):
            continue
        for handler in route.route_handlers:
            scope = str(handler.opt.get("scope", ""))
            for method in handler.http_methods:
                operation = getattr(item, method.lower())
                if isinstance(operation, Operation) and scope not in (PUBLIC, ANY_CALLER):
                    operation.security = [{BEARER: [scope]}]


def _openapi_config() -> OpenAPIConfig:
    """Title, description, tags and security scheme of the document."""
    return OpenAPIConfig(
        title="EvoClaw",
        version=VERSION,
        description=DESCRIPTION,
        use_handler_docstrings=True,
        tags=[Tag(name, text) for name, text in TAGS.items()],
        security=[{BEARER: []}],
        components=Components(
            security_schemes={
                BEARER: SecurityScheme(
                    type="http",
                    scheme="bearer",
                    description="A token from `evoclaw token new`, or a JWT if configured.",
                )
            }
        ),
        render_plugins=[JsonRenderPlugin()],
    )


def _add_error_responses(document: OpenAPI) -> None:
    """Add the shared error responses to each operation."""
    document.components.schemas["ErrorDetails"] = _error_schema()
    document.components.schemas["ErrorAnswer"] = Schema(
        type=OpenAPIType.OBJECT,
        properties={
            "error": Reference(ref="#/components/schemas/ErrorDetails", description="The error.")
        },
        required=["error"],
        description="The body of every error response.",
    )
    document.components.responses = {
        name: _response(status, text) for status, (name, text) in _ERRORS.items()
    }
    document.components.schemas["OpenAIErrorAnswer"] = _openai_error_schema()
    document.components.responses["OpenAIError"] = OpenAPIResponse(
        description="The error in OpenAI's format.",
        content={
            "application/json": OpenAPIMediaType(
                schema=Reference(ref="#/components/schemas/OpenAIErrorAnswer")
            )
        },
    )
    for path, item in (document.paths or {}).items():
        for method in _METHODS:
            operation = getattr(item, method)
            if isinstance(operation, Operation):
                _add_operation_errors(path, method, operation)


def _add_operation_errors(path: str, method: str, operation: Operation) -> None:
    if is_public(path):
        operation.security = [{}]
    responses = operation.responses = operation.responses or {}
    if OPENAI in (operation.tags or ()):
        responses.setdefault("default", Reference(ref="#/components/responses/OpenAIError"))
        responses.pop("400", None)
        return
    for status, (name, _) in _ERRORS.items():
        if status in _WRITE_ONLY_STATUSES and method == "get":
            continue
        responses.setdefault(str(status), Reference(ref=f"#/components/responses/{name}"))
    # Replaces Litestar's own description of a validation error, which has another schema.
    if responses.get("400") is not None and not isinstance(responses["400"], Reference):
        responses["400"] = Reference(ref="#/components/responses/Unreadable")


def _error_schema() -> Schema:
    return Schema(
        type=OpenAPIType.OBJECT,
        properties={
            "code": Schema(
                type=OpenAPIType.STRING, description="A short, stable code for programs."
            ),
            "message": Schema(
                type=OpenAPIType.STRING, description="What failed and what to do, for people."
            ),
            "details": Schema(type=OpenAPIType.OBJECT, description="Structured data for programs."),
        },
        required=["code", "message"],
        description="What failed, and what to do next.",
    )


def _openai_error_schema() -> Schema:
    def text_or_null(description: str) -> Schema:
        return Schema(type=[OpenAPIType.STRING, OpenAPIType.NULL], description=description)

    return Schema(
        type=OpenAPIType.OBJECT,
        properties={
            "error": Schema(
                type=OpenAPIType.OBJECT,
                properties={
                    "message": Schema(
                        type=OpenAPIType.STRING,
                        description="What failed and what to do, for people.",
                    ),
                    "type": text_or_null("The class of the error."),
                    "param": text_or_null("The parameter that is wrong, if one is."),
                    "code": text_or_null("A short, stable code for programs."),
                },
                required=["message"],
                description="The error.",
            )
        },
        required=["error"],
        description="The body of an error in OpenAI's format.",
    )


def _response(status: int, text: str) -> OpenAPIResponse:
    retry = OpenAPIHeader(
        schema=Schema(type=OpenAPIType.INTEGER),
        description="Seconds to wait before the next try.",
        required=False,
    )
    body = OpenAPIMediaType(schema=Reference(ref="#/components/schemas/ErrorAnswer"))
    return OpenAPIResponse(
        description=text,
        headers={"Retry-After": retry} if status in (429, 503) else None,
        content={"application/json": body},
    )
