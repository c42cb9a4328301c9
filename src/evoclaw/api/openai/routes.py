"""Routes of OpenAI's chat completions and models; each agent is a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

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
from evoclaw.api.openai.answers import ChatAnswer, ChatAnswerReader, answer_pieces
from evoclaw.api.openai.chat_runs import (
    DETACHED_HEADER,
    ChatContext,
    StartedRun,
    chat_context,
    check_session,
    start_or_resume,
    unless_disconnected,
)
from evoclaw.api.openai.errors import (
    handle_openai_error,
    handle_openai_http_exception,
    to_openai_error,
)
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
from evoclaw.api.routes.parameters import AgentName, IdempotencyKey
from evoclaw.api.sse import event_stream
from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.people.access import TokenScope

AnyRequest = Request[Any, Any, Any]
RUN_HEADER = "x-evoclaw-run"
"""The response header with the id of the run."""
SESSION_HEADER = "x-evoclaw-session"
"""The request header with the id of the session to continue."""
IGNORED_HEADER = "x-evoclaw-ignored"
"""The response header that lists the ignored parameters."""
JSON_TYPE = "application/json"
ERROR_HANDLERS: Any = {
    EvoClawError: handle_openai_error,
    HTTPException: handle_openai_http_exception,
}
"""Exception handlers that answer in OpenAI's format."""


@post(
    "/v1/chat/completions",
    scope=TokenScope.AGENTS_INVOKE,
    status_code=200,
    request_max_body_size=None,  # the request gate limits it
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
    context = chat_context(parts, caller)
    agent, ignored = context.agent(data.model), ignored_parameters(await request.body())
    session_id = request.headers.get(SESSION_HEADER, "")
    if session_id:
        await check_session(context, session_id, agent)
    parsed = parse_chat_request(
        data, ignored, agent, taken=context.tool_names(agent), session_id=session_id
    )
    started = await start_or_resume(context, data, parsed, key)
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
    return ModelList(
        tuple(Model(name) for name in chat_context(parts, caller).conversations.agents)
    )


@get(
    "/v1/models/{name:str}",
    scope=TokenScope.AGENTS_INVOKE,
    exception_handlers=ERROR_HANDLERS,
    tags=["openai"],
)
async def show_model(parts: InjectedDependencies, caller: InjectedCaller, name: AgentName) -> Model:
    """Show one agent as a model."""
    return Model(chat_context(parts, caller).agent(name).name)


ROUTES: tuple[HTTPRouteHandler, ...] = (
    create_chat_completion,
    list_models,
    show_model,
)


@dataclass(frozen=True, slots=True)
class _ChatResponder:
    """Sends the answer of a run; cancels the run if the client disconnects before its end."""

    context: ChatContext
    chat_request: ParsedChatRequest
    started: StartedRun
    is_detached: bool
    """Whether the run continues when the client disconnects."""

    async def respond(
        self, request: AnyRequest, head: CompletionHeader, headers: dict[str, str]
    ) -> ASGIResponse:
        """The complete answer as one response."""
        answer = await unless_disconnected(request, self._final_answer())
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
                if isinstance(piece, ChatAnswer) and piece.problem:
                    piece = await self._ask_again(piece)
                    if piece.error is None and piece.text:
                        yield piece.text
                yield piece

    async def _ask_again(self, first: ChatAnswer) -> ChatAnswer:
        """Ask the model once more for an answer that fits; adds up the usage of both runs."""
        retry = self.chat_request.retry(first.problem, self.started.view.session_id)
        view, _ = await self.context.runs.start(self.context.caller.principal, retry)
        answer = first
        async with aclosing(self._follow_run(StartedRun(view, retry.reply_options))) as found:
            async for piece in found:
                answer = piece if isinstance(piece, ChatAnswer) else answer
        return replace(answer, usage=first.usage.plus(answer.usage))

    async def _follow_run(self, started: StartedRun) -> AsyncGenerator[str | ChatAnswer, None]:
        """The answer of one run; cancels the run if its end is not read."""
        run_id = started.view.run_id
        reading = ChatAnswerReader(run_id, started.answered, started.options)
        try:
            records = self.context.runs.records(self.context.tenant, run_id, follow=True)
            answer = answer_pieces(records, reading, self.chat_request)
            async with aclosing(answer) as found:
                async for piece in found:
                    yield piece
        finally:
            if reading.end is None and not self.is_detached:
                await self.context.runs.cancel(self.context.tenant, run_id)


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
