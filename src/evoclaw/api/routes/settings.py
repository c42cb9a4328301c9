"""Routes of the settings."""

from __future__ import annotations

from litestar import post
from litestar.handlers import HTTPRouteHandler

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ReloadResult
from evoclaw.api.errors import ApiError, require
from evoclaw.api.routes.governance import check_operator
from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.people.access import TokenScope


@post("/v1/settings/reload", scope=TokenScope.ADMIN, tags=["settings"], status_code=200)
async def reload_settings(parts: InjectedDependencies, caller: InjectedCaller) -> ReloadResult:
    """Read the settings file again; a file with an error changes nothing."""
    check_operator(parts, caller)
    reload = require(parts.reload, "settings")
    try:
        return reload()
    except ConfigError as problem:
        raise ApiError(409, "invalid_settings", str(problem)) from None


ROUTES: tuple[HTTPRouteHandler, ...] = (reload_settings,)
