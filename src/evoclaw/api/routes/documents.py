"""Routes of the OpenAPI document: JSON and HTML."""

from __future__ import annotations

from typing import Any, cast

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from evoclaw.api.auth import ANYBODY
from evoclaw.api.describing import Document
from evoclaw.api.docs_page import policy

OPENAPI = "application/vnd.oai.openapi+json"


@get("/openapi.json", scope=ANYBODY, include_in_schema=False)
async def document(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The OpenAPI document as JSON."""
    return Response(await _document(request).json(), media_type=OPENAPI)


@get("/docs", scope=ANYBODY, include_in_schema=False)
async def docs(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The OpenAPI document as an HTML page."""
    headers = {"content-security-policy": policy()}
    return Response(await _document(request).page(), media_type="text/html", headers=headers)


def _document(request: Request[Any, Any, Any]) -> Document:
    return cast("Document", request.app.state["document"])


ROUTES: tuple[HTTPRouteHandler, ...] = (document, docs)
