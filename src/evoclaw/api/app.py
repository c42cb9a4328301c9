"""The ASGI application: all routes behind the request gate."""

from __future__ import annotations

from litestar import Litestar
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from evoclaw.api import agents
from evoclaw.api.auth import caller_of, check_query, check_scope
from evoclaw.api.describing import Document
from evoclaw.api.door import Door
from evoclaw.api.errors import tell_error, tell_fault, tell_http
from evoclaw.api.needs import Parts
from evoclaw.api.openai import routes as openai
from evoclaw.api.routes import (
    answers,
    canvas,
    documents,
    edge_tools,
    events,
    figures,
    fleet,
    health,
    oversight,
    policy,
    replays,
    runs,
    sessions,
    things,
    tokens,
    workflows,
)
from evoclaw.api.sse import Watchers
from evoclaw.core.errors import EvoClawError


def create_app(parts: Parts) -> Litestar:
    """Create the ASGI application from its dependencies; serve it with `serving`."""

    def provide_dependencies() -> Parts:
        return parts

    routes = [*_routes(), *parts.routes]
    app = Litestar(
        routes,
        dependencies={
            "parts": Provide(provide_dependencies, sync_to_thread=False),
            "caller": Provide(caller_of, sync_to_thread=False),
        },
        guards=[check_scope, check_query],
        exception_handlers={
            EvoClawError: tell_error,
            HTTPException: tell_http,
            Exception: tell_fault,
        },
        openapi_config=None,
        request_max_body_size=parts.settings.max_body_bytes,
        state=State(
            {
                "watchers": Watchers(parts.settings),
                "access": parts.access,
                "document": Document(routes),
                "feed": events.feed_of(parts),
            }
        ),
        logging_config=None,
    )
    gate = Door(app.asgi_handler, parts, None)
    app.state["request_gate"] = gate
    app.asgi_handler = gate
    return app


def _routes() -> list[HTTPRouteHandler]:
    return [
        *agents.ROUTES,
        *openai.ROUTES,
        *runs.ROUTES,
        *replays.ROUTES,
        *answers.ROUTES,
        *sessions.ROUTES,
        *canvas.ROUTES,
        *fleet.ROUTES,
        *edge_tools.ROUTES,
        *figures.ROUTES,
        *events.ROUTES,
        *things.ROUTES,
        *oversight.ROUTES,
        *policy.ROUTES,
        *tokens.ROUTES,
        *workflows.ROUTES,
        *health.ROUTES,
        *documents.ROUTES,
    ]
