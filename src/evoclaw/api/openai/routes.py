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

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import require
from evoclaw.api.openai.answers import ChatAnswer, ChatAnswerReader, answer_pieces
from evoclaw.api.openai.errors import (
    BadRequest,
    handle_openai_error,
    handle_openai_http_exception,
    to_openai_error,
)
from evoclaw.api.openai.messages import earlier_calls, trailing_results
from evoclaw.api.openai.requests import ParsedChatRequest, ignored_parameters, parse_chat_request
from evoclaw.api.openai.schemas import (
    ChatRequest,
    Choice,
    Completion,
    MessageOut,
    Model,
    ModelList,
    OpenAIErrorBody,
)
from evoclaw.api.openai.streaming import CompletionHeader, frames
from evoclaw.api.routes.parameters import (
    AgentName,
    IdempotencyKey,
)
from evoclaw.api.routes.runs import is_own
from evoclaw.api.sse import event_stream
from evoclaw.core.agent import Agent
from evoclaw.core.errors import AgentNotFound, EvoClawError
from evoclaw.core.events import StopReason
from evoclaw.core.tools import missing_permissions
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.orchestrator.runs.requests import Draining, RunRequest, RunView
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.sessions.caller_tools import (
    CallerCallStore,
    CallPosition,
    ResultsMissing,
    ResultsUnknown,
    parse_call_id,
)
from evoclaw.orchestrator.sessions.conversations import Conversations, SessionNotFound

AnyRequest = Request[Any, Any, Any]
T = TypeVar("T")
RUN_HEADER = "x-evoclaw-run"
"""The response header with the id of the run."""
SESSION_HEADER = "x-evoclaw-session"
"""The request header with the id of the session to continue."""
DETACHED_HEADER = "x-evoclaw-detached"
"""The request header that keeps the run alive when the client disconnects."""
IGNORED_HEADER = "x-evoclaw-ignored"
"""The response header that lists the ignored parameters."""
JSON_TYPE = "application/json"
ERROR_HANDLERS: Any = {
    EvoClawError: handle_openai_error,
    HTTPException: handle_openai_http_exception,
}
"""Exception handlers that answer in OpenAI's format."""


@dataclass(frozen=True, slots=True)
class _ChatContext:
    """The dependencies of one chat request."""

    parts: ApiDependencies
    caller: Caller
    runs: Runs
    conversations: Conversations

    @property
    def tenant(self) -> str:
        return self.caller.tenant

    def agent(self, name: str) -> Agent:
        found = self.conversations.agents.get(name)
        if found is None:
            raise AgentNotFound(name, tuple(self.conversations.agents))
        return found

    def tool_names(self, agent: Agent) -> Sequence[str]:
        """The names of the agent's own tools."""
        offered = self.parts.tools() if self.parts.tools is not None else ()
        held = agent.capabilities
        return [tool.name for tool in offered if not missing_permissions(tool, held)]

    async def owns(self, session_id: str) -> bool:
        listed = await self.conversations.store.summary(session_id)
        return listed is not None and is_own(self.caller, listed.session.owner)


@dataclass(frozen=True, slots=True)
class _StartedRun:
    """The run that answers a request: a new one, or one that was resumed."""

    view: RunView
    answered: frozenset[CallPosition] = frozenset()


def _context(parts: ApiDependencies, caller: Caller) -> _ChatContext:
    talks = require(parts.conversations, "agents").of(caller.tenant)
    return _ChatContext(parts, caller, require(parts.runs, "runs"), talks)


