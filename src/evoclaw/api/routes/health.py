"""Routes for liveness, readiness and Prometheus metrics."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal, cast

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from msgspec import Struct

from evoclaw.api.auth import ANYBODY, Need, Who
from evoclaw.api.door import Door
from evoclaw.api.needs import Check, Parts
from evoclaw.api.routes.oversight import check_operator
from evoclaw.api.sse import watchers_of
from evoclaw.core.errors import EvoClawError
from evoclaw.core.version import VERSION
from evoclaw.orchestrator.people.access import Scope

LOG = logging.getLogger("evoclaw.api")
PATIENCE = 3.0
"""The time limit of one readiness check."""
FIGURES = "text/plain; version=0.0.4; charset=utf-8"
TAGS = ["health"]


class Alive(Struct, frozen=True):
    """The process is alive."""

    status: Literal["ok"]
    version: str


class Readiness(Struct, frozen=True):
    """Whether the process can serve requests, and the state of each component."""

    ready: bool
    parts: dict[str, str]
    """By component: `ok`, `failed` or `draining`. The log has the reason."""


@get("/health/live", scope=ANYBODY, tags=TAGS, security=[])
async def live() -> Alive:
    """Liveness probe: restart the process if it does not answer."""
    return Alive("ok", VERSION)


@get(
    "/health/ready",
    scope=ANYBODY,
    tags=TAGS,
    security=[],
    responses={
        503: ResponseSpec(Readiness, description="Not ready; `parts` names the failed component.")
    },
)
async def ready(parts: Need) -> Response[Readiness]:
    """Readiness probe: send requests here only if it answers 200."""
    names = list(parts.checks)
    states = await asyncio.gather(*(_state(name, parts.checks[name]) for name in names))
    found = dict(zip(names, states, strict=True))
    found["runs"] = _runs(parts)
    is_ready = all(state == "ok" for state in found.values())
    return Response(Readiness(is_ready, found), status_code=200 if is_ready else 503)


def _runs(parts: Parts) -> str:
    if parts.runs is None:
        return "failed"
    return "draining" if parts.runs.draining else "ok"


async def _state(name: str, check: Check) -> str:
    try:
        async with asyncio.timeout(PATIENCE):
            problem = await check()
    except (EvoClawError, TimeoutError, OSError) as error:
        problem = str(error) or type(error).__name__
    if problem:
        # The route is public, so it names only the component: the reason may contain paths.
        LOG.warning("readiness check %r failed: %s", name, problem)
    return "failed" if problem else "ok"


@get(
    "/metrics",
    scope=Scope.METRICS_READ,
    tags=TAGS,
    media_type="text/plain",
    responses={
        200: ResponseSpec(
            str, media_type="text/plain", description="In the Prometheus text format."
        )
    },
)
async def metrics(request: Request[Any, Any, Any], parts: Need, caller: Who) -> Response[bytes]:
    """All metrics of the process in the Prometheus text format, over all tenants.

    Only for the operator's tenant.
    """
    check_operator(parts, caller)
    rendered = b"" if parts.metrics is None else parts.metrics()
    rendered = rendered if isinstance(rendered, str | bytes) else await rendered
    text = rendered.encode() if isinstance(rendered, str) else rendered
    return Response(text + _own(request), media_type=FIGURES)


def _own(request: Request[Any, Any, Any]) -> bytes:
    """The metrics of the request gate and the event streams."""
    gate = cast("Door", request.app.state["request_gate"])
    lines = [
        "# HELP evoclaw_http_responses_total HTTP responses by status.",
        "# TYPE evoclaw_http_responses_total counter",
        *(
            f'evoclaw_http_responses_total{{status="{status}"}} {count}'
            for status, count in sorted(gate.counts.items())
        ),
        "# HELP evoclaw_http_watchers Open event streams.",
        "# TYPE evoclaw_http_watchers gauge",
        f"evoclaw_http_watchers {watchers_of(request).count}",
    ]
    return ("\n".join(lines) + "\n").encode()


ROUTES: tuple[HTTPRouteHandler, ...] = (live, ready, metrics)
