"""A model server outside the process under test: it does what the messages that it gets say.

It speaks the chat-completions dialect, streamed or not. Each line of the last thing that the user
said is one turn: the first is done when the message comes, the next when the results of its calls
are there, and the last one for ever after.

    say TEXT                answers with the text, a piece for each word
    recite JSON             answers with a text of several lines, written as a JSON string
    words N [SECONDS]       answers with so many words, one after so long
    wait GATE N             answers with N words, half of them before GATE is opened
    fail STATUS             answers with an error of that HTTP status
    call TOOL JSON          calls a tool; several in one reply with ` && call TOOL JSON`

`words` may be followed by `call` on the same line: both are one reply.

A message that begins with none of these words, as the loop itself may put in, changes nothing about
that; if there is no other, it is said back. `python -m tests.support.model_server` serves until it
is ended, and prints its port.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

VERBS = ("say ", "recite ", "words ", "wait ", "call ", "fail ")
NAME = "qwen3-scripted"
"""The model's: of a family that is known to call tools."""
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": NAME}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@dataclass(frozen=True)
class Asked:
    """One request, as far as tests look at it."""

    said: str
    """The last thing that the user said."""
    turn: int
    """Replies that were given to it before."""
    body: dict[str, Any]


@dataclass
class ModelServer:
    """What a test sees of it."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list[Asked])
    scripts: dict[str, str] = field(default_factory=dict[str, str])
    """By what a person says in plain words: the lines that are done instead of it."""
    gates: dict[str, asyncio.Event] = field(
        default_factory=lambda: defaultdict[str, asyncio.Event](asyncio.Event)
    )
    held: dict[str, asyncio.Event] = field(
        default_factory=lambda: defaultdict[str, asyncio.Event](asyncio.Event)
    )
    """By gate: set once half of a reply was sent, and the rest waits."""
    gone: int = 0
    """Replies that were not heard to their end."""

    @property
    def env(self) -> dict[str, str]:
        """What makes EvoClaw use it, as a free model: a table of prices takes long to read."""
        return {
            "EVOCLAW_MODEL": f"vllm/{NAME}",
            "VLLM_BASE_URL": f"http://127.0.0.1:{self.port}/v1",
        }

    def count(self, said: str) -> int:
        """How often it was asked by a message that begins so."""
        return sum(one.said.startswith(said) for one in self.asked)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        body = await request.json()
        asked = _asked(body, (*VERBS, *self.scripts))
        self.asked.append(asked)
        lines = self.scripts.get(asked.said, asked.said).splitlines() or [""]
        line = lines[min(asked.turn, len(lines) - 1)].strip()
        if line.startswith("fail "):
            return web.json_response({"error": {"message": "no"}}, status=int(line.split()[1]))
        try:
            if body.get("stream"):
                return await self._stream(request, line)
            return await self._whole(line)
        except (ConnectionError, asyncio.CancelledError):
            self.gone += 1
            raise

    async def _stream(self, request: web.Request, line: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        async for piece in self._chunks(line):
            await response.write(b"data: " + piece + b"\n\n")
        return response

    async def _chunks(self, line: str) -> AsyncIterator[bytes]:
        spoken, calls = _parts(line)
        async for word in self._words(spoken):
            yield _chunk({"content": word})
        for index, call in enumerate(calls):
            yield _chunk({"role": "assistant", "tool_calls": [{"index": index, **call}]})
        yield _chunk({}, "tool_calls" if calls else "stop")
        yield json.dumps({**HEAD, "choices": [], "usage": USAGE}).encode()
        yield b"[DONE]"

    async def _words(self, line: str) -> AsyncIterator[str]:
        gate, pause, words = _spoken(line)
        for number, word in enumerate(words):
            if gate and number == len(words) // 2:
                self.held[gate].set()
                await self.gates[gate].wait()
            yield word
            if pause:
                await asyncio.sleep(pause)

    async def _whole(self, line: str) -> web.Response:
        spoken, calls = _parts(line)
        text = "".join([word async for word in self._words(spoken)])
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = calls
        finish = "tool_calls" if calls else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return web.json_response(
            {**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}
        )


def _asked(body: dict[str, Any], known: tuple[str, ...]) -> Asked:
    messages = body["messages"]
    said = {n: _text(one["content"]) for n, one in enumerate(messages) if one["role"] == "user"}
    last = max([n for n, text in said.items() if text.startswith(known)] or said)
    turn = sum(message["role"] == "assistant" for message in messages[last:])
    return Asked(said[last], turn, body)


def _text(content: str | list[dict[str, str]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _parts(line: str) -> tuple[str, list[dict[str, Any]]]:
    """What is said, and what is called."""
    spoken, found, rest = line.partition("call ")
    if not found or (spoken and not spoken.startswith("words ")):
        return line, []
    return spoken.strip(), [_call(n, one) for n, one in enumerate(rest.split(" && call "), 1)]


def _call(number: int, text: str) -> dict[str, Any]:
    name, _, arguments = text.partition(" ")
    function = {"name": name, "arguments": arguments or "{}"}
    return {"id": f"call_{number}", "type": "function", "function": function}


def _spoken(line: str) -> tuple[str, float, list[str]]:
    """The gate, if there is one, the pause after each word, and the words."""
    match line.split():
        case ["words", count]:
            return "", 0.0, list(_numbered(int(count)))
        case ["words", count, pause]:
            return "", float(pause), list(_numbered(int(count)))
        case ["wait", gate, count]:
            return gate, 0.0, list(_numbered(int(count)))
        case ["say", *_]:
            return "", 0.0, _pieces(line.removeprefix("say "))
        case ["recite", *_]:
            return "", 0.0, _pieces(json.loads(line.removeprefix("recite ")))
        case []:
            return "", 0.0, []
        case _:
            return "", 0.0, _pieces(f"You said: {line}")


def _pieces(text: str) -> list[str]:
    return [word for word in text.replace(" ", " \0").split("\0") if word]


def _numbered(count: int) -> Iterator[str]:
    return (f"word{number} " for number in range(count))


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({**HEAD, "choices": [choice]}).encode()


@asynccontextmanager
async def model_server(server: ModelServer | None = None) -> AsyncGenerator[ModelServer]:
    """Serve on a free port of the loopback while the block runs; `server` may act otherwise."""
    server = server or ModelServer()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", server.complete)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.port = runner.addresses[0][1]
        yield server
    finally:
        for gate in server.gates.values():
            gate.set()
        await runner.cleanup()


async def main() -> None:
    """Serve until ended."""
    async with model_server() as server:
        print(server.port, flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
