"""The OpenAPI document: what every route may answer beside its success, and who may use it."""

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

from evoclaw.api.auth import ANY_CALLER, ANYBODY, is_open
from evoclaw.api.docs_page import page
from evoclaw.api.shaping import shape
from evoclaw.core.messages import JSON
from evoclaw.core.version import VERSION

ABOUT = """One assistant for all your machines: every call is judged before it runs, sandboxed while
it runs, recorded after it ran, and never runs twice.

Show a token as `Authorization: Bearer ec_…`; it opens the data of one tenant, and no other's.
What is not yours is answered as if it were not there."""
BEARER = "token"
OPENAI = "openai"
"""The tag of routes whose errors have the shape of OpenAI's."""
TAGS = {
    "agents": "Ask an agent, and get its answer.",
    OPENAI: "The same for programs that know OpenAI's chat completions.",
    "runs": "What is being answered: begun, watched, steered, answered, cancelled.",
    "sessions": "Conversations, and what was said in them.",
    "approvals": "What agents want to do, and ask, and wait for.",
    "workflows": "Steps that call agents and tools.",
    "channels": "Where others' programs post what people say to agents.",
    "fleet": "The edges.",
    "tools": "What can be done here.",
    "skills": "What agents can learn here.",
    "memory": "What was remembered.",
    "audit": "Who did what.",
    "budgets": "What may be spent, and what was.",
    "policy": "What calls are judged by, and why.",
    "stops": "The emergency stop.",
    "tokens": "Who may come in.",
    "health": "Whether it works, and its figures.",
}
_ERRORS: Mapping[int, tuple[str, str]] = {
    400: ("Unreadable", "What was sent cannot be read."),
    401: ("Unauthorized", "No good token was shown."),
    403: ("Forbidden", "The token does not hold the scope, or the web page may not ask."),
    404: ("NotFound", "There is nothing of that id, as far as you can know."),
    405: ("MethodNotAllowed", "This address does not take that method."),
    408: ("TooSlow", "The body did not come in time."),
    409: ("Conflict", "Not as it stands now; the message says why."),
    413: ("TooLarge", "The body is too large."),
    421: ("UnknownHost", "This service is not known under that host name."),
    422: ("Invalid", "What was sent is not what this address takes; `details` says where."),
    429: ("TooMany", "Too many; `Retry-After` says when to come again."),
    500: ("Fault", "A fault of the server; its log says which."),
    503: ("Unavailable", "Not now, or not in this process; the message says why."),
}
_WRITING = (408, 409, 413)


class Document:
    """What some routes are for, for programs and for people; made once, when first asked for.

    It takes a second, and is wanted seldom: so it is made in a thread, from routes of its own.
    """

    def __init__(self, routes: Sequence[Any]) -> None:
        self._routes = routes
        self._lock = asyncio.Lock()
        self._made: tuple[bytes, bytes] | None = None

    async def json(self) -> bytes:
        """The OpenAPI document."""
        return (await self._get())[0]

    async def page(self) -> bytes:
        """The same as a page."""
        return (await self._get())[1]

    async def _get(self) -> tuple[bytes, bytes]:
        async with self._lock:
            if self._made is None:
                self._made = await asyncio.to_thread(self._make)
        return self._made

    def _make(self) -> tuple[bytes, bytes]:
        document = describe(self._routes)
        return msgspec.json.encode(document), page(document).encode()


def describe(routes: Sequence[Any]) -> dict[str, JSON]:
    """The OpenAPI document of some routes."""
    app = Litestar(
        routes,
        openapi_config=_about(),
        # Only so that they are not taken for parameters: nobody is answered from here.
        dependencies={
            name: Provide(lambda: None, sync_to_thread=False) for name in ("parts", "caller")
        },
    )
    _complete_all(app.openapi_schema)
    _name_scopes(app)
    document: dict[str, JSON] = msgspec.to_builtins(app.openapi_schema.to_schema())
    shape(document, app)
    return document


