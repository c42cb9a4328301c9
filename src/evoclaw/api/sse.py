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
from evoclaw.api.settings import ServerSettings
from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.people.access import Access, Caller

EVENT_STREAM = "text/event-stream"
BEAT = b": still here\n\n"
AHEAD = 64
"""Events that are fetched before they can be sent."""
STALL = 30.0
"""Seconds in which a client that reads nothing is given up."""
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
    known = b"" if id_ is None else f"id: {id_}\n".encode()
    return known + b"event: " + event.encode() + b"\ndata: " + text + b"\n\n"


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
        telling = asyncio.create_task(self._tell(send))
        tasks = {telling, asyncio.create_task(_gone(receive))}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not telling.cancelled():
            telling.result()

    async def _tell(self, send: Send) -> None:
        paced = _paced(self._frames, self._watchers, self.is_good)
        try:
            async for piece in paced:
                await _send(send, piece)
            await _send(send, b"", more=False)
        except TimeoutError:
            return  # it reads nothing: whatever else we said would not arrive either
        finally:
            await paced.aclose()


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    async with asyncio.timeout(STALL):
        await send({"type": "http.response.body", "body": body, "more_body": more})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _paced(
    frames: AsyncGenerator[bytes, None], watchers: Watchers, is_good: Good
) -> AsyncGenerator[bytes, None]:
    """The same, as much at once as there is, with a sign of life when nothing comes.

    Args:
        frames: What to tell; closed in the end.
        watchers: How long nothing may come, and whether the process stops.
        is_good: Whether who watches still may.
    """
    ready: asyncio.Queue[bytes | None] = asyncio.Queue(AHEAD)
    pump = asyncio.create_task(_pump(frames, ready))
    closing = asyncio.create_task(_close(watchers, ready))
    ending = asyncio.create_task(_end(is_good, ready))
    try:
        while True:
            try:
                async with asyncio.timeout(watchers.beat):
                    piece = await ready.get()
            except TimeoutError:
                yield BEAT
                continue
            pieces = [piece, *(ready.get_nowait() for _ in range(ready.qsize()))]
            told = pieces[: pieces.index(None)] if None in pieces else pieces
            if told:
                yield b"".join(one for one in told if one is not None)
            if len(told) < len(pieces):
                break
        if watchers.closing.is_set() and not pump.done():
            yield frame("closing", {"message": "this process stops; connect again"})
    finally:
        for task in (pump, closing, ending):
            task.cancel()
        await asyncio.wait((pump, closing, ending))
        await frames.aclose()


async def _pump(frames: AsyncGenerator[bytes, None], ready: asyncio.Queue[bytes | None]) -> None:
    """Fetch what there is to tell; an error is told as an event: too late for a status."""
    (problem,) = await asyncio.gather(_fetch(frames, ready), return_exceptions=True)
    if isinstance(problem, EvoClawError):
        await ready.put(frame("error", refusal_of(problem).body))
    elif problem is not None:
        LOG.error("an event stream failed", exc_info=problem)
        await ready.put(frame("error", fault().body))
    await ready.put(None)


async def _fetch(frames: AsyncGenerator[bytes, None], ready: asyncio.Queue[bytes | None]) -> None:
    async for piece in frames:
        await ready.put(piece)


async def _close(watchers: Watchers, ready: asyncio.Queue[bytes | None]) -> None:
    await watchers.closing.wait()
    await ready.put(None)


async def _end(is_good: Good, ready: asyncio.Queue[bytes | None]) -> None:
    """End it when the token was taken back, has expired, or opens something else."""
    problem: Refused | None = None
    while problem is None:
        await asyncio.sleep(GOOD_FOR)
        try:
            problem = None if await is_good() else unknown_caller()
        except EvoClawError as trouble:
            LOG.warning("a token could not be looked at again: %s", trouble)
            problem = refusal_of(trouble)  # who may not be known is told nothing
    await ready.put(frame("error", problem.body))
    await ready.put(None)


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