@post(
    "/v1/chat/completions",
    scope=TokenScope.AGENTS_INVOKE,
    status_code=200,
    exception_handlers=ERROR_HANDLERS,
    tags=["openai"],
    responses={
        200: ResponseSpec(
            Completion,
            generate_examples=False,
            description="A completion, or an event stream for `stream: true`.",
        ),
        502: ResponseSpec(
            OpenAIErrorBody, generate_examples=False, description="The model's provider failed."
        ),
    },
)
async def create_chat_completion(
    request: AnyRequest,
    parts: InjectedDependencies,
    caller: InjectedCaller,
    data: JSONBody[ChatRequest],
    key: IdempotencyKey = "",
) -> ASGIResponse:
    """Create a chat completion, at once or as a stream; `model` names the agent."""
    context = _context(parts, caller)
    agent, ignored = context.agent(data.model), ignored_parameters(await request.body())
    session_id = request.headers.get(SESSION_HEADER, "")
    if session_id:
        await _check_session(context, session_id, agent)
    parsed = parse_chat_request(
        data, ignored, agent, taken=context.tool_names(agent), session_id=session_id
    )
    started = await _start_or_resume(context, data, parsed, key)
    run_id = started.view.run_id
    headers = {RUN_HEADER: run_id}
    if parsed.ignored:
        headers[IGNORED_HEADER] = ", ".join(parsed.ignored)
    head = CompletionHeader(
        f"chatcmpl-{run_id}", int(started.view.began_at), data.model, parsed.include_usage
    )
    is_detached = bool(session_id) or request.headers.get(DETACHED_HEADER, "0") != "0"
    responder = _ChatResponder(context, parsed, started, is_detached)
    if parsed.stream:
        stream = event_stream(request, responder.stream(head))
        for name, value in headers.items():
            stream.headers[name] = value
        return stream
    return await responder.respond(request, head, headers)


@get(
    "/v1/models", scope=TokenScope.AGENTS_INVOKE, exception_handlers=ERROR_HANDLERS, tags=["openai"]
)
async def list_models(parts: InjectedDependencies, caller: InjectedCaller) -> ModelList:
    """List the agents as models."""
    return ModelList(tuple(Model(name) for name in _context(parts, caller).conversations.agents))


@get(
    "/v1/models/{name:str}",
    scope=TokenScope.AGENTS_INVOKE,
    exception_handlers=ERROR_HANDLERS,
    tags=["openai"],
)
async def show_model(parts: InjectedDependencies, caller: InjectedCaller, name: AgentName) -> Model:
    """Show one agent as a model."""
    return Model(_context(parts, caller).agent(name).name)


ROUTES: tuple[HTTPRouteHandler, ...] = (create_chat_completion, list_models, show_model)


@dataclass(frozen=True, slots=True)
class _ChatResponder:
    """Sends the answer of a run; cancels the run if the client disconnects before its end."""

    context: _ChatContext
    chat_request: ParsedChatRequest
    started: _StartedRun
    is_detached: bool
    """Whether the run continues when the client disconnects."""

    async def respond(
        self, request: AnyRequest, head: CompletionHeader, headers: dict[str, str]
    ) -> ASGIResponse:
        """The complete answer as one response."""
        answer = await _unless_disconnected(request, self._final_answer())
        if answer.error is None:
            return _json(200, _completion(head, answer), headers)
        status, problem, more = to_openai_error(answer.error)
        return _json(status, OpenAIErrorBody(problem), headers | more)

    async def stream(self, head: CompletionHeader) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        async with aclosing(frames(head, self._pieces())) as events:
            async for frame in events:
                yield frame

    async def _final_answer(self) -> ChatAnswer:
        answer: ChatAnswer | None = None
        async with aclosing(self._pieces()) as found:
            async for piece in found:
                answer = piece if isinstance(piece, ChatAnswer) else answer
        assert answer is not None  # the last piece is the answer
        return answer

    async def _pieces(self) -> AsyncGenerator[str | ChatAnswer, None]:
        async with aclosing(self._follow_run(self.started)) as found:
            async for piece in found:
                if isinstance(piece, ChatAnswer) and piece.format_problem:
                    piece = await self._ask_again(piece)
                    if piece.error is None:
                        yield piece.text
                yield piece

    async def _ask_again(self, first: ChatAnswer) -> ChatAnswer:
        """Ask the model once more for an answer that fits; adds up the usage of both runs."""
        output_format, original = self.chat_request.format, self.chat_request.run_request
        assert output_format is not None
        retry = RunRequest(
            message=output_format.retry_instruction(first.format_problem),
            session_id=self.started.view.session_id,
            agent=original.agent,
            settings=original.settings,
        )
        view, _ = await self.context.runs.start(self.context.caller.principal, retry)
        answer = first
        async with aclosing(self._follow_run(_StartedRun(view))) as found:
            async for piece in found:
                answer = piece if isinstance(piece, ChatAnswer) else answer
        return replace(answer, usage=first.usage.plus(answer.usage))

    async def _follow_run(self, started: _StartedRun) -> AsyncGenerator[str | ChatAnswer, None]:
        """The answer of one run; cancels the run if its end is not read."""
        run_id = started.view.run_id
        reading = ChatAnswerReader(run_id, started.answered)
        try:
            records = self.context.runs.records(self.context.tenant, run_id, follow=True)
            answer = answer_pieces(records, reading, self.chat_request.format)
            async with aclosing(answer) as found:
                async for piece in found:
                    yield piece
        finally:
            if reading.end is None and not self.is_detached:
                await self.context.runs.cancel(self.context.tenant, run_id)


