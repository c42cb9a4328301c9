"""The route of a session's canvas."""

from __future__ import annotations

from litestar import get
from litestar.handlers import HTTPRouteHandler

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.errors import not_found, require
from evoclaw.api.needs import CanvasView
from evoclaw.api.routes.sessions import own_session
from evoclaw.api.routes.shapes import PathId
from evoclaw.orchestrator.people.access import TokenScope


@get("/v1/sessions/{session_id:str}/canvas", scope=TokenScope.SESSIONS_READ, tags=["sessions"])
async def show_canvas(
    parts: InjectedDependencies, caller: InjectedCaller, session_id: PathId
) -> CanvasView:
    """Show the canvas of a session. A model wrote it: render it in a sandboxed frame."""
    session = await own_session(parts, caller, session_id)
    canvas = await require(parts.canvases, "canvases").get(caller.tenant, session.id)
    if canvas is None:
        raise not_found("canvas in this session")
    return canvas


CANVAS_ROUTES: tuple[HTTPRouteHandler, ...] = (show_canvas,)
