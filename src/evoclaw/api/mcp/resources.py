"""The service's data as MCP resources: sessions, runs and the fleet.

Each resource is what a route of the HTTP API returns, under the scope of that route.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeAlias, cast

import msgspec
from litestar.handlers import HTTPRouteHandler
from mcp import types

from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.mcp.requests import McpRequest
from evoclaw.api.problems import ApiError, not_found, require
from evoclaw.api.routes import fleet, runs, sessions
from evoclaw.core.events import CallFinished, RunFinished, RunStarted, TurnStarted
from evoclaw.core.record_encoding import record_json
from evoclaw.orchestrator.fleet.artifacts import FetchFailed, fetch_bytes
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.orchestrator.sanitizing import one_line

JSON_TYPE = "application/json"
PAGE_SIZE = 50
"""Sessions on one page of the list of resources."""
MAX_MESSAGES = 100
"""The newest ones of a session; the HTTP API has them all."""
MAX_RESOURCE_BYTES = 2 << 20
MAX_COMPLETED = 100
_VARIABLE = r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}"
Contents: TypeAlias = types.TextResourceContents | types.BlobResourceContents


class ResourceUri(StrEnum):
    """The URIs of resources, and the templates of URIs."""

    SESSIONS = "evoclaw://sessions"
    RUNS = "evoclaw://runs"
    FLEET = "evoclaw://fleet"
    SESSION = "evoclaw://sessions/{session_id}"
    MESSAGES = "evoclaw://sessions/{session_id}/messages"
    CANVAS = "evoclaw://sessions/{session_id}/canvas"
    RUN = "evoclaw://runs/{run_id}"
    RECORDS = "evoclaw://runs/{run_id}/records"
    EDGE = "evoclaw://fleet/{edge}"
    ARTIFACT = "evoclaw://fleet/{edge}/artifacts/{handle}"


@dataclass(frozen=True)
class _Kind:
    """A URI, or a template of URIs, and the route whose scope it needs."""

    template: ResourceUri
    name: str
    description: str
    route: HTTPRouteHandler
    media_type: str = JSON_TYPE

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        escaped = re.escape(self.template).replace(r"\{", "{").replace(r"\}", "}")
        return re.compile(re.sub(r"\{(\w+)\}", rf"(?P<\1>{_VARIABLE})", escaped))

    @property
    def is_template(self) -> bool:
        return "{" in self.template

    @property
    def scope(self) -> str:
        return str(self.route.opt["scope"])


_KINDS = (
    _Kind(ResourceUri.SESSIONS, "sessions", "Your newest sessions", sessions.list_sessions),
    _Kind(ResourceUri.RUNS, "runs", "Your newest runs", runs.list_runs),
    _Kind(ResourceUri.FLEET, "fleet", "The edges and their tools", fleet.list_edges),
    _Kind(
        ResourceUri.SESSION,
        "session",
        "A session: its agent, title and last run",
        sessions.show_session,
    ),
    _Kind(
        ResourceUri.MESSAGES,
        "messages",
        "The newest messages of a session",
        sessions.read_messages,
    ),
    _Kind(
        ResourceUri.CANVAS,
        "canvas",
        "The page that the agent wrote in a session",
        sessions.show_canvas,
    ),
    _Kind(
        ResourceUri.RUN,
        "run",
        "The state of a run, and its answer once it has ended",
        runs.show_run,
    ),
    _Kind(
        ResourceUri.RECORDS,
        "records",
        "What happened in a run, one JSON object a line",
        runs.read_records,
        runs.NDJSON_MEDIA_TYPE,
    ),
    _Kind(ResourceUri.EDGE, "edge", "One edge: its state, tools and load", fleet.show_edge),
    _Kind(
        ResourceUri.ARTIFACT,
        "artifact",
        "A large output that an edge stores, as `sha256:…`",
        fleet.show_edge,
        "application/octet-stream",
    ),
)


class ServiceResources:
    """What a caller of the HTTP API may read, as resources."""

    def __init__(self, parts: ApiDependencies) -> None:
        """Read what these dependencies have."""
        self._parts = parts

    async def page(self, request: McpRequest, cursor: str) -> tuple[Sequence[types.Resource], str]:
        """The lists, the edges, and the sessions of the caller, the newest first."""
        caller = _require_caller(request)
        found: list[types.Resource] = []
        if not cursor:
            found += [
                _resource(kind, kind.template, kind.name, kind.description)
                for kind in _KINDS
                if not kind.is_template and caller.may(kind.scope)
            ]
            found += [
                _resource(_kind(ResourceUri.EDGE), f"evoclaw://fleet/{name}", name, "An edge")
                for name in await self._edges(caller)
            ]
        if not caller.may(_kind(ResourceUri.MESSAGES).scope) or self._parts.conversations is None:
            return found, ""
        listed = await self._sessions(caller, cursor, PAGE_SIZE)
        found += [
            _resource(
                _kind(ResourceUri.MESSAGES),
                ResourceUri.MESSAGES.format(session_id=session.id),
                f"session {session.id}",
                f"Messages with the agent {session.agent}",
                one_line(session.title),
            )
            for session in listed.items
        ]
        return found, listed.next

    def templates(self, request: McpRequest) -> Sequence[types.ResourceTemplate]:
        """The templates that the caller may use."""
        caller = _require_caller(request)
        return [
            types.ResourceTemplate(
                name=kind.name,
                uri_template=kind.template,
                description=kind.description,
                mime_type=kind.media_type,
            )
            for kind in _KINDS
            if kind.is_template and caller.may(kind.scope)
        ]

    async def read(self, request: McpRequest, uri: str) -> Sequence[Contents]:
        """The contents of a resource."""
        kind, variables = _parse(uri)
        caller = request.require_caller(kind.scope)
        match kind.template:
            case ResourceUri.MESSAGES:
                return [_text(uri, await self._messages(caller, variables["session_id"]))]
            case ResourceUri.CANVAS:
                sheet = await self._call(sessions.show_canvas, caller, **variables)
                kind_of = "text/html" if sheet.format == "html" else "text/markdown"
                return [types.TextResourceContents(uri=uri, mime_type=kind_of, text=sheet.content)]
            case ResourceUri.RECORDS:
                text = await self._records(caller, variables["run_id"])
                return [types.TextResourceContents(uri=uri, mime_type=kind.media_type, text=text)]
            case ResourceUri.ARTIFACT:
                request.require_caller(TokenScope.TOOLS_EXECUTE)
                data = await self._artifact(caller, variables["edge"], variables["handle"])
                return [_bytes(uri, data)]
            case ResourceUri.EDGE:
                edge = await self._call(fleet.show_edge, caller, agent_id=variables["edge"])
                return [_text(uri, edge)]
            case _:
                return [_text(uri, await self._call(kind.route, caller, **variables))]

    async def complete(self, request: McpRequest, template: str, name: str) -> Sequence[str]:
        """Ids of sessions, runs and edges."""
        caller = request.caller
        kind = next((kind for kind in _KINDS if kind.template == template), None)
        if kind is None or caller is None or not caller.may(kind.scope):
            return ()
        match name:
            case "session_id":
                listed = await self._sessions(caller, "", MAX_COMPLETED)
                return [session.id for session in listed.items]
            case "run_id":
                page = await self._call(runs.list_runs, caller, limit=MAX_COMPLETED)
                return [view.run_id for view in page.items]
            case "edge":
                return await self._edges(caller)
            case _:
                return ()

    async def changes(self, request: McpRequest, uri: str) -> AsyncGenerator[None, None]:
        """The changes of a run; other resources have none that clients are notified of."""
        kind, variables = _parse(uri)
        caller = request.require_caller(kind.scope)
        if kind.template not in (ResourceUri.RUN, ResourceUri.RECORDS):
            shown = one_line(uri)
            text = f"Only runs can be subscribed to, as {ResourceUri.RUN}. Read {shown!r} again."
            raise ApiError(422, "invalid", text)
        await runs.check_own_run(self._parts, caller, variables["run_id"])
        return self._run_changes(caller.tenant, variables["run_id"])

    async def _run_changes(self, tenant: str, run_id: str) -> AsyncGenerator[None, None]:
        records = require(self._parts.runs, "runs").records(tenant, run_id, follow=True)
        async with aclosing(records):
            async for record in records:
                if isinstance(record.event, RunStarted | TurnStarted | CallFinished | RunFinished):
                    yield

    async def _call(self, route: HTTPRouteHandler, caller: Caller, **arguments: object) -> Any:
        return await cast("Any", route.fn)(self._parts, caller, **arguments)

    async def _sessions(self, caller: Caller, before: str, limit: int) -> sessions.SessionPage:
        if before and re.fullmatch(_VARIABLE, before) is None:
            raise ApiError(422, "invalid", "The cursor is not one of this server.")
        page: sessions.SessionPage = await self._call(
            sessions.list_sessions, caller, before=before, limit=limit
        )
        return page

    async def _edges(self, caller: Caller) -> Sequence[str]:
        if not caller.may(_kind(ResourceUri.EDGE).scope) or self._parts.orchestrator is None:
            return ()
        listed: fleet.EdgeList = await self._call(fleet.list_edges, caller, limit=MAX_COMPLETED)
        return [edge.agent_id for edge in listed.items]

    async def _messages(self, caller: Caller, session_id: str) -> sessions.MessagePage:
        session = await sessions.own_session(self._parts, caller, session_id)
        start = max(0, session.messages - MAX_MESSAGES)
        page: sessions.MessagePage = await self._call(
            sessions.read_messages, caller, session_id=session_id, start=start, limit=MAX_MESSAGES
        )
        return page

    async def _records(self, caller: Caller, run_id: str) -> str:
        await runs.check_own_run(self._parts, caller, run_id)
        lines, size = list[bytes](), 0
        records = runs.renumbered_records(self._parts, caller.tenant, run_id)
        async with aclosing(records):
            async for record in records:
                line = record_json(record)
                size += len(line) + 1
                if size > MAX_RESOURCE_BYTES:
                    raise _too_large(f"GET /v1/runs/{run_id}/records")
                lines.append(line)
        return b"\n".join(lines).decode()

    async def _artifact(self, caller: Caller, edge: str, handle: str) -> bytes:
        orchestrator = require(self._parts.orchestrator, "edges")
        if caller.tenant != self._parts.operator_tenant:
            raise not_found("edge")
        try:
            return await fetch_bytes(
                orchestrator.edge(edge),
                handle,
                orchestrator.requests.max_payload,
                max_bytes=MAX_RESOURCE_BYTES,
            )
        except FetchFailed as problem:
            raise ApiError(404, "not_found", f"The artifact cannot be read: {problem}.") from None


def _require_caller(request: McpRequest) -> Caller:
    if (caller := request.caller) is None:
        raise ApiError(401, "unauthorized", "This needs a token. See `evoclaw token`.")
    return caller


def _kind(template: ResourceUri) -> _Kind:
    return next(kind for kind in _KINDS if kind.template == template)


def _parse(uri: str) -> tuple[_Kind, dict[str, str]]:
    for kind in _KINDS:
        if (match := kind.pattern.fullmatch(uri)) is not None:
            return kind, match.groupdict()
    text = f"There is no resource {one_line(uri)!r}. List the resources and templates to find it."
    raise ApiError(404, "not_found", text)


def _resource(
    kind: _Kind, uri: str, name: str, description: str, title: str = ""
) -> types.Resource:
    return types.Resource(
        uri=uri,
        name=name,
        title=title or None,
        description=description,
        mime_type=kind.media_type,
    )


def _text(uri: str, value: object) -> types.TextResourceContents:
    encoded = msgspec.json.encode(value)
    if len(encoded) > MAX_RESOURCE_BYTES:
        raise _too_large("the HTTP API")
    return types.TextResourceContents(uri=uri, mime_type=JSON_TYPE, text=encoded.decode())


def _bytes(uri: str, data: bytes) -> Contents:
    try:
        return types.TextResourceContents(uri=uri, mime_type="text/plain", text=data.decode())
    except UnicodeDecodeError:
        return types.BlobResourceContents(
            uri=uri, mime_type="application/octet-stream", blob=b64encode(data).decode()
        )


def _too_large(instead: str) -> ApiError:
    text = f"The resource is larger than {MAX_RESOURCE_BYTES:,} bytes. Read it with {instead}."
    return ApiError(413, "too_large", text)
