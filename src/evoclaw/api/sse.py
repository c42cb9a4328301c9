"""Server-sent event streams.

A route returns `event_stream(request, frames)`, where `frames` yields the results of `frame`. This
module adds heartbeats and stream limits, and ends a stream when the client disconnects or stops
reading, when its token becomes invalid, and on shutdown.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
from litestar import Request
from litestar.openapi.datastructures import ResponseSpec
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send
from msgspec import Struct

from evoclaw.api.auth import unauthorized
from evoclaw.api.errors import LOG, ApiError, internal_error, to_api_error
from evoclaw.api.event_sender import EventSender
from evoclaw.api.settings import ServerSettings
from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.people.access import AccessControl, Caller

EVENT_STREAM = "text/event-stream"
TOKEN_RECHECK_INTERVAL_S = 10.0
"""How often an open stream checks its token again: a revoked token ends the stream."""
_NO_BUFFERING_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Proxies must neither cache nor buffer a stream."""


TokenCheck = Callable[[], Awaitable[bool]]
"""Whether the token of the client is still valid."""


async def _always_valid() -> bool:
    return True


class StreamedEvent(Struct, frozen=True):
    """One event of a stream."""

    event: str
    """The event type."""
    data: str
    """The data as JSON."""
    id: str = ""
    """The value of `Last-Event-ID` to resume after this event, if the stream supports it."""


def event_stream_responses(description: str) -> dict[int, ResponseSpec]:
    """The OpenAPI response of a route that streams events."""
    response = ResponseSpec(
        StreamedEvent, media_type=EVENT_STREAM, generate_examples=False, description=description
    )
    return {200: response}


def frame(event: str, data: object, id_: int | str | None = None) -> bytes:
    """Encode one server-sent event.

    Args:
        event: The event type.
        data: A value that msgspec can encode; bytes are sent as they are, as encoded JSON.
        id_: The value of `Last-Event-ID` to resume after this event.
    """
    text = data if isinstance(data, bytes) else msgspec.json.encode(data)
    id_line = "" if id_ is None else f"id: {id_}\n"
    return b"%bevent: %b\ndata: %b\n\n" % (id_line.encode(), event.encode(), text)


class Watchers:
    """The open event streams: limits per process and per caller, and a signal on shutdown."""

    def __init__(self, settings: ServerSettings) -> None:
        self._max_streams, self._max_per_caller = settings.watchers, settings.watchers_per_caller
        self.heartbeat_s = settings.heartbeat_s
        self._open: Counter[str] = Counter()
        self.closing = asyncio.Event()
        """Set on shutdown."""

    @property
    def count(self) -> int:
        """The number of open streams."""
        return self._open.total()

    def check(self, caller: str) -> None:
        """Refuse another stream if there are too many."""
        if self.closing.is_set():
            raise ApiError(
                503, "draining", "This process is shutting down. Try again.", retry_after=1
            )
        if self.count >= self._max_streams or self._open[caller] >= self._max_per_caller:
            text = "Too many event streams are open. Close one, or read the records instead."
            raise ApiError(429, "too_many_watchers", text, retry_after=self.heartbeat_s)

    @contextmanager
    def watching(self, caller: str) -> Generator[None]:
        """Count a stream while the block runs; `ApiError` 429 if there are too many."""
        self.check(caller)
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]


class EventStream(ASGIResponse):
    """A response that streams server-sent events."""

    _should_set_content_length = False

    def __init__(
        self, frames: AsyncGenerator[bytes, None], watchers: Watchers, caller: str
    ) -> None:
        super().__init__(headers=dict(_NO_BUFFERING_HEADERS), media_type=EVENT_STREAM)
        self._frames, self._watchers, self._caller = frames, watchers, caller
        self.is_token_valid: TokenCheck = _always_valid

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond, unless concurrent requests have reached the limit of streams meanwhile."""
        with self._watchers.watching(self._caller):
            await super().__call__(scope, receive, send)

    async def send_body(self, send: Send, receive: Receive) -> None:
        """Send until the frames end, the client leaves or stops reading, or the process stops."""
        sender = EventSender(send, self._watchers.heartbeat_s)
        sending = asyncio.create_task(_send_frames(self._frames, sender))
        disconnected = asyncio.create_task(_wait_for_disconnect(receive))
        closing = asyncio.create_task(self._watchers.closing.wait())
        revoked = asyncio.create_task(_wait_for_revocation(self.is_token_valid))
        tasks = (sending, disconnected, closing, revoked)
        try:
            await asyncio.wait((*tasks, sender.failed), return_when=asyncio.FIRST_COMPLETED)
            last = _final_frame(sending, closing, revoked)
            await _stop(sending)
            if last:
                sender.put(last)
            if not disconnected.done():
                await sender.finish()
        finally:
            await _stop(*tasks)
            await sender.close()
            await self._frames.aclose()


def _final_frame(
    sending: asyncio.Task[None], closing: asyncio.Task[Any], revoked: asyncio.Task[ApiError]
) -> bytes:
    """The last event of a stream that ends early: an error cannot change the status any more."""
    if revoked.done():
        return frame("error", revoked.result().body)
    problem = sending.exception() if sending.done() else None
    if isinstance(problem, EvoClawError):
        return frame("error", to_api_error(problem).body)
    if problem is not None:
        LOG.error("event stream failed", exc_info=problem)
        return frame("error", internal_error().body)
    if closing.done() and not sending.done():
        return frame("closing", {"message": "This process is shutting down. Connect again."})
    return b""


async def _stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_frames(frames: AsyncGenerator[bytes, None], sender: EventSender) -> None:
    async for piece in frames:
        sender.put(piece)
        if sender.is_full:
            await sender.wait_for_space()


async def _wait_for_revocation(is_token_valid: TokenCheck) -> ApiError:
    """Wait until the token is revoked, has expired, or has other scopes."""
    while True:
        await asyncio.sleep(TOKEN_RECHECK_INTERVAL_S)
        try:
            if not await is_token_valid():
                return unauthorized()
        except EvoClawError as error:
            LOG.warning("event stream closed: its token could not be checked: %s", error)
            return to_api_error(error)  # fails closed


def watchers_of(request: Request[Any, Any, Any]) -> Watchers:
    """The open event streams of this process."""
    return cast("Watchers", request.app.state["watchers"])


def event_stream(
    request: Request[Any, Any, Any], frames: AsyncGenerator[bytes, None]
) -> EventStream:
    """The response of a route that streams events; `ApiError` 429 if too many are open.

    Args:
        request: The current request.
        frames: The events, each encoded by `frame`; closed when the stream ends.
    """
    watchers = watchers_of(request)
    caller = cast("Caller | None", request.scope["auth"])
    name = "" if caller is None else f"{caller.tenant}/{caller.token}"
    watchers.check(name)
    stream = EventStream(frames, watchers, name)
    if caller is not None:
        stream.is_token_valid = _token_check(request, caller)
    return stream


def _token_check(request: Request[Any, Any, Any], caller: Caller) -> TokenCheck:
    access = cast("AccessControl", request.app.state["access"])
    _, _, bearer = request.headers.get("authorization", "").partition(" ")

    async def is_good() -> bool:
        return await access.authenticate(bearer.strip()) == caller

    return is_good
