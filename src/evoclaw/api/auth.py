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

from evoclaw.api.errors import Refused
from evoclaw.api.needs import Parts
from evoclaw.orchestrator.people.access import Caller

ANYBODY = ""
"""The scope of a route that needs no token."""
ANY_CALLER = "any"
"""The scope of a route that any valid token may use."""
OPEN = frozenset({"/", "/health/live", "/health/ready", "/openapi.json", "/docs"})
"""Paths that need no token."""
OPEN_BELOW = ("/v1/channels/", "/ui/")
"""Path prefixes that need no token: signed webhooks, and the static files of the dashboard."""

Need: TypeAlias = NamedDependency[SkipValidation[Parts]]
"""The dependencies, injected into a route."""
Who: TypeAlias = NamedDependency[SkipValidation[Caller]]
"""The authenticated caller, injected into a route."""
Connection = ASGIConnection[Any, Any, Any, Any]


def is_open(path: str) -> bool:
    """Whether a path needs no token."""
    return path in OPEN or path.startswith(OPEN_BELOW)


def caller_of(request: Request[Any, Any, Any], parts: Need) -> Caller:
    """The authenticated caller; `ApiError` 401 if there is none.

    Args:
        request: The current request.
        parts: Unused. Litestar resolves independent dependencies concurrently, which costs two
            tasks a request; naming it here makes the resolution sequential.
    """
    return _caller(request)


def check_scope(connection: Connection, route: BaseRouteHandler) -> None:
    """Refuse a caller whose token lacks the scope of the route; fails closed."""
    scope: object = route.opt.get("scope")
    if scope == ANYBODY:
        return
    caller = _caller(connection)
    if scope == ANY_CALLER:
        return
    if not isinstance(scope, str) or not caller.may(scope):
        wanted = str(scope) if isinstance(scope, str) else "(the route names none)"
        raise Refused(
            403,
            "forbidden",
            f"The token lacks the scope {wanted!r}. Ask the administrator for a token with it.",
            details={"scope": wanted},
        )


def check_query(connection: Connection, route: BaseRouteHandler) -> None:
    """Refuse unknown query parameters: a misspelt parameter is an error, not ignored."""
    if route.opt.get("scope") == ANYBODY:
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
        raise Refused(422, "invalid", text)


def _caller(connection: Connection) -> Caller:
    caller = cast("Caller | None", connection.scope["auth"])
    if caller is None:
        raise unknown_caller()
    return caller


def unknown_caller() -> Refused:
    """The error for a missing or invalid token."""
    return Refused(
        401,
        "unauthorized",
        "The token is missing or invalid. Send `Authorization: Bearer ec_…`; see `evoclaw token`.",
    )
