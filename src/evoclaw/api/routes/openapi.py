"""Routes of the OpenAPI document: JSON and HTML."""

from __future__ import annotations

from typing import Any, cast

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from evoclaw.api.auth import PUBLIC
from evoclaw.api.openapi import OpenApiDocument
from evoclaw.api.openapi_page import content_security_policy

OPENAPI_MEDIA_TYPE = "application/vnd.oai.openapi+json"


@get("/openapi.json", scope=PUBLIC, include_in_schema=False)
async def openapi_json(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The OpenAPI document as JSON."""
    return Response(await _document(request).json(), media_type=OPENAPI_MEDIA_TYPE)


@get("/docs", scope=PUBLIC, include_in_schema=False)
async def docs_page(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The OpenAPI document as an HTML page."""
    headers = {"content-security-policy": content_security_policy()}
    return Response(await _document(request).page(), media_type="text/html", headers=headers)


def _document(request: Request[Any, Any, Any]) -> OpenApiDocument:
    return cast("OpenApiDocument", request.app.state["document"])


ROUTES: tuple[HTTPRouteHandler, ...] = (openapi_json, docs_page)
