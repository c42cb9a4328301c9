"""OpenAI's chat completions and models: the agents are the models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from litestar import Request, get, post
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody
from litestar.response.base import ASGIResponse
from msgspec import UNSET
from msgspec.structs import replace

from evoclaw.api.auth import Need, Who
from evoclaw.api.errors import given
from evoclaw.api.needs import Parts
from evoclaw.api.openai.answering import Answer, Reading, pieces
from evoclaw.api.openai.asking import Asking, ignored_in, to_asking
from evoclaw.api.openai.errors import BadRequest, problem_of, tell, tell_framework
from evoclaw.api.openai.messages import earlier_calls, trailing_results
from evoclaw.api.openai.shapes import (
    ChatRequest,
    Choice,
    Completion,
    ErrorBody,
    MessageOut,
    Model,
    Models,
)
from evoclaw.api.openai.streaming import Head, frames
from evoclaw.api.routes.runs import is_own
from evoclaw.api.routes.shapes import Id, Key
from evoclaw.api.sse import event_stream
from evoclaw.core.agent import Agent
from evoclaw.core.errors import AgentNotFound, EvoClawError
from evoclaw.core.events import StopReason
from evoclaw.core.tools import missing_permissions
from evoclaw.orchestrator.errands import Draining, Errand, RunView
from evoclaw.orchestrator.people.access import Caller, Scope
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.sessions.callers import (
    Callers,
    Place,
    ResultsMissing,
    ResultsUnknown,
    place_of,
)
from evoclaw.orchestrator.sessions.sessions import Conversations, NoSession

Asked = Request[Any, Any, Any]
T = TypeVar("T")
RUN = "x-evoclaw-run"
"""The header that names the run."""
SESSION = "x-evoclaw-session"
"""The header that names a session to go on with."""
DETACHED = "x-evoclaw-detached"
"""The header that lets a run go on when its caller has gone."""
IGNORED = "x-evoclaw-ignored"
"""The header that names what was sent and makes no difference."""
JSON_TYPE = "application/json"
ERRORS: Any = {EvoClawError: tell, HTTPException: tell_framework}
"""In OpenAI's shape."""


@dataclass(frozen=True, slots=True)
class _Desk:
    """What one request is answered with."""

    parts: Parts
    caller: Caller
    runs: Runs
    talks: Conversations

    @property
    def tenant(self) -> str:
        return self.caller.tenant

    def agent(self, name: str) -> Agent:
        found = self.talks.agents.get(name)
        if found is None:
            raise AgentNotFound(name, tuple(self.talks.agents))
        return found

    def names(self, agent: Agent) -> Sequence[str]:
        """The tools that the agent has of its own."""
        offered = self.parts.tools.offered() if self.parts.tools is not None else ()
        held = agent.capabilities
        return [tool.name for tool in offered if not missing_permissions(tool, held)]

    async def owns(self, session_id: str) -> bool:
        listed = await self.talks.store.look(session_id)
        return listed is not None and is_own(self.caller, listed.session.owner)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A run that answers a request."""

    view: RunView
    after: frozenset[Place] = frozenset()


def _desk(parts: Parts, caller: Caller) -> _Desk:
    talks = given(parts.talks, "agents").of(caller.tenant)
    return _Desk(parts, caller, given(parts.runs, "runs"), talks)


@post(
    "/v1/chat/completions",
    scope=Scope.AGENTS_INVOKE,
    status_code=200,
    exception_handlers=ERRORS,
    tags=["openai"],
    responses={
        200: ResponseSpec(
            Completion, generate_examples=False, description="Or a stream, if asked for."
        ),
        502: ResponseSpec(ErrorBody, generate_examples=False, description="The provider failed."),
    },
)
async def chat(
    request: Asked, parts: Need, caller: Who, data: JSONBody[ChatRequest], key: Key = ""
) -> ASGIResponse:
    """Ask an agent as OpenAI's clients do, whole or as a stream; `model` names the agent."""
    desk = _desk(parts, caller)
    agent, ignored = desk.agent(data.model), ignored_in(await request.body())
    session_id = request.headers.get(SESSION, "")
    if session_id:
        await _check_session(desk, session_id, agent)
    asking = to_asking(data, ignored, agent, taken=desk.names(agent), session_id=session_id)
    begun = await _begin(desk, data, asking, key)
    run_id = begun.view.run_id
    headers = {RUN: run_id}
    if asking.ignored:
        headers[IGNORED] = ", ".join(asking.ignored)
    head = Head(f"chatcmpl-{run_id}", int(begun.view.began_at), data.model, asking.include_usage)
    keeps = bool(session_id) or request.headers.get(DETACHED, "0") != "0"
    told = _Telling(desk, asking, begun, keeps)
    if asking.stream:
        stream = event_stream(request, told.stream(head))
        for name, value in headers.items():
            stream.headers[name] = value
        return stream
    return await told.whole(request, head, headers)


@get("/v1/models", scope=Scope.AGENTS_INVOKE, exception_handlers=ERRORS, tags=["openai"])
async def models(parts: Need, caller: Who) -> Models:
    """The agents, as OpenAI's clients list models."""
    return Models(tuple(Model(name) for name in _desk(parts, caller).talks.agents))


@get("/v1/models/{name:str}", scope=Scope.AGENTS_INVOKE, exception_handlers=ERRORS, tags=["openai"])
async def model(parts: Need, caller: Who, name: Id) -> Model:
    """One agent, as a model."""
    return Model(_desk(parts, caller).agent(name).name)


ROUTES: tuple[HTTPRouteHandler, ...] = (chat, models, model)


