"""Routes of sessions: conversations with agents and their messages.

The route of a session's canvas.
"""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import Response, delete, get, patch, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError, not_found, require
from evoclaw.api.routes.images import AttachedImage, image_blocks
from evoclaw.api.routes.parameters import (
    NO_NUL_PATTERN,
    AgentFilter,
    Cursor,
    EdgeChoice,
    IdempotencyKey,
    OptionalId,
    PageLimit,
    SessionId,
    ShortText,
    Text,
)
from evoclaw.api.routes.runs import LOCATION_HEADER, SAME_KEY_RESPONSES, is_own, start_requested
from evoclaw.core.images import MAX_ATTACHED_IMAGES
from evoclaw.core.messages import Message
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.orchestrator.runs.compaction import CompactedSession, compact_session
from evoclaw.orchestrator.runs.requests import RunRequest, RunView
from evoclaw.orchestrator.sessions.conversations import Conversations, Session

TAGS = ["sessions"]


class SessionView(Struct, frozen=True, omit_defaults=True):
    """A conversation with an agent."""

    id: str
    """The id of the session."""
    agent: str
    """The name of its agent."""
    owner: str
    """The user who owns it."""
    title: str
    """Its title."""
    created_at: float
    """When it was created, in Unix seconds."""
    parent: str = ""
    """The session that started this one, if any."""
    messages: int = 0
    """The number of messages."""
    last_run: str = ""
    """The id of its last run; empty: none."""
    is_open: bool = False
    """Whether its last run has not ended."""
    on: str = ""
    """The edge that it works on, `any` or `*`, as it was chosen; empty: the default edge."""


class SessionPage(Struct, frozen=True):
    """A page of sessions, the newest first."""

    items: tuple[SessionView, ...]
    """The sessions."""
    next: str = ""
    """The value of `before` for the next page; empty on the last page."""


