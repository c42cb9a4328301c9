"""Routes of OpenAI's Responses API: a response is a run, a chain of responses a session."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, QueryParameter
from litestar.response.base import ASGIResponse
from msgspec import Meta, Struct
from msgspec.structs import replace

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.openai.answers import ChatAnswer, ChatAnswerReader
from evoclaw.api.openai.chat_runs import (
    DETACHED_HEADER,
    AnyRequest,
    ChatContext,
    StartedRun,
    chat_context,
    start_or_resume,
    unless_disconnected,
)
from evoclaw.api.openai.errors import BadRequest, to_openai_error
from evoclaw.api.openai.requests import ParsedChatRequest, parse_chat_request
from evoclaw.api.openai.response_chains import (
    ECHO_KEY,
    Continuation,
    StoredResponse,
    continued,
    find_response,
)
from evoclaw.api.openai.response_events import ResponseEvent, ResponseWriter
from evoclaw.api.openai.response_objects import ResponseHeader, ResponseId, input_items
from evoclaw.api.openai.response_requests import (
    ConvertedRequest,
    ResponseRequest,
    convert_request,
    custom_tool_names,
)
from evoclaw.api.openai.routes import ERROR_HANDLERS, IGNORED_HEADER, JSON_TYPE, RUN_HEADER
from evoclaw.api.openai.schemas import OpenAIErrorBody
from evoclaw.api.routes.parameters import IdempotencyKey, path_id
from evoclaw.api.sse import event_stream, frame
from evoclaw.core.messages import JSON, TextBlock, UserMessage
from evoclaw.orchestrator.people.access import TokenScope
from evoclaw.orchestrator.runs.requests import RunStatus

ResponseName = Annotated[str, path_id("The id of the response.")]


class ResponseObject(Struct, frozen=True):
    """A response."""

    id: str
    """The id of the response."""
    status: str
    """`queued`, `in_progress`, `completed`, `incomplete`, `cancelled` or `failed`."""
    output: list[dict[str, JSON]]
    """The output items: messages, reasoning, and calls."""
    object: str = "response"
    """Always `response`."""


class InputItemList(Struct, frozen=True):
    """A page of the input items of a response."""

    data: list[dict[str, JSON]]
    """Messages, function calls and their outputs."""
    first_id: str
    """The id of the first item of the page."""
    last_id: str
    """The id of the last item of the page."""
    has_more: bool
    """Whether another page follows."""
    object: str = "list"
    """Always `list`."""


class DeletedResponse(Struct, frozen=True):
    """A response that was deleted."""

    id: str
    """The id of the response."""
    object: str = "response"
    """Always `response`."""
    deleted: bool = True
    """Always true."""


_RESPONSE = ResponseSpec(
    ResponseObject,
    generate_examples=False,
    description="A response, or an event stream for `stream: true`.",
)
_RESPONSES = {
    200: _RESPONSE,
    502: ResponseSpec(
        OpenAIErrorBody, generate_examples=False, description="The model's provider failed."
    ),
}


@post(
    "/v1/responses",
    scope=TokenScope.AGENTS_INVOKE,
    status_code=200,
    request_max_body_size=None,  # the request gate limits it
    exception_handlers=ERROR_HANDLERS,
    tags=["openai"],
    responses=_RESPONSES,
)
async def create_response(
    request: AnyRequest,
    parts: InjectedDependencies,
    caller: InjectedCaller,
    data: JSONBody[ResponseRequest],
    key: IdempotencyKey = "",
) -> ASGIResponse:
    """Create a response, at once, as a stream, or in the background; `model` names the agent."""
    context = chat_context(parts, caller)
    converted = convert_request(data)
    try:
        parsed, started = await _start(context, data, converted, key)
    except BadRequest as error:
        raise converted.located(error) from None
    is_detached = bool(data.background) or request.headers.get(DETACHED_HEADER, "0") != "0"
    writer = _new_writer(parsed, started, converted.echo)
    responder = _Responder(context, parsed, started, writer, is_detached)
    headers = {RUN_HEADER: started.view.run_id}
    if converted.ignored:
        headers[IGNORED_HEADER] = ", ".join(converted.ignored)
    if data.stream:
        stream = event_stream(request, responder.stream())
        for name, value in headers.items():
            stream.headers[name] = value
        return stream
    if data.background:
        queued = started.view.state is RunStatus.QUEUED
        return _json(200, writer.snapshot("queued" if queued else "in_progress"), headers)
    return await responder.respond(request, headers)


@get(
    "/v1/responses/{response_id:str}",
    scope=TokenScope.AGENTS_INVOKE,
    exception_handlers=ERROR_HANDLERS,
    tags=["openai"],
    responses={200: _RESPONSE},
)
async def show_response(
    request: AnyRequest,
    parts: InjectedDependencies,
    caller: InjectedCaller,
    response_id: ResponseName,
    stream: Annotated[bool, QueryParameter(description="Send its events, from the first.")] = False,
    starting_after: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        QueryParameter(
            description="With `stream`, after a lost connection: the `sequence_number` of the last "
            "event that came. The pieces of a text are not stored, so only the last event follows: "
            "it has the whole response."
        ),
    ] = None,
) -> ASGIResponse:
    """Show a stored response, finished or not; or stream it, and follow it to its end."""
    context = chat_context(parts, caller)
    if not stream:
        return _json(200, await _stored_response(context, response_id), {})
    found = await find_response(context, response_id)
    return event_stream(request, _replayed(context, found, starting_after))


@get(
    "/v1/responses/{response_id:str}/input_items",
    scope=TokenScope.AGENTS_INVOKE,
    exception_handlers=ERROR_HANDLERS,
    tags=["openai"],
)
async def list_input_items(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    response_id: ResponseName,
    after: Annotated[str, QueryParameter(description="Start after the item with this id.")] = "",
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=100)], QueryParameter(description="The size of a page.")
    ] = 20,
    order: Annotated[
        Literal["asc", "desc"], QueryParameter(description="`desc`: the last item first.")
    ] = "desc",
) -> InputItemList:
    """List what the run of a response was started with."""
    found = await find_response(chat_context(parts, caller), response_id)
    request = found.request
    asked = UserMessage((TextBlock(request.message), *request.images))
    messages = request.messages or (asked,)
    items = input_items(str(found.id), messages)
    if order == "desc":
        items.reverse()
    first = next((n + 1 for n, item in enumerate(items) if item["id"] == after), 0)
    page = items[first : first + limit]
    ids = [str(item["id"]) for item in page] or [""]
    return InputItemList(page, ids[0], ids[-1], len(items) > first + limit)


@post(
    "/v1/responses/{response_id:str}/cancel",
    scope=TokenScope.AGENTS_INVOKE,
    status_code=200,
    exception_handlers=ERROR_HANDLERS,
    tags=["openai"],
    responses={200: _RESPONSE},
)
async def cancel_response(
    parts: InjectedDependencies, caller: InjectedCaller, response_id: ResponseName
) -> ASGIResponse:
    """Cancel the run of a response; one that has ended stays as it is."""
    context = chat_context(parts, caller)
    found = await find_response(context, response_id)
    if await context.runs.cancel(context.tenant, found.view.run_id):
        await context.runs.result(context.tenant, found.view.run_id)
    return _json(200, await _stored_response(context, response_id), {})


@delete(
    "/v1/responses/{response_id:str}",
    scope=TokenScope.AGENTS_INVOKE,
    status_code=200,
    exception_handlers=ERROR_HANDLERS,
    tags=["openai"],
)
async def delete_response(
    parts: InjectedDependencies, caller: InjectedCaller, response_id: ResponseName
) -> DeletedResponse:
    """Delete a response with its run; not one that other responses continue."""
    context = chat_context(parts, caller)
    view = (await find_response(context, response_id)).view
    runs = await context.runs.list(context.tenant, session_id=view.session_id, limit=2)
    if len(runs) > 1:
        raise BadRequest(
            "Other responses belong to the same conversation. Delete its session "
            f"{view.session_id} to delete them all.",
            code="response_in_use",
            status=409,
        )
    await context.conversations.delete(view.session_id)
    return DeletedResponse(response_id)


RESPONSE_ROUTES: tuple[HTTPRouteHandler, ...] = (
    create_response,
    show_response,
    list_input_items,
    cancel_response,
    delete_response,
)


async def _start(
    context: ChatContext, data: ResponseRequest, converted: ConvertedRequest, key: str
) -> tuple[ParsedChatRequest, StartedRun]:
    """Start the run of a response, or resume the one that waits for these outputs."""
    agent = context.agent(data.model)
    after = Continuation(converted.chat)
    if data.previous_response_id:
        after = await continued(context, data, converted)
    parsed = parse_chat_request(
        after.chat,
        converted.ignored,
        agent,
        taken=context.tool_names(agent),
        session_id=after.session_id,
    )
    run_request = replace(
        parsed.run_request,
        api_data={ECHO_KEY: converted.echo},
        messages=after.history or parsed.run_request.messages,
    )
    parsed = replace(parsed, run_request=run_request)
    return parsed, await start_or_resume(context, after.chat, parsed, key)


def _new_writer(
    parsed: ParsedChatRequest, started: StartedRun, echo: dict[str, JSON]
) -> ResponseWriter:
    turns = {position.turn for position in started.answered}
    response_id = ResponseId(started.view.run_id, max(turns, default=0))
    created_at, agent = int(started.view.began_at), parsed.run_request.agent
    return ResponseWriter(
        ResponseHeader(str(response_id), created_at, agent, echo),
        custom=custom_tool_names(echo["tools"]),
        holds_text_back=parsed.holds_text_back,
    )


@dataclass(frozen=True, slots=True)
class _Responder:
    """Makes one response; cancels its run if the client disconnects before the end."""

    context: ChatContext
    parsed: ParsedChatRequest
    started: StartedRun
    writer: ResponseWriter
    is_detached: bool

    async def respond(self, request: AnyRequest, headers: dict[str, str]) -> ASGIResponse:
        """The finished response."""
        answer = await unless_disconnected(request, self._finish())
        if answer.error is None:
            return _json(200, self.writer.final, headers)
        status, problem, more = to_openai_error(answer.error)
        return _json(status, OpenAIErrorBody(problem), headers | more)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The events of the response."""
        async with aclosing(self._events()) as events:
            async for event in events:
                if not isinstance(event, ChatAnswer):
                    yield frame(event["type"], event)

    async def _finish(self) -> ChatAnswer:
        answer: ChatAnswer | None = None
        async with aclosing(self._events()) as events:
            async for event in events:
                answer = event if isinstance(event, ChatAnswer) else answer
        assert answer is not None  # the last one is the answer
        return answer

    async def _events(self) -> AsyncGenerator[ResponseEvent | ChatAnswer, None]:
        """The events, then the answer."""
        for event in self.writer.opening():
            yield event
        started, first = self.started, None
        while True:
            reading = ChatAnswerReader(started.view.run_id, started.answered, started.options)
            async with aclosing(self._follow(reading)) as events:
                async for event in events:
                    yield event
            answer = reading.answer(self.parsed)
            if first is not None:
                answer = replace(answer, usage=first.usage.plus(answer.usage))
            if not answer.problem or first is not None:
                break
            first, started = answer, await self._ask_again(answer)
        for event in self.writer.finish(answer, reading):
            yield event
        yield answer

    async def _follow(self, reading: ChatAnswerReader) -> AsyncGenerator[ResponseEvent, None]:
        """The events of one run; cancels the run if its end is not read."""
        try:
            found = self.context.runs.records(self.context.tenant, reading.run_id, follow=True)
            async with aclosing(found) as records:
                async for record in records:
                    reading.read(record)
                    for event in self.writer.read(record, reading):
                        yield event
                    if reading.end is not None:
                        break
        finally:
            if reading.end is None and not self.is_detached:
                await self.context.runs.cancel(self.context.tenant, reading.run_id)

    async def _ask_again(self, first: ChatAnswer) -> StartedRun:
        retry = self.parsed.retry(first.problem, self.started.view.session_id)
        view, _ = await self.context.runs.start(self.context.caller.principal, retry)
        return StartedRun(view, retry.reply_options)


