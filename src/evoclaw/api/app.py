"""The ASGI application: all routes behind the request gate."""

from __future__ import annotations

from litestar import Litestar
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from evoclaw.api.a2a.routes import A2A_ROUTES
from evoclaw.api.auth import check_request, provide_caller
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import handle_error, handle_http_exception, handle_internal_error
from evoclaw.api.json_request import JsonRequest
from evoclaw.api.lazy_app import LazyApp
from evoclaw.api.mcp.mount import McpMount
from evoclaw.api.middleware import RequestGate
from evoclaw.api.openai import routes as openai
from evoclaw.api.openai.embeddings import EMBEDDING_ROUTES
from evoclaw.api.openai.response_routes import RESPONSE_ROUTES
from evoclaw.api.openapi import OpenApiDocument
from evoclaw.api.routes import (
    agents,
    approvals,
    campaigns,
    candidates,
    cases,
    definitions,
    evaluations,
    events,
    fleet,
    genome_rollouts,
    genomes,
    governance,
    health,
    metrics,
    openapi,
    policy,
    replays,
    runs,
    sessions,
    settings,
    tokens,
    tool_calls,
    tools_skills_memory,
    undo,
    workflows,
)
from evoclaw.api.sse import Watchers
from evoclaw.core.errors import EvoClawError


def create_app(parts: ApiDependencies) -> Litestar:
    """Create the ASGI application from its dependencies; serve it with `serving`."""

    def provide_dependencies() -> ApiDependencies:
        return parts

    routes = [*api_routes(), *parts.extra_routes]
    app = LazyApp(
        dependencies={
            "parts": Provide(provide_dependencies, sync_to_thread=False),
            "caller": Provide(provide_caller, sync_to_thread=False),
        },
        guards=[check_request],
        exception_handlers={
            EvoClawError: handle_error,
            HTTPException: handle_http_exception,
            Exception: handle_internal_error,
        },
        openapi_config=None,
        request_class=JsonRequest,
        request_max_body_size=parts.settings.max_body_bytes,
        state=State(
            {
                "watchers": Watchers(parts.settings),
                "access": parts.access,
                "document": OpenApiDocument(routes),
                "feed": events.make_feed(parts),
            }
        ),
        logging_config=None,
    )
    app.register_all(routes)
    mcp = McpMount(app.asgi_handler, parts)
    app.state["mcp"] = mcp
    gate = RequestGate(mcp, parts, None)
    app.state["request_gate"] = gate
    app.asgi_handler = gate
    return app


def api_routes() -> list[HTTPRouteHandler]:
    """The routes of the API that every process serves."""
    return [
        *agents.ROUTES,
        *openai.ROUTES,
        *RESPONSE_ROUTES,
        *EMBEDDING_ROUTES,
        *A2A_ROUTES,
        *runs.ROUTES,
        *undo.ROUTES,
        *replays.ROUTES,
        *approvals.ROUTES,
        *sessions.ROUTES,
        *sessions.CANVAS_ROUTES,
        *fleet.ROUTES,
        *fleet.EDGE_TOOL_ROUTES,
        *metrics.ROUTES,
        *events.ROUTES,
        *tools_skills_memory.ROUTES,
        *tool_calls.ROUTES,
        *governance.ROUTES,
        *policy.ROUTES,
        *settings.ROUTES,
        *tokens.ROUTES,
        *workflows.ROUTES,
        *definitions.ROUTES,
        *genomes.ROUTES,
        *candidates.ROUTES,
        *campaigns.ROUTES,
        *cases.ROUTES,
        *evaluations.ROUTES,
        *genome_rollouts.ROUTES,
        *health.ROUTES,
        *openapi.ROUTES,
    ]
