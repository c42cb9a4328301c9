"""Routes for liveness, readiness and Prometheus metrics."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal, cast

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from msgspec import Struct

from evoclaw.api.auth import PUBLIC, InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.middleware import RequestGate
from evoclaw.api.routes.governance import check_operator
from evoclaw.api.sse import watchers_of
from evoclaw.core.errors import EvoClawError
from evoclaw.core.version import VERSION
from evoclaw.orchestrator.overview.readiness import ReadinessCheck
from evoclaw.orchestrator.people.access import TokenScope

LOG = logging.getLogger("evoclaw.api")
CHECK_TIMEOUT_S = 3.0
"""The time limit of one readiness check."""
PROMETHEUS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TAGS = ["health"]


class Liveness(Struct, frozen=True):
    """The process is alive."""

    status: Literal["ok"]
    """Always `ok`."""
    version: str
    """The version of EvoClaw."""


class Readiness(Struct, frozen=True):
    """Whether the process can serve requests, and the state of each component."""

    ready: bool
    """Whether the process can serve requests."""
    parts: dict[str, str]
    """By component: `ok`, `failed` or `draining`. The log has the reason."""


@get("/health/live", scope=PUBLIC, tags=TAGS, security=[])
async def live() -> Liveness:
    """Liveness probe: restart the process if it does not answer."""
    return Liveness("ok", VERSION)


@get(
    "/health/ready",
    scope=PUBLIC,
    tags=TAGS,
    security=[],
    responses={
        503: ResponseSpec(Readiness, description="Not ready; `parts` names the failed component.")
    },
)
async def ready(parts: InjectedDependencies) -> Response[Readiness]:
    """Readiness probe: send requests here only if it answers 200."""
    names = list(parts.checks)
    states = await asyncio.gather(*(_check_state(name, parts.checks[name]) for name in names))
    found = dict(zip(names, states, strict=True))
    found["runs"] = _runs_state(parts)
    is_ready = all(state == "ok" for state in found.values())
    return Response(Readiness(is_ready, found), status_code=200 if is_ready else 503)


def _runs_state(parts: ApiDependencies) -> str:
    if parts.runs is None:
        return "failed"
    return "draining" if parts.runs.draining else "ok"


async def _check_state(name: str, check: ReadinessCheck) -> str:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            problem = await check()
    except (EvoClawError, TimeoutError, OSError) as error:
        problem = str(error) or type(error).__name__
    if problem:
        # The route is public, so it names only the component: the reason may contain paths.
        LOG.warning("readiness check %r failed: %s", name, problem)
    return "failed" if problem else "ok"


@get(
    "/metrics",
    scope=TokenScope.METRICS_READ,
    tags=TAGS,
    media_type="text/plain",
    responses={
        200: ResponseSpec(
            str, media_type="text/plain", description="In the Prometheus text format."
        )
    },
)
async def metrics(
    request: Request[Any, Any, Any], parts: InjectedDependencies, caller: InjectedCaller
) -> Response[bytes]:
    """All metrics of the process in the Prometheus text format, over all tenants.

    Only for the operator's tenant.
    """
    check_operator(parts, caller)
    rendered = b"" if parts.metrics is None else parts.metrics()
    rendered = rendered if isinstance(rendered, str | bytes) else await rendered
    text = rendered.encode() if isinstance(rendered, str) else rendered
    return Response(text + _http_metrics(request), media_type=PROMETHEUS_MEDIA_TYPE)


def _http_metrics(request: Request[Any, Any, Any]) -> bytes:
    """The metrics of the request gate and the event streams."""
    gate = cast("RequestGate", request.app.state["request_gate"])
    lines = [
        "# HELP evoclaw_http_responses_total HTTP responses by status.",
        "# TYPE evoclaw_http_responses_total counter",
        *(
            f'evoclaw_http_responses_total{{status="{status}"}} {count}'
            for status, count in sorted(gate.responses_by_status.items())
        ),
        "# HELP evoclaw_http_watchers Open event streams.",
        "# TYPE evoclaw_http_watchers gauge",
        f"evoclaw_http_watchers {watchers_of(request).count}",
    ]
    return ("\n".join(lines) + "\n").encode()


ROUTES: tuple[HTTPRouteHandler, ...] = (live, ready, metrics)
