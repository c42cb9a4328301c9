"""The route of a session's canvas."""

from __future__ import annotations

from litestar import get
from litestar.handlers import HTTPRouteHandler

from evoclaw.api.auth import Need, Who
from evoclaw.api.errors import given, not_found
from evoclaw.api.needs import SheetView
from evoclaw.api.routes.sessions import own_session
from evoclaw.api.routes.shapes import Id
from evoclaw.orchestrator.people.access import Scope


@get("/v1/sessions/{session_id:str}/canvas", scope=Scope.SESSIONS_READ, tags=["sessions"])
async def show_canvas(parts: Need, caller: Who, session_id: Id) -> SheetView:
    """Show the canvas of a session. A model wrote it: render it in a sandboxed frame."""
    session = await own_session(parts, caller, session_id)
    canvas = await given(parts.canvases, "canvases").shown(caller.tenant, session.id)
    if canvas is None:
        raise not_found("canvas in this session")
    return canvas


ROUTES: tuple[HTTPRouteHandler, ...] = (show_canvas,)