class NewSession(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session to create."""

    agent: OptionalId
    """The name of the agent; empty: the default agent."""
    title: ShortText = ""
    """The title; empty: the first message."""
    on: EdgeChoice = ""
    """The edge that it works on, `any` or `*`; empty: the default edge."""


class ChangeSessionRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change in a session; omitted fields do not change."""

    title: ShortText | None = None
    """The new title."""
    on: EdgeChoice | None = None
    """The edge that its next runs work on, `any` or `*`; empty: the default edge."""


class BranchSessionRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to branch a session."""

    at_message: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    """The number of the last message to copy; default: all."""
    title: ShortText = ""
    """The title of the new session; empty: that of the old one."""


class NewMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to send in a session."""

    message: Annotated[Text, Meta(min_length=1)]
    """The text of the message."""
    images: Annotated[tuple[AttachedImage, ...], Meta(max_length=MAX_ATTACHED_IMAGES)] = ()
    """Images that belong to the message."""


class NumberedMessage(Struct, frozen=True):
    """A message and its number in the session."""

    number: int
    """Its number in the session, from 0."""
    message: Message
    """The message."""


class MessagePage(Struct, frozen=True):
    """A page of messages, in order."""

    items: tuple[NumberedMessage, ...]
    """The messages."""
    next: int | None = None
    """The value of `start` for the next page; null on the last page."""


def _view(
    session: Session, messages: int = 0, last_run: str = "", is_open: bool = False
) -> SessionView:
    return SessionView(
        session.id,
        session.agent,
        session.owner,
        session.title,
        session.created_at,
        session.parent,
        messages,
        last_run,
        is_open,
        session.on,
    )


def _conversations(parts: ApiDependencies, caller: Caller) -> Conversations:
    return require(parts.conversations, "sessions").of(caller.tenant)


async def own_session(parts: ApiDependencies, caller: Caller, session_id: str) -> SessionView:
    """A session that the caller may see; `ApiError` 404 for any other."""
    listed = await _conversations(parts, caller).store.summary(session_id)
    if listed is None or not is_own(caller, listed.session.owner):
        raise not_found("session")
    last = listed.last
    if last is None:
        return _view(listed.session, listed.messages)
    return _view(listed.session, listed.messages, last.id, last.is_open)


@get("/v1/sessions", scope=TokenScope.SESSIONS_READ, tags=TAGS)
async def list_sessions(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    agent: AgentFilter = "",
    owner: Annotated[
        str,
        QueryParameter(
            max_length=200, pattern=NO_NUL_PATTERN, description="The owner; empty: you."
        ),
    ] = "",
    before: Cursor = "",
    limit: PageLimit = 50,
) -> SessionPage:
    """List your sessions, the newest first; an admin may list those of another user."""
    user = owner or caller.principal.user
    if not is_own(caller, user):
        raise ApiError(403, "forbidden", "Only an admin may list the sessions of another user.")
    store = _conversations(parts, caller).store
    last = await store.session(before) if before else None
    if before and (last is None or last.owner != user):
        text = "The session of this page was deleted. Start again with the first page."
        raise ApiError(404, "not_found", text)
    found = await store.sessions(user, agent=agent, before=before, limit=limit + 1)
    views = [
        _view(listed.session, listed.messages)
        if listed.last is None
        else _view(listed.session, listed.messages, listed.last.id, listed.last.is_open)
        for listed in found
    ]
    page = views[:limit]
    return SessionPage(tuple(page), page[-1].id if len(views) > limit else "")


@post("/v1/sessions", scope=TokenScope.SESSIONS_WRITE, tags=TAGS)
async def create_session(
    parts: InjectedDependencies, caller: InjectedCaller, data: JSONBody[NewSession]
) -> SessionView:
    """Create a session with an agent."""
    session = await _conversations(parts, caller).open(
        data.agent, owner=caller.principal.user, title=data.title, on=data.on
    )
    return _view(session)


@get("/v1/sessions/{session_id:str}", scope=TokenScope.SESSIONS_READ, tags=TAGS)
async def show_session(
    parts: InjectedDependencies, caller: InjectedCaller, session_id: SessionId
) -> SessionView:
    """Show one session."""
    return await own_session(parts, caller, session_id)


@get("/v1/sessions/{session_id:str}/messages", scope=TokenScope.SESSIONS_READ, tags=TAGS)
async def read_messages(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    session_id: SessionId,
    start: Annotated[
        int, QueryParameter(ge=0, le=1 << 53, description="The number of the first message.")
    ] = 0,
    limit: PageLimit = 100,
) -> MessagePage:
    """List the messages of a session, in order."""
    session = await own_session(parts, caller, session_id)
    found = await _conversations(parts, caller).store.messages(session.id, start, limit + 1)
    page = [NumberedMessage(number, message) for number, message in found]
    more = page[limit].number if len(page) > limit else None
    return MessagePage(tuple(page[:limit]), more)


@patch("/v1/sessions/{session_id:str}", scope=TokenScope.SESSIONS_WRITE, tags=TAGS)
async def change_session(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    session_id: SessionId,
    data: JSONBody[ChangeSessionRequest],
) -> SessionView:
    """Rename a session, or have its next runs work on another edge."""
    await own_session(parts, caller, session_id)
    conversations = _conversations(parts, caller)
    if data.on is not None:
        await conversations.move(session_id, data.on)
    if data.title is not None:
        await conversations.rename(session_id, data.title)
    return await own_session(parts, caller, session_id)


@post("/v1/sessions/{session_id:str}/branch", scope=TokenScope.SESSIONS_WRITE, tags=TAGS)
async def branch_session(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    session_id: SessionId,
    data: JSONBody[BranchSessionRequest],
) -> SessionView:
    """Create a new session with the messages of this one, up to a given message."""
    session = await own_session(parts, caller, session_id)
    conversations = _conversations(parts, caller)
    last = session.messages - 1 if data.at_message is None else data.at_message
    created = await conversations.branch(session_id, last)
    if data.title:
        await conversations.rename(created.id, data.title)
    return await own_session(parts, caller, created.id)


class CompactSessionRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to summarise a session."""

    model: Annotated[str, Meta(max_length=200)] = ""
    """The model that writes the summary; empty: the agent's."""


@post("/v1/sessions/{session_id:str}/compact", scope=TokenScope.RUNS_WRITE, tags=TAGS)
async def compact(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    session_id: SessionId,
    data: JSONBody[CompactSessionRequest],
) -> CompactedSession:
    """Create a session that continues this one, with its older turns as a summary."""
    await own_session(parts, caller, session_id)
    runs = require(parts.runs, "runs")
    conversations = _conversations(parts, caller)
    return await compact_session(runs, conversations, caller.principal, session_id, data.model)


@post(
    "/v1/sessions/{session_id:str}/messages",
    scope=TokenScope.RUNS_WRITE,
    tags=TAGS,
    status_code=201,
    responses=SAME_KEY_RESPONSES,
    response_headers=LOCATION_HEADER,
)
async def send_message(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    session_id: SessionId,
    data: JSONBody[NewMessage],
    key: IdempotencyKey = "",
) -> Response[RunView]:
    """Send a message in a session: starts a run, after the session's earlier runs have ended."""
    session = await own_session(parts, caller, session_id)
    run_request = RunRequest(
        message=data.message,
        session_id=session_id,
        agent=session.agent,
        images=image_blocks(data.images),
    )
    return await start_requested(parts, caller, run_request, key)


@delete("/v1/sessions/{session_id:str}", scope=TokenScope.SESSIONS_WRITE, tags=TAGS)
async def delete_session(
    parts: InjectedDependencies, caller: InjectedCaller, session_id: SessionId
) -> None:
    """Delete a session with its messages, runs, ratings, canvas and notes; the audit log stays."""
    session = await own_session(parts, caller, session_id)
    deleted = await _conversations(parts, caller).delete(session_id)
    if parts.canvases is not None:
        for deleted_id in deleted:
            await parts.canvases.of(caller.tenant, deleted_id).clear()
    if parts.ratings is not None:
        for deleted_id in deleted:
            await parts.ratings.forget(caller.tenant, deleted_id)
    if parts.memory is not None:
        memory = parts.memory.of(caller.tenant, session.owner)
        for deleted_id in deleted:
            await memory.forget(deleted_id)


ROUTES: tuple[HTTPRouteHandler, ...] = (
    list_sessions,
    create_session,
    show_session,
    read_messages,
    change_session,
    branch_session,
    compact,
    send_message,
    delete_session,
)


class CanvasView(Struct, frozen=True):
    """The canvas of a session."""

    title: str
    """The heading; may be empty."""
    format: Literal["html", "markdown"]
    """`html` or `markdown`."""
    content: str
    """Written by a model: show it in a sandboxed frame."""
    at: float
    """When it was written; Unix seconds."""


@get("/v1/sessions/{session_id:str}/canvas", scope=TokenScope.SESSIONS_READ, tags=["sessions"])
async def show_canvas(
    parts: InjectedDependencies, caller: InjectedCaller, session_id: SessionId
) -> CanvasView:
    """Show the canvas of a session. A model wrote it: render it in a sandboxed frame."""
    session = await own_session(parts, caller, session_id)
    canvas = require(parts.canvases, "canvases").of(caller.tenant, session.id)
    sheet, at = await canvas.current(), await canvas.changed_at()
    if sheet is None:
        raise not_found("canvas in this session")
    is_html = sheet.format == "html"
    return CanvasView(sheet.title, "html" if is_html else "markdown", sheet.content, at)


CANVAS_ROUTES: tuple[HTTPRouteHandler, ...] = (show_canvas,)
