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

from evoclaw.api.auth import unknown_caller
from evoclaw.api.errors import LOG, Refused, fault, refusal_of
from evoclaw.api.outlet import Outlet
from evoclaw.api.settings import ServerSettings
from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.people.access import Access, Caller

EVENT_STREAM = "text/event-stream"
GOOD_FOR = 10.0
"""How often an open stream checks its token again: a revoked token ends the stream."""
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Proxies must neither cache nor buffer a stream."""


Good = Callable[[], Awaitable[bool]]
"""Whether the token of the client is still valid."""


async def _always() -> bool:
    return True


class StreamedEvent(Struct, frozen=True):
    """One event of a stream."""

    event: str
    """The event type."""
    data: str
    """The data as JSON."""
    id: str = ""
    """The value of `Last-Event-ID` to resume after this event, if the stream supports it."""


def streams(description: str) -> dict[int, ResponseSpec]:
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
        self._most, self._each = settings.watchers, settings.watchers_per_caller
        self.beat = settings.heartbeat_s
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
            raise Refused(
                503, "draining", "This process is shutting down. Try again.", retry_after=1
            )
        if self.count >= self._most or self._open[caller] >= self._each:
            text = "Too many event streams are open. Close one, or read the records instead."
            raise Refused(429, "too_many_watchers", text, retry_after=self.beat)

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
        super().__init__(headers=dict(_HEADERS), media_type=EVENT_STREAM)
        self._frames, self._watchers, self._caller = frames, watchers, caller
        self.is_good: Good = _always

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond, unless concurrent requests have reached the limit of streams meanwhile."""
        with self._watchers.watching(self._caller):
            await super().__call__(scope, receive, send)

    async def send_body(self, send: Send, receive: Receive) -> None:
        """Send until the frames end, the client leaves or stops reading, or the process stops."""
        sender = Outlet(send, self._watchers.beat)
        sending = asyncio.create_task(_tell(self._frames, sender))
        disconnected = asyncio.create_task(_gone(receive))
        closing = asyncio.create_task(self._watchers.closing.wait())
        revoked = asyncio.create_task(_end(self.is_good))
        tasks = (sending, disconnected, closing, revoked)
        try:
            await asyncio.wait((*tasks, sender.given_up), return_when=asyncio.FIRST_COMPLETED)
            last = _last_words(sending, closing, revoked)
            await _stop(sending)
            if last:
                sender.put(last)
            if not disconnected.done():
                await sender.end()
        finally:
            await _stop(*tasks)
            await sender.close()
            await self._frames.aclose()


def _last_words(
    telling: asyncio.Task[None], closing: asyncio.Task[Any], ending: asyncio.Task[Refused]
) -> bytes:
    """The last event of a stream that ends early: an error cannot change the status any more."""
    if ending.done():
        return frame("error", ending.result().body)
    problem = telling.exception() if telling.done() else None
    if isinstance(problem, EvoClawError):
        return frame("error", refusal_of(problem).body)
    if problem is not None:
        LOG.error("event stream failed", exc_info=problem)
        return frame("error", fault().body)
    if closing.done() and not telling.done():
        return frame("closing", {"message": "This process is shutting down. Connect again."})
    return b""


async def _stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _tell(frames: AsyncGenerator[bytes, None], outlet: Outlet) -> None:
    async for piece in frames:
        outlet.put(piece)
        if outlet.is_full:
            await outlet.room()


async def _end(is_good: Good) -> Refused:
    """Wait until the token is revoked, has expired, or has other scopes."""
    while True:
        await asyncio.sleep(GOOD_FOR)
        try:
            if not await is_good():
                return unknown_caller()
        except EvoClawError as error:
            LOG.warning("event stream closed: its token could not be checked: %s", error)
            return refusal_of(error)  # fails closed


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
        stream.is_good = _looked_at(request, caller)
    return stream


def _looked_at(request: Request[Any, Any, Any], caller: Caller) -> Good:
    access = cast("Access", request.app.state["access"])
    _, _, bearer = request.headers.get("authorization", "").partition(" ")

    async def is_good() -> bool:
        return await access.caller(bearer.strip()) == caller

    return is_good
