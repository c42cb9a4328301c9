"""Authorization: each route names a scope, and the caller's token must hold it.

A route sets `scope=Scope.RUNS_READ` in its decorator, or `scope=PUBLIC` if it needs no token or
authenticates requests itself; a route without a scope refuses every caller. The parameter
`caller: InjectedCaller` receives the caller, `parts: InjectedDependencies` the dependencies.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter, SkipValidation

from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError
from evoclaw.orchestrator.people.access import Caller

PUBLIC = ""
"""The scope of a route that needs no token."""
ANY_CALLER = "any"
"""The scope of a route that any valid token may use."""
ANY_QUERY = "any_query"
"""The option of a route that ignores unknown query parameters, because its protocol says so."""
CARD_PATHS = ("/.well-known/agent-card.json", "/a2a/.well-known/agent-card.json")
"""Where the agent card is that everyone may read."""
PUBLIC_PATHS = frozenset(
    {"/", "/health/live", "/health/ready", "/openapi.json", "/docs", *CARD_PATHS}
)
"""Paths that need no token."""
ANSWER_PATH_PREFIX = "/v1/answers/"
"""What follows it is a token that approves or denies a call: it must not be logged."""
PUBLIC_PREFIXES = ("/v1/channels/", ANSWER_PATH_PREFIX, "/ui/")
"""Path prefixes that need no token: signed webhooks, signed links of notifications, and the static
files of the dashboard."""

InjectedDependencies: TypeAlias = NamedDependency[SkipValidation[ApiDependencies]]
"""The dependencies, injected into a route."""
InjectedCaller: TypeAlias = NamedDependency[SkipValidation[Caller]]
"""The authenticated caller, injected into a route."""
Connection = ASGIConnection[Any, Any, Any, Any]


def is_public(path: str) -> bool:
    """Whether a path needs no token."""
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIXES)


def loggable_path(path: str) -> str:
    """A path as it may be logged: short, and without a secret."""
    return f"{ANSWER_PATH_PREFIX}…" if path.startswith(ANSWER_PATH_PREFIX) else path[:200]


def provide_caller(request: Request[Any, Any, Any], parts: InjectedDependencies) -> Caller:
    """The authenticated caller; `ApiError` 401 if there is none.

    Args:
        request: The current request.
        parts: Unused. Litestar resolves independent dependencies concurrently, which costs two
            tasks a request; naming it here makes the resolution sequential.
    """
    return _require_caller(request)


async def check_request(connection: Connection, route: BaseRouteHandler) -> None:
    """Refuse a caller without the scope of the route, and unknown query parameters.

    One guard, and async: Litestar copies the route for each guard, and runs others in a thread.
    """
    _check_scope(connection, route)
    _check_query(connection, route)


def _check_scope(connection: Connection, route: BaseRouteHandler) -> None:
    """Refuse a caller whose token lacks the scope of the route; fails closed."""
    scope: object = route.opt.get("scope")
    if scope == PUBLIC:
        return
    caller = _require_caller(connection)
    if scope == ANY_CALLER:
        return
    if not isinstance(scope, str) or not caller.may(scope):
        wanted = str(scope) if isinstance(scope, str) else "(the route names none)"
        raise ApiError(
            403,
            "forbidden",
            f"The token lacks the scope {wanted!r}. Ask the administrator for a token with it.",
            details={"scope": wanted},
        )


def _check_query(connection: Connection, route: BaseRouteHandler) -> None:
    """Refuse unknown query parameters: a misspelt parameter is an error, not ignored."""
    if route.opt.get("scope") == PUBLIC or route.opt.get(ANY_QUERY):
        return
    if not connection.query_params:
        return
    known = {
        kind.name or name
        for name, field in route.parsed_fn_signature.parameters.items()
        if isinstance(kind := field.kwarg_definition, QueryParameter)
    }
    unknown = [name for name in connection.query_params if name not in known]
    if unknown:
        text = (
            f"Unknown query parameter {unknown[0][:80]!r}. "
            f"Known parameters: {', '.join(sorted(known)) or 'none'}."
        )
        raise ApiError(422, "invalid", text)


def _require_caller(connection: Connection) -> Caller:
    caller = cast("Caller | None", connection.scope["auth"])
    if caller is None:
        raise unauthorized()
    return caller


def unauthorized() -> ApiError:
    """The error for a missing or invalid token."""
    return ApiError(
        401,
        "unauthorized",
        "The token is missing or invalid. Send `Authorization: Bearer ec_…`; see `evoclaw token`.",
    )
