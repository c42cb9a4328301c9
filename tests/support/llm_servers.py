"""A model server on plain sockets that answers what a test wrote, well or badly."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).parents[1] / "providers" / "captures"
SSE = "text/event-stream"


@dataclass
class Received:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Peer:
    """The two ends of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Send, and let the client's side of the event loop take it before anything follows."""
        self.writer.write(data)
        await self.writer.drain()
        await asyncio.sleep(0)

    async def head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", *(f"{k}: {v}" for k, v in headers.items())]
        await self.send("\r\n".join([*lines, "", ""]).encode())


Answer = Callable[[Peer], Awaitable[None]]


@dataclass
class LlmServer:
    """What a test sees of the server."""

    url: str = ""
    requests: list[Received] = field(default_factory=list[Received])
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """A request came."""
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    """A client closed its connection."""
    connections: int = 0


@asynccontextmanager
async def serving(*answers: Answer) -> AsyncGenerator[LlmServer]:
    """Answer request after request; the last answer is given again and again."""
    state = LlmServer()
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state.connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while (request := await _receive(reader)) is not None:
                state.requests.append(request)
                state.asked.set()
                answer = answers[min(len(state.requests), len(answers)) - 1]
                await answer(Peer(reader, writer))
                if writer.is_closing():
                    break
            state.hung_up.set()
        except (ConnectionError, asyncio.CancelledError):
            state.hung_up.set()
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield state
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def _receive(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode().strip().split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers["content-length"]))
    return Received(first.split(" ")[1], headers, body)


def whole(
    body: bytes | str | dict[str, Any] | list[Any],
    *,
    status: int = 200,
    kind: str = "application/json",
    **headers: str,
) -> Answer:
    """A body with its length."""
    if isinstance(body, dict | list):
        body = json.dumps(body)
    data = body.encode() if isinstance(body, str) else body
    more = {name.replace("_", "-"): value for name, value in headers.items()}

    async def answer(peer: Peer) -> None:
        await peer.head(status, {"content-type": kind, "content-length": str(len(data)), **more})
        await peer.send(data)

    return answer


def streamed(pieces: Iterable[str | bytes], *, kind: str = SSE, end: bool = True) -> Answer:
    """Pieces, one HTTP chunk each; without an end the connection is closed in the middle."""

    async def answer(peer: Peer) -> None:
        await peer.head(200, {"content-type": kind, "transfer-encoding": "chunked"})
        for data in _encoded(pieces):
            await peer.send(b"%x\r\n%s\r\n" % (len(data), data))
        if end:
            await peer.send(b"0\r\n\r\n")
        else:
            peer.writer.close()

    return answer


def until_close(pieces: Iterable[str | bytes], *, kind: str = SSE) -> Answer:
    """Pieces with no length and no chunks: the end of the connection is the end of the body."""

    async def answer(peer: Peer) -> None:
        await peer.head(200, {"content-type": kind, "connection": "close"})
        for data in _encoded(pieces):
            await peer.send(data)
        peer.writer.close()

    return answer


def sized(
    pieces: Iterable[str | bytes], length: int, *, kind: str = SSE, close: bool = False
) -> Answer:
    """Pieces under a content-length, which may not be theirs."""

    async def answer(peer: Peer) -> None:
        await peer.head(200, {"content-type": kind, "content-length": str(length)})
        for data in _encoded(pieces):
            await peer.send(data)
        if close:
            peer.writer.close()

    return answer


def reset(pieces: Iterable[str | bytes] = (), *, head: bool = True) -> Answer:
    """Pieces, then a connection reset."""

    async def answer(peer: Peer) -> None:
        if head:
            await peer.head(200, {"content-type": SSE, "transfer-encoding": "chunked"})
        for data in _encoded(pieces):
            await peer.send(b"%x\r\n%s\r\n" % (len(data), data))
        raw: socket.socket = peer.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.writer.transport.abort()

    return answer


def silent(pieces: Iterable[str | bytes] = (), *, head: bool = True) -> Answer:
    """Pieces, then nothing until the client hangs up."""

    async def answer(peer: Peer) -> None:
        if head:
            await peer.head(200, {"content-type": SSE, "transfer-encoding": "chunked"})
        for data in _encoded(pieces):
            await peer.send(b"%x\r\n%s\r\n" % (len(data), data))
        await peer.reader.read()
        peer.writer.close()

    return answer


def endless(start: bytes, piece: bytes, *, kind: str = SSE) -> Answer:
    """The same piece again and again until the client hangs up."""

    async def answer(peer: Peer) -> None:
        await peer.head(200, {"content-type": kind, "connection": "close"})
        await peer.send(start)
        while True:
            await peer.send(piece)

    return answer


def _encoded(pieces: Iterable[str | bytes]) -> Iterable[bytes]:
    return (piece.encode() if isinstance(piece, str) else piece for piece in pieces)


def event(value: Any, *, name: str = "") -> str:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
    """One of OpenAI's."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more})


def openai_says(*texts: str) -> list[str]:
    """A whole reply in OpenAI's words."""
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    return [
        *(chunk({"content": text}, model="gpt-test") for text in texts),
        chunk({}, "stop"),
        event({"choices": [], "usage": usage}),
        "data: [DONE]\n\n",
    ]


def anthropic_says(*texts: str) -> list[str]:
    """A whole reply in Anthropic's words."""
    usage = {
        "input_tokens": 5,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "output_tokens": 1,
    }
    message: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    parts: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": text},
            }
            for text in texts
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 9},
        },
        {"type": "message_stop"},
    ]
    return [event(part, name=part["type"]) for part in parts]


def ollama_says(*texts: str) -> list[str]:
    """A whole reply in Ollama's words."""
    lines: list[dict[str, Any]] = [
        *(
            {"model": "q", "message": {"role": "assistant", "content": text}, "done": False}
            for text in texts
        ),
        {
            "model": "q",
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "done_reason": "stop",
            "prompt_eval_count": 11,
            "eval_count": 4,
        },
    ]
    return [json.dumps(line) + "\n" for line in lines]


@dataclass(frozen=True)
class Capture:
    """What a real server said."""

    name: str
    path: str
    request: Any
    status: int
    headers: dict[str, str]
    pieces: tuple[bytes, ...]

    def answers(self, delivery: str) -> Answer:
        """The recorded response in the recorded pieces, one byte at a time, or all at once."""
        everything = b"".join(self.pieces)
        cut: Sequence[bytes] = self.pieces
        if delivery == "bytes":
            cut = [everything[i : i + 1] for i in range(len(everything))]
        elif delivery == "whole":
            cut = [everything]
        if "content-length" in self.headers:
            return sized(cut, len(everything), kind=self.headers["content-type"])
        return streamed(cut, kind=self.headers["content-type"])


def capture(name: str) -> Capture:
    """Read one capture."""
    found = json.loads((CAPTURES / f"{name}.json").read_text())
    request, response = found["request"], found["response"]
    pieces = tuple(piece.encode() for piece in response["chunks"])
    return Capture(
        name,
        request["path"],
        request["body"],
        response["status"],
        response["headers"],
        pieces,
    )


def all_captures() -> list[str]:
    """The names of all captures."""
    return sorted(path.stem for path in CAPTURES.glob("*.json"))
