"""Sessions: conversations with agents, and what was said in them."""

from __future__ import annotations

from typing import Annotated

from litestar import Response, delete, get, patch, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct

from evoclaw.api.auth import Need, Who
from evoclaw.api.errors import Refused, given, not_found
from evoclaw.api.needs import Parts
from evoclaw.api.routes.runs import BEGUN_BEFORE, LOCATION, begin, is_own
from evoclaw.api.routes.shapes import PLAIN, Cursor, Id, IdOrNone, Key, Line, Most, Name, Text
from evoclaw.core.messages import Message
from evoclaw.orchestrator.errands import Errand, RunView
from evoclaw.orchestrator.people.access import Caller, Scope
from evoclaw.orchestrator.sessions.sessions import Conversations, Session

TAGS = ["sessions"]


class SessionView(Struct, frozen=True, omit_defaults=True):
    """A conversation with an agent."""

    id: str
    agent: str
    owner: str
    title: str
    created_at: float
    parent: str = ""
    """The session that began it, if one did."""
    messages: int = 0
    """How many there are."""
    last_run: str = ""
    is_open: bool = False
    """Whether its last run goes on, or waits for somebody."""


class SessionPage(Struct, frozen=True):
    """Some sessions, the newest first."""

    items: tuple[SessionView, ...]
    next: str = ""
    """Given as `before`, it brings the next page; empty on the last one."""


class NewSession(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation to begin."""

    agent: Name
    title: Line = ""


class Renaming(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change about a session."""

    title: Line


class Branching(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a session is to be gone on with in another way."""

    at_message: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    """The number of the last message that is kept; all if left out."""
    title: Line = ""
    """Of the new session; that of the old one if empty."""


class NewMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said in a session."""

    message: Annotated[Text, Meta(min_length=1)]


class Said(Struct, frozen=True):
    """A message, and its place in the session."""

    number: int
    message: Message


class MessagePage(Struct, frozen=True):
    """Some messages, in order."""

    items: tuple[Said, ...]
    next: int | None = None
    """Given as `start`, it brings the next page; null on the last one."""


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
    )


def _talks(parts: Parts, caller: Caller) -> Conversations:
    return given(parts.talks, "sessions").of(caller.tenant)


async def own_session(parts: Parts, caller: Caller, session_id: str) -> SessionView:
    """A session that the caller may see; for any other it is as if there were none."""
    listed = await _talks(parts, caller).store.look(session_id)
    if listed is None or not is_own(caller, listed.session.owner):
        raise not_found("session")
    last = listed.last
    if last is None:
        return _view(listed.session, listed.messages)
    return _view(listed.session, listed.messages, last.id, last.is_open)


@get("/v1/sessions", scope=Scope.SESSIONS_READ, tags=TAGS)
async def list_sessions(
    parts: Need,
    caller: Who,
    agent: IdOrNone = "",
    owner: Annotated[
        str, QueryParameter(max_length=200, pattern=PLAIN, description="Whose; yours if empty.")
    ] = "",
    before: Cursor = "",
    limit: Most = 50,
) -> SessionPage:
    """Your sessions, the newest first; an admin may ask for those of another user."""
    whose = owner or caller.principal.user
    if not is_own(caller, whose):
        raise Refused(403, "forbidden", "only an admin sees what is another user's")
    store = _talks(parts, caller).store
    last = await store.session(before) if before else None
    if before and (last is None or last.owner != whose):
        raise not_found("page: its session is gone, begin anew")
    found = await store.sessions(whose, agent=agent, before=before, limit=limit + 1)
    views = [
        _view(one.session, one.messages)
        if one.last is None
        else _view(one.session, one.messages, one.last.id, one.last.is_open)
        for one in found
    ]
    page = views[:limit]
    return SessionPage(tuple(page), page[-1].id if len(views) > limit else "")


@post("/v1/sessions", scope=Scope.SESSIONS_WRITE, tags=TAGS)
async def open_session(parts: Need, caller: Who, data: JSONBody[NewSession]) -> SessionView:
    """Begin a conversation with an agent."""
    session = await _talks(parts, caller).open(
        data.agent, owner=caller.principal.user, title=data.title
    )
    return _view(session)


@get("/v1/sessions/{session_id:str}", scope=Scope.SESSIONS_READ, tags=TAGS)
async def show_session(parts: Need, caller: Who, session_id: Id) -> SessionView:
    """One session."""
    return await own_session(parts, caller, session_id)


@get("/v1/sessions/{session_id:str}/messages", scope=Scope.SESSIONS_READ, tags=TAGS)
async def read_messages(
    parts: Need,
    caller: Who,
    session_id: Id,
    start: Annotated[
        int, QueryParameter(ge=0, le=1 << 53, description="The first one's number.")
    ] = 0,
    limit: Most = 100,
) -> MessagePage:
    """What was said in a session, in order."""
    session = await own_session(parts, caller, session_id)
    found = await _talks(parts, caller).store.messages(session.id, start, limit + 1)
    page = [Said(number, message) for number, message in found]
    more = page[limit].number if len(page) > limit else None
    return MessagePage(tuple(page[:limit]), more)


@patch("/v1/sessions/{session_id:str}", scope=Scope.SESSIONS_WRITE, tags=TAGS)
async def rename_session(
    parts: Need, caller: Who, session_id: Id, data: JSONBody[Renaming]
) -> SessionView:
    """Give a session another title."""
    await own_session(parts, caller, session_id)
    await _talks(parts, caller).rename(session_id, data.title)
    return await own_session(parts, caller, session_id)


@post("/v1/sessions/{session_id:str}/branch", scope=Scope.SESSIONS_WRITE, tags=TAGS)
async def branch_session(
    parts: Need, caller: Who, session_id: Id, data: JSONBody[Branching]
) -> SessionView:
    """Begin another session with what was said in this one, up to a message."""
    session = await own_session(parts, caller, session_id)
    talks = _talks(parts, caller)
    last = session.messages - 1 if data.at_message is None else data.at_message
    made = await talks.branch(session_id, last)
    if data.title:
        await talks.rename(made.id, data.title)
    return await own_session(parts, caller, made.id)


@post(
    "/v1/sessions/{session_id:str}/messages",
    scope=Scope.RUNS_WRITE,
    tags=TAGS,
    status_code=201,
    responses=BEGUN_BEFORE,
    response_headers=LOCATION,
)
async def say(
    parts: Need, caller: Who, session_id: Id, data: JSONBody[NewMessage], key: Key = ""
) -> Response[RunView]:
    """Say something in a session: begins a run, which waits for the one before it."""
    session = await own_session(parts, caller, session_id)
    errand = Errand(message=data.message, session_id=session_id, agent=session.agent)
    return await begin(parts, caller, errand, key)


@delete("/v1/sessions/{session_id:str}", scope=Scope.SESSIONS_WRITE, tags=TAGS)
async def forget_session(parts: Need, caller: Who, session_id: Id) -> None:
    """Delete a session with everything that was said and done in it; the audit stays."""
    session = await own_session(parts, caller, session_id)
    gone = await _talks(parts, caller).forget(session_id)
    if parts.canvases is not None:
        for one in gone:
            await parts.canvases.clear(caller.tenant, one)
    if parts.memory is not None:
        memory = parts.memory(caller.tenant, session.owner)
        for one in gone:
            await memory.forget(one)


ROUTES: tuple[HTTPRouteHandler, ...] = (
    list_sessions,
    open_session,
    show_session,
    read_messages,
    rename_session,
    branch_session,
    say,
    forget_session,
)
