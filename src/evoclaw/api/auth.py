"""Who may use a route: it names a scope, and the caller's token must hold it.

A route says `scope=Scope.RUNS_READ` in its decorator, or `scope=ANYBODY` if it checks in its own
way who comes; one that says nothing is refused to everybody. A route that takes `caller: Who` is
given the caller, one that takes `parts: Need` what this process was built from.
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
"""The scope of a route that everybody may use."""
ANY_CALLER = "any"
"""The scope of a route that everybody with a good token may use."""
OPEN = frozenset({"/", "/health/live", "/health/ready", "/openapi.json", "/docs"})
"""The addresses that need no token."""
OPEN_BELOW = ("/v1/channels/", "/ui/")
"""And those below which a route checks in its own way who comes, or there are only files."""

Need: TypeAlias = NamedDependency[SkipValidation[Parts]]
"""What this process was built from, as a route asks for it."""
Who: TypeAlias = NamedDependency[SkipValidation[Caller]]
"""Whoever asks, as a route asks for it."""
Connection = ASGIConnection[Any, Any, Any, Any]


def is_open(path: str) -> bool:
    """Whether no token is needed there."""
    return path in OPEN or path.startswith(OPEN_BELOW)


def caller_of(request: Request[Any, Any, Any], parts: Need) -> Caller:
    """Whoever asks; `Refused` if nobody known does.

    Args:
        request: By whom.
        parts: Only so that it is given first: what is given side by side costs two tasks a request.
    """
    return _caller(request)


def check_scope(connection: Connection, route: BaseRouteHandler) -> None:
    """Refuse a caller who does not hold what the route asks for; fails closed."""
    scope: object = route.opt.get("scope")
    if scope == ANYBODY:
        return
    caller = _caller(connection)
    if scope == ANY_CALLER:
        return
    if not isinstance(scope, str) or not caller.may(scope):
        wanted = str(scope) if isinstance(scope, str) else "a scope nobody named"
        raise Refused(
            403,
            "forbidden",
            f"this needs a token with the scope {wanted!r}; ask whoever gave you yours",
            details={"scope": wanted},
        )


def check_query(connection: Connection, route: BaseRouteHandler) -> None:
    """Refuse what a route does not take: a parameter that is spelled wrong is not passed over."""
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
            f"no such parameter: {unknown[0][:80]!r}; known: {', '.join(sorted(known)) or 'none'}"
        )
        raise Refused(422, "invalid", text)


def _caller(connection: Connection) -> Caller:
    caller = cast("Caller | None", connection.scope["auth"])
    if caller is None:
        raise unknown_caller()
    return caller


def unknown_caller() -> Refused:
    """Nobody known asks."""
    return Refused(
        401, "unauthorized", "show a good token: `Authorization: Bearer ec_…`; see `evoclaw token`"
    )