async def _check_session(context: _ChatContext, session_id: str, agent: Agent) -> None:
    listed = await context.conversations.store.summary(session_id)
    if listed is None or not is_own(context.caller, listed.session.owner):
        raise SessionNotFound(session_id)
    if listed.session.agent != agent.name:
        raise BadRequest(
            f"The session belongs to the agent {listed.session.agent!r}. Use it as the model.",
            "model",
        )


async def _start_or_resume(
    context: _ChatContext, body: ChatRequest, chat_request: ParsedChatRequest, key: str
) -> _StartedRun:
    """Resume the run that waits for these results, or start a new one."""
    stateless = not chat_request.run_request.session_id
    found = await _resume(context, body, chat_request) if stateless else None
    if found is not None:
        return found
    view, _ = await context.runs.start(context.caller.principal, chat_request.run_request, key=key)
    if stateless and (calls := earlier_calls(body.messages)):
        # The conversation continued without these results: the run would wait forever.
        abandoned = await CallerCallStore(context.conversations.store.questions).waiting_run(
            calls, context.owns
        )
        if abandoned:
            await context.runs.cancel(context.tenant, abandoned)
    return _StartedRun(view)


async def _resume(
    context: _ChatContext, body: ChatRequest, chat_request: ParsedChatRequest
) -> _StartedRun | None:
    """Resume the run that waits for the results at the end of the conversation, if there is one."""
    results = trailing_results(body.messages)
    if not results:
        return None
    if context.runs.draining:
        raise Draining
    view = await _find_run(context, results)
    if view is None or not _can_resume(view, chat_request):
        return None  # checked before the results are stored, which would resume the run
    try:
        parked = await CallerCallStore(context.conversations.store.questions).deliver(
            results, context.owns
        )
    except (ResultsMissing, ResultsUnknown) as error:
        raise BadRequest(str(error), "messages", "tool_results") from None
    if parked is None:
        return None
    await context.runs.resume(context.tenant, parked.run_id)
    return _StartedRun(view, parked.positions)


async def _find_run(context: _ChatContext, call_ids: Iterable[str]) -> RunView | None:
    """The run that made these calls."""
    for call_id in call_ids:
        place = parse_call_id(context.tenant, call_id)
        view = None if place is None else await context.runs.get(context.tenant, place.run_id)
        if view is not None:
            return view
    return None


def _can_resume(view: RunView, chat_request: ParsedChatRequest) -> bool:
    """Whether a run can still take these results."""
    return view.agent == chat_request.run_request.agent and view.stop is not StopReason.CANCELLED


def _json(status: int, body: Completion | OpenAIErrorBody, headers: dict[str, str]) -> ASGIResponse:
    return ASGIResponse(
        body=msgspec.json.encode(body), status_code=status, headers=headers, media_type=JSON_TYPE
    )


def _completion(head: CompletionHeader, answer: ChatAnswer) -> Completion:
    calls = answer.calls or UNSET
    content = answer.text if answer.text or not answer.calls else None
    message = MessageOut(content, tool_calls=calls)
    return Completion(
        head.id, head.created, head.model, (Choice(message, answer.finish),), answer.usage
    )


async def _unless_disconnected(request: AnyRequest, work: Awaitable[T]) -> T:
    """Await something; cancel it if the client disconnects."""
    working, leaving = (
        asyncio.ensure_future(work),
        asyncio.create_task(_wait_for_disconnect(request)),
    )
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise BadRequest("The client disconnected.", status=499)
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait((working, leaving))


async def _wait_for_disconnect(request: AnyRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
