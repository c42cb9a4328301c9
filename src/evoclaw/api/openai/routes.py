"""Routes of OpenAI's chat completions and models; each agent is a model."""

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
"""The response header with the id of the run."""
SESSION = "x-evoclaw-session"
"""The request header with the id of the session to continue."""
DETACHED = "x-evoclaw-detached"
"""The request header that keeps the run alive when the client disconnects."""
IGNORED = "x-evoclaw-ignored"
"""The response header that lists the ignored parameters."""
JSON_TYPE = "application/json"
ERRORS: Any = {EvoClawError: tell, HTTPException: tell_framework}
"""Exception handlers that answer in OpenAI's format."""


@dataclass(frozen=True, slots=True)
class _Desk:
    """The dependencies of one chat request."""

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
        """The names of the agent's own tools."""
        offered = self.parts.tools.offered() if self.parts.tools is not None else ()
        held = agent.capabilities
        return [tool.name for tool in offered if not missing_permissions(tool, held)]

    async def owns(self, session_id: str) -> bool:
        listed = await self.talks.store.look(session_id)
        return listed is not None and is_own(self.caller, listed.session.owner)


@dataclass(frozen=True, slots=True)
class _Begun:
    """The run that answers a request: a new one, or one that was resumed."""

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
            Completion,
            generate_examples=False,
            description="A completion, or an event stream for `stream: true`.",
        ),
        502: ResponseSpec(
            ErrorBody, generate_examples=False, description="The model's provider failed."
        ),
    },
)
async def chat(
    request: Asked, parts: Need, caller: Who, data: JSONBody[ChatRequest], key: Key = ""
) -> ASGIResponse:
    """Create a chat completion, at once or as a stream; `model` names the agent."""
    context = _desk(parts, caller)
    agent, ignored = context.agent(data.model), ignored_in(await request.body())
    session_id = request.headers.get(SESSION, "")
    if session_id:
        await _check_session(context, session_id, agent)
    parsed = to_asking(data, ignored, agent, taken=context.names(agent), session_id=session_id)
    started = await _begin(context, data, parsed, key)
    run_id = started.view.run_id
    headers = {RUN: run_id}
    if parsed.ignored:
        headers[IGNORED] = ", ".join(parsed.ignored)
    head = Head(f"chatcmpl-{run_id}", int(started.view.began_at), data.model, parsed.include_usage)
    is_detached = bool(session_id) or request.headers.get(DETACHED, "0") != "0"
    responder = _Telling(context, parsed, started, is_detached)
    if parsed.stream:
        stream = event_stream(request, responder.stream(head))
        for name, value in headers.items():
            stream.headers[name] = value
        return stream
    return await responder.whole(request, head, headers)


@get("/v1/models", scope=Scope.AGENTS_INVOKE, exception_handlers=ERRORS, tags=["openai"])
async def models(parts: Need, caller: Who) -> Models:
    """List the agents as models."""
    return Models(tuple(Model(name) for name in _desk(parts, caller).talks.agents))


@get("/v1/models/{name:str}", scope=Scope.AGENTS_INVOKE, exception_handlers=ERRORS, tags=["openai"])
async def model(parts: Need, caller: Who, name: Id) -> Model:
    """Show one agent as a model."""
    return Model(_desk(parts, caller).agent(name).name)


ROUTES: tuple[HTTPRouteHandler, ...] = (chat, models, model)


@dataclass(frozen=True, slots=True)
class _Telling:
    """Sends the answer of a run; cancels the run if the client disconnects before its end."""

    desk: _Desk
    asking: Asking
    begun: _Begun
    keeps: bool
    """Whether the run continues when the client disconnects."""

    async def whole(self, request: Asked, head: Head, headers: dict[str, str]) -> ASGIResponse:
        """The complete answer as one response."""
        answer = await _unless_gone(request, self._last())
        if answer.error is None:
            return _json(200, _completion(head, answer), headers)
        status, problem, more = problem_of(answer.error)
        return _json(status, ErrorBody(problem), headers | more)

    async def stream(self, head: Head) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        async with aclosing(frames(head, self._pieces())) as events:
            async for frame in events:
                yield frame

    async def _last(self) -> Answer:
        answer: Answer | None = None
        async with aclosing(self._pieces()) as found:
            async for piece in found:
                answer = piece if isinstance(piece, Answer) else answer
        assert answer is not None  # the last piece is the answer
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
        """Ask the model once more for an answer that fits; adds up the usage of both runs."""
        output_format, original = self.asking.format, self.asking.errand
        assert output_format is not None
        retry = Errand(
            message=output_format.again(first.misfit),
            session_id=self.begun.view.session_id,
            agent=original.agent,
            settings=original.settings,
        )
        view, _ = await self.desk.runs.start(self.desk.caller.principal, retry)
        answer = first
        async with aclosing(self._told(_Begun(view))) as found:
            async for piece in found:
                answer = piece if isinstance(piece, Answer) else answer
        return replace(answer, usage=first.usage.plus(answer.usage))

    async def _told(self, begun: _Begun) -> AsyncGenerator[str | Answer, None]:
        """The answer of one run; cancels the run if its end is not read."""
        run_id = begun.view.run_id
        reading = Reading(run_id, begun.after)
        try:
            records = self.desk.runs.whole(self.desk.tenant, run_id, follow=True)
            answer = pieces(records, reading, self.asking.format)
            async with aclosing(answer) as found:
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
            f"The session belongs to the agent {listed.session.agent!r}. Use it as the model.",
            "model",
        )


async def _begin(desk: _Desk, asked: ChatRequest, asking: Asking, key: str) -> _Begun:
    """Resume the run that waits for these results, or start a new one."""
    stateless = not asking.errand.session_id
    found = await _resume(desk, asked, asking) if stateless else None
    if found is not None:
        return found
    view, _ = await desk.runs.start(desk.caller.principal, asking.errand, key=key)
    if stateless and (calls := earlier_calls(asked.messages)):
        # The conversation continued without these results: the run would wait for ever.
        abandoned = await Callers(desk.talks.store.questions).left(calls, desk.owns)
        if abandoned:
            await desk.runs.cancel(desk.tenant, abandoned)
    return _Begun(view)


async def _resume(desk: _Desk, asked: ChatRequest, asking: Asking) -> _Begun | None:
    """Resume the run that waits for the results at the end of the conversation, if there is one."""
    results = trailing_results(asked.messages)
    if not results:
        return None
    if desk.runs.draining:
        raise Draining
    view = await _asked_by(desk, results)
    if view is None or not _is_same(view, asking):
        return None  # checked before the results are stored, which would resume the run
    try:
        parked = await Callers(desk.talks.store.questions).take(results, desk.owns)
    except (ResultsMissing, ResultsUnknown) as error:
        raise BadRequest(str(error), "messages", "tool_results") from None
    if parked is None:
        return None
    await desk.runs.wake(desk.tenant, parked.run_id)
    return _Begun(view, parked.places)


async def _asked_by(desk: _Desk, shown: Iterable[str]) -> RunView | None:
    """The run that made these calls."""
    for call_id in shown:
        place = place_of(desk.tenant, call_id)
        view = None if place is None else await desk.runs.look(desk.tenant, place.run_id)
        if view is not None:
            return view
    return None


def _is_same(view: RunView, asking: Asking) -> bool:
    """Whether a run can still take these results."""
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
    """Await something; cancel it if the client disconnects."""
    working, leaving = asyncio.ensure_future(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise BadRequest("The client disconnected.", status=499)
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait((working, leaving))


async def _gone(request: Asked) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
