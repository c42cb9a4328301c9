"""Event streams: what happens, as it happens, to whoever can keep up.

A route gives `event_stream(request, frames)`, where `frames` yields what `frame` makes. Signs of
life, the number of watchers, clients that go away or stop reading, and the end of the process are
seen to here.
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
"""Seconds after which a token is looked at again: whoever lost it is told nothing more."""
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""No proxy on the way may keep a stream, nor hold it back."""


Good = Callable[[], Awaitable[bool]]
"""Whether who watches still may."""


async def _always() -> bool:
    return True


class StreamedEvent(Struct, frozen=True):
    """One event of a stream, as its fields are read."""

    event: str
    """Its type."""
    data: str
    """JSON."""
    id: str = ""
    """What a client says as `Last-Event-ID` when it comes back, if it can."""


def streams(description: str) -> dict[int, ResponseSpec]:
    """What a route that streams events declares as its answer: the shape of each event."""
    answer = ResponseSpec(
        StreamedEvent, media_type=EVENT_STREAM, generate_examples=False, description=description
    )
    return {200: answer}


def frame(event: str, data: object, id_: int | str | None = None) -> bytes:
    """One event, as it goes over the wire.

    Args:
        event: Its type.
        data: Anything that msgspec makes JSON of; bytes are taken for JSON that is made already.
        id_: What a client says as `Last-Event-ID` when it comes back.
    """
    text = data if isinstance(data, bytes) else msgspec.json.encode(data)
    known = "" if id_ is None else f"id: {id_}\n"
    return b"%bevent: %b\ndata: %b\n\n" % (known.encode(), event.encode(), text)


class Watchers:
    """Who watches what: how many, and told together when the process stops."""

    def __init__(self, settings: ServerSettings) -> None:
        self._most, self._each = settings.watchers, settings.watchers_per_caller
        self.beat = settings.heartbeat_s
        self._open: Counter[str] = Counter()
        self.closing = asyncio.Event()
        """Set when the process is about to stop."""

    @property
    def count(self) -> int:
        """How many streams are open."""
        return self._open.total()

    def check(self, caller: str) -> None:
        """Refuse one more, if there are too many."""
        if self.closing.is_set():
            raise Refused(503, "draining", "this process is stopping; try again", retry_after=1)
        if self.count >= self._most or self._open[caller] >= self._each:
            text = "too many event streams are open; close one, or ask for the records instead"
            raise Refused(429, "too_many_watchers", text, retry_after=self.beat)

    @contextmanager
    def watching(self, caller: str) -> Generator[None]:
        """Counted while the block runs; `Refused` if there are too many."""
        self.check(caller)
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]


class EventStream(ASGIResponse):
    """A response that goes on for as long as there is something to tell."""

    _should_set_content_length = False

    def __init__(
        self, frames: AsyncGenerator[bytes, None], watchers: Watchers, caller: str
    ) -> None:
        super().__init__(headers=dict(_HEADERS), media_type=EVENT_STREAM)
        self._frames, self._watchers, self._caller = frames, watchers, caller
        self.is_good: Good = _always

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless others who asked at the same moment were the last for whom is room."""
        with self._watchers.watching(self._caller):
            await super().__call__(scope, receive, send)

    async def send_body(self, send: Send, receive: Receive) -> None:
        """Send until all is told, the client goes away, stops reading, or the process stops."""
        outlet = Outlet(send, self._watchers.beat)
        telling = asyncio.create_task(_tell(self._frames, outlet))
        gone = asyncio.create_task(_gone(receive))
        closing = asyncio.create_task(self._watchers.closing.wait())
        ending = asyncio.create_task(_end(self.is_good))
        tasks = (telling, gone, closing, ending)
        try:
            await asyncio.wait((*tasks, outlet.given_up), return_when=asyncio.FIRST_COMPLETED)
            last = _last_words(telling, closing, ending)
            await _stop(telling)
            if last:
                outlet.put(last)
            if not gone.done():
                await outlet.end()
        finally:
            await _stop(*tasks)
            await outlet.close()
            await self._frames.aclose()


def _last_words(
    telling: asyncio.Task[None], closing: asyncio.Task[Any], ending: asyncio.Task[Refused]
) -> bytes:
    """What is said when it ends before its time; an error too: it is too late for a status."""
    if ending.done():
        return frame("error", ending.result().body)
    problem = telling.exception() if telling.done() else None
    if isinstance(problem, EvoClawError):
        return frame("error", refusal_of(problem).body)
    if problem is not None:
        LOG.error("an event stream failed", exc_info=problem)
        return frame("error", fault().body)
    if closing.done() and not telling.done():
        return frame("closing", {"message": "this process stops; connect again"})
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
    """Wait until the token was taken back, has expired, or opens something else."""
    while True:
        await asyncio.sleep(GOOD_FOR)
        try:
            if not await is_good():
                return unknown_caller()
        except EvoClawError as trouble:
            LOG.warning("a token could not be looked at again: %s", trouble)
            return refusal_of(trouble)  # who may not be known is told nothing


def watchers_of(request: Request[Any, Any, Any]) -> Watchers:
    """Those who watch this process."""
    return cast("Watchers", request.app.state["watchers"])


def event_stream(
    request: Request[Any, Any, Any], frames: AsyncGenerator[bytes, None]
) -> EventStream:
    """The response of a route that streams; `Refused` if there are too many such.

    Args:
        request: The caller's.
        frames: What to tell, each piece made by `frame`. Closed when nobody listens any more.
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