async def _stored_response(context: ChatContext, response_id: str) -> dict[str, JSON]:
    """A response from the stored records of its run."""
    found = await find_response(context, response_id)
    reading, writer = _readers(found)
    for record in await context.conversations.store.records(found.view.run_id):
        reading.read(record)
        for _ in writer.read(record, reading):
            pass
        if reading.end is not None:
            break
    if reading.end is None:
        is_queued = found.view.state is RunStatus.QUEUED
        return writer.snapshot("queued" if is_queued else "in_progress")
    for _ in writer.finish(reading.answer(), reading):
        pass
    return writer.final


async def _replayed(
    context: ChatContext, found: StoredResponse, after: int | None
) -> AsyncGenerator[bytes, None]:
    """The events of a stored response until its end; only the last one if `after` is given."""
    reading, writer = _readers(found)
    for event in writer.opening() if after is None else ():
        yield frame(event["type"], event)
    records = context.runs.records(context.tenant, found.view.run_id, follow=True)
    async with aclosing(records):
        async for record in records:
            reading.read(record)
            for event in writer.read(record, reading):
                if after is None:
                    yield frame(event["type"], event)
            if reading.end is not None:
                break
    *others, last = writer.finish(reading.answer(), reading)
    for event in others if after is None else ():
        yield frame(event["type"], event)
    if after is not None:
        last["sequence_number"] = max(last["sequence_number"], after + 1)
    yield frame(last["type"], last)


def _readers(found: StoredResponse) -> tuple[ChatAnswerReader, ResponseWriter]:
    """What reads the records of a stored response from the first."""
    view, echo = found.view, found.echo
    header = ResponseHeader(str(found.id), int(view.began_at), view.agent, echo)
    reading = ChatAnswerReader(
        view.run_id, options=found.request.reply_options, after_turn=found.id.after_turn
    )
    custom = custom_tool_names(echo["tools"])
    return reading, ResponseWriter(header, custom=custom, holds_text_back=False)


def _json(
    status: int, body: dict[str, JSON] | OpenAIErrorBody, headers: dict[str, str]
) -> ASGIResponse:
    return ASGIResponse(
        body=msgspec.json.encode(body), status_code=status, headers=headers, media_type=JSON_TYPE
    )