def _name_scopes(app: Litestar) -> None:
    """Say of each route which scope a token needs for it."""
    for route in app.routes:
        item = (app.openapi_schema.paths or {}).get(route.path_format)
        if item is None or not isinstance(route, HTTPRoute):
            continue
        for handler in route.route_handlers:
            scope = str(handler.opt.get("scope", ""))
            for method in handler.http_methods:
                operation = getattr(item, method.lower())
                if isinstance(operation, Operation) and scope not in (ANYBODY, ANY_CALLER):
                    operation.security = [{BEARER: [scope]}]


def _about() -> OpenAPIConfig:
    """What the document says of the service as a whole."""
    return OpenAPIConfig(
        title="EvoClaw",
        version=VERSION,
        description=ABOUT,
        use_handler_docstrings=True,
        tags=[Tag(name, text) for name, text in TAGS.items()],
        security=[{BEARER: []}],
        components=Components(
            security_schemes={
                BEARER: SecurityScheme(
                    type="http",
                    scheme="bearer",
                    description="Made by `evoclaw token new`; or a JWT, if that is configured.",
                )
            }
        ),
        render_plugins=[JsonRenderPlugin()],
    )


def _complete_all(document: OpenAPI) -> None:
    """Add to each route what it may answer beside what it says itself."""
    document.components.schemas["ErrorDetails"] = _problem()
    document.components.schemas["ErrorAnswer"] = Schema(
        type=OpenAPIType.OBJECT,
        properties={"error": Reference(ref="#/components/schemas/ErrorDetails")},
        required=["error"],
        description="The body of every answer that is not a success.",
    )
    document.components.responses = {
        name: _response(status, text) for status, (name, text) in _ERRORS.items()
    }
    document.components.schemas["OpenAIErrorAnswer"] = _openai_error()
    document.components.responses["OpenAIError"] = OpenAPIResponse(
        description="What went wrong, as OpenAI's clients read it.",
        content={
            "application/json": OpenAPIMediaType(
                schema=Reference(ref="#/components/schemas/OpenAIErrorAnswer")
            )
        },
    )
    for path, item in (document.paths or {}).items():
        for method in ("get", "post", "patch", "put", "delete"):
            operation = getattr(item, method)
            if isinstance(operation, Operation):
                _complete(path, method, operation)


def _complete(path: str, method: str, operation: Operation) -> None:
    if is_open(path):
        operation.security = [{}]
    responses = operation.responses = operation.responses or {}
    if OPENAI in (operation.tags or ()):
        responses.setdefault("default", Reference(ref="#/components/responses/OpenAIError"))
        responses.pop("400", None)
        return
    for status, (name, _) in _ERRORS.items():
        if status in _WRITING and method == "get":
            continue
        responses.setdefault(str(status), Reference(ref=f"#/components/responses/{name}"))
    # Litestar's own words for what cannot be validated, in its own shape.
    if responses.get("400") is not None and not isinstance(responses["400"], Reference):
        responses["400"] = Reference(ref="#/components/responses/Unreadable")


def _problem() -> Schema:
    return Schema(
        type=OpenAPIType.OBJECT,
        properties={
            "code": Schema(type=OpenAPIType.STRING, description="Short and stable: for programs."),
            "message": Schema(type=OpenAPIType.STRING, description="For people."),
            "details": Schema(type=OpenAPIType.OBJECT, description="Data for programs."),
        },
        required=["code", "message"],
        description="What went wrong, and what to do about it.",
    )


def _openai_error() -> Schema:
    text_or_none = Schema(type=[OpenAPIType.STRING, OpenAPIType.NULL])
    return Schema(
        type=OpenAPIType.OBJECT,
        properties={
            "error": Schema(
                type=OpenAPIType.OBJECT,
                properties={
                    "message": Schema(type=OpenAPIType.STRING),
                    "type": text_or_none,
                    "param": text_or_none,
                    "code": text_or_none,
                },
                required=["message"],
            )
        },
        required=["error"],
        description="The same as OpenAI's clients read it.",
    )


def _response(status: int, text: str) -> OpenAPIResponse:
    retry = OpenAPIHeader(
        schema=Schema(type=OpenAPIType.INTEGER), description="Seconds to wait.", required=False
    )
    body = OpenAPIMediaType(schema=Reference(ref="#/components/schemas/ErrorAnswer"))
    return OpenAPIResponse(
        description=text,
        headers={"Retry-After": retry} if status in (429, 503) else None,
        content={"application/json": body},
    )