@dataclass(frozen=True, slots=True)
class _Telling:
    """Tells the caller of a run; when he has gone before it ended, it is cancelled."""

    desk: _Desk
    asking: Asking
    begun: _Begun
    keeps: bool
    """It goes on all the same."""

    async def whole(self, request: Asked, head: Head, headers: dict[str, str]) -> ASGIResponse:
        """The answer at once."""
        answer = await _unless_gone(request, self._last())
        if answer.error is None:
            return _json(200, _completion(head, answer), headers)
        status, problem, more = problem_of(answer.error)
        return _json(status, ErrorBody(problem), headers | more)

    async def stream(self, head: Head) -> AsyncGenerator[bytes, None]:
        """The answer in pieces."""
        async with aclosing(frames(head, self._pieces())) as told:
            async for frame in told:
                yield frame

    async def _last(self) -> Answer:
        answer: Answer | None = None
        async with aclosing(self._pieces()) as found:
            async for piece in found:
                answer = piece if isinstance(piece, Answer) else answer
        assert answer is not None  # the last piece is one
        return answer

    async def _pieces(self) -> AsyncGenerator[str | Answer, None]:
        async with aclosing(self._told(self.begun)) as found:
            async for piece in found:
                if isinstance(piece, Answer) and piece.misfit:
                    piece = await self._mended(piece)
                    if piece.error is None:
                        yield piece.text
                yield piece

    async def _mended(self, first: Answer) -> Answer:
        """Have the model say once more what did not fit; what that takes counts, too."""
        wanted, errand = self.asking.format, self.asking.errand
        assert wanted is not None
        again = Errand(
            message=wanted.again(first.misfit),
            session_id=self.begun.view.session_id,
            agent=errand.agent,
            settings=errand.settings,
        )
        view, _ = await self.desk.runs.start(self.desk.caller.principal, again)
        answer = first
        async with aclosing(self._told(_Begun(view))) as found:
            async for piece in found:
                answer = piece if isinstance(piece, Answer) else answer
        return replace(answer, usage=first.usage.plus(answer.usage))

    async def _told(self, begun: _Begun) -> AsyncGenerator[str | Answer, None]:
        """What becomes of one run; it is cancelled if nobody hears the end of it."""
        run_id = begun.view.run_id
        reading = Reading(run_id, begun.after)
        try:
            records = self.desk.runs.whole(self.desk.tenant, run_id, follow=True)
            told = pieces(records, reading, self.asking.format)
            async with aclosing(told) as found:
                async for piece in found:
                    yield piece
        finally:
            if reading.end is None and not self.keeps:
                await self.desk.runs.cancel(self.desk.tenant, run_id)


async def _check_session(desk: _Desk, session_id: str, agent: Agent) -> None:
    listed = await desk.talks.store.look(session_id)
    if listed is None or not is_own(desk.caller, listed.session.owner):
        raise NoSession(session_id)
    if listed.session.agent != agent.name:
        raise BadRequest(
            f"the session is one of the agent {listed.session.agent!r}: ask that model", "model"
        )


async def _begin(desk: _Desk, asked: ChatRequest, asking: Asking, key: str) -> _Begun:
    """Go on with the run that waits for these results, or begin one."""
    stateless = not asking.errand.session_id
    found = await _resume(desk, asked, asking) if stateless else None
    if found is not None:
        return found
    view, _ = await desk.runs.start(desk.caller.principal, asking.errand, key=key)
    if stateless and (calls := earlier_calls(asked.messages)):
        # The conversation went on without it: nobody will ever bring what it waits for.
        left = await Callers(desk.talks.store.questions).left(calls, desk.owns)
        if left:
            await desk.runs.cancel(desk.tenant, left)
    return _Begun(view)


async def _resume(desk: _Desk, asked: ChatRequest, asking: Asking) -> _Begun | None:
    """The run that waits for the results at the end of a conversation, gone on with."""
    results = trailing_results(asked.messages)
    if not results:
        return None
    if desk.runs.draining:
        raise Draining
    view = await _asked_by(desk, results)
    if view is None or not _is_same(view, asking):
        return None  # before anything is kept: it would go on with it
    try:
        parked = await Callers(desk.talks.store.questions).take(results, desk.owns)
    except (ResultsMissing, ResultsUnknown) as error:
        raise BadRequest(str(error), "messages", "tool_results") from None
    if parked is None:
        return None
    await desk.runs.wake(desk.tenant, parked.run_id)
    return _Begun(view, parked.places)


async def _asked_by(desk: _Desk, shown: Iterable[str]) -> RunView | None:
    """The run whose calls these are."""
    for one in shown:
        place = place_of(desk.tenant, one)
        view = None if place is None else await desk.runs.look(desk.tenant, place.run_id)
        if view is not None:
            return view
    return None


def _is_same(view: RunView, asking: Asking) -> bool:
    """Whether a run is still one that these results can go to."""
    return view.agent == asking.errand.agent and view.stop is not StopReason.CANCELLED


def _json(status: int, body: Completion | ErrorBody, headers: dict[str, str]) -> ASGIResponse:
    return ASGIResponse(
        body=msgspec.json.encode(body), status_code=status, headers=headers, media_type=JSON_TYPE
    )


def _completion(head: Head, answer: Answer) -> Completion:
    calls = answer.calls or UNSET
    content = answer.text if answer.text or not answer.calls else None
    message = MessageOut(content, tool_calls=calls)
    return Completion(
        head.id, head.created, head.model, (Choice(message, answer.finish),), answer.usage
    )


async def _unless_gone(request: Asked, work: Awaitable[T]) -> T:
    """Await something, but not for a client that has gone: then it is cancelled."""
    doing, leaving = asyncio.ensure_future(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise BadRequest("the client has gone", status=499)
        return doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.wait((doing, leaving))


async def _gone(request: Asked) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
