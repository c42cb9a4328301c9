"""Whether the process lives, whether it can do anything, and its figures."""

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
"""Seconds in which a part must say how it is."""
FIGURES = "text/plain; version=0.0.4; charset=utf-8"
TAGS = ["health"]


class Alive(Struct, frozen=True):
    """The process lives."""

    status: Literal["ok"]
    version: str


class Readiness(Struct, frozen=True):
    """Whether something can be done here now, and which part keeps it from that."""

    ready: bool
    parts: dict[str, str]
    """By name: `ok`, `failed` or `draining`. The log says more."""


@get("/health/live", scope=ANYBODY, tags=TAGS, security=[])
async def live() -> Alive:
    """Whether the process lives: restart it if this does not answer."""
    return Alive("ok", VERSION)


@get(
    "/health/ready",
    scope=ANYBODY,
    tags=TAGS,
    security=[],
    responses={503: ResponseSpec(Readiness, description="Not now; the parts say why.")},
)
async def ready(parts: Need) -> Response[Readiness]:
    """Whether requests should be sent here."""
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
        # For everybody to see is only which part: what is wrong with it may name places.
        LOG.warning("not ready: %s: %s", name, problem)
    return "failed" if problem else "ok"


@get(
    "/metrics",
    scope=Scope.METRICS_READ,
    tags=TAGS,
    media_type="text/plain",
    responses={200: ResponseSpec(str, media_type="text/plain", description="For Prometheus.")},
)
async def metrics(request: Request[Any, Any, Any], parts: Need, caller: Who) -> Response[bytes]:
    """All figures of the process, as Prometheus reads them; for the operator.

    They count what all tenants do.
    """
    check_operator(parts, caller)
    told = b"" if parts.metrics is None else parts.metrics()
    told = told if isinstance(told, str | bytes) else await told
    text = told.encode() if isinstance(told, str) else told
    return Response(text + _own(request), media_type=FIGURES)


def _own(request: Request[Any, Any, Any]) -> bytes:
    """What is counted at the door."""
    door = cast("Door", request.app.state["door"])
    lines = [
        "# HELP evoclaw_http_responses_total Answers over HTTP, by status.",
        "# TYPE evoclaw_http_responses_total counter",
        *(
            f'evoclaw_http_responses_total{{status="{status}"}} {count}'
            for status, count in sorted(door.counts.items())
        ),
        "# HELP evoclaw_http_watchers Event streams that are open.",
        "# TYPE evoclaw_http_watchers gauge",
        f"evoclaw_http_watchers {watchers_of(request).count}",
    ]
    return ("\n".join(lines) + "\n").encode()


ROUTES: tuple[HTTPRouteHandler, ...] = (live, ready, metrics)
