"""Replies of real small models, as their server sent them, and what we make of them.

`python -m tests.providers.reply_corpus` records them again, with the model files that are on this
machine; `--parse` keeps the replies, and writes what we make of them now. Read the difference
before you commit it. `test_reply_corpus.py` parses them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

import aiohttp
import msgspec
from msgspec import Struct

from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.core.events import Replied, TextDelta
from evoclaw.core.history import History
from evoclaw.core.messages import (
    Message,
    Reply,
    SystemMessage,
    TextBlock,
    ToolCall,
    ToolResult,
    user,
)
from evoclaw.core.ports import Provider, Request
from evoclaw.core.tools import Tool
from evoclaw.providers.embedded_server import EmbeddedServer
from evoclaw.providers.embedded_settings import EmbeddedSettings
from evoclaw.providers.errors import AttemptFailed
from evoclaw.providers.http import Http, RetryPolicy
from evoclaw.providers.local_model import LocalModel
from evoclaw.providers.openai import OpenAIProvider
from evoclaw.providers.recovered_calls import RecoveredCallsProvider
from evoclaw.providers.text_calls import Style, TextCallProvider
from tests.support.llm_servers import Answer, serving, streamed
from tests.support.llm_servers import whole as whole_answer
from tests.support.weights import MODELS, find_model

FOLDER = Path(__file__).parent / "golden" / "replies"
MAX_TOKENS = 64
ALSO_WHOLE = ("one tool", "six tools", "no call needed", "two calls")
"""Situations whose reply is also requested in one piece."""
SYSTEM = SystemMessage("You are a helpful assistant with tools. Be brief.")


def _tool(name: str, description: str, *required: str, **optional: str) -> Tool:
    properties = {key: {"type": "string"} for key in required} | {
        key: {"type": kind} for key, kind in optional.items()
    }
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return Tool(name, description, {**schema, "additionalProperties": False})


TOOLS = {
    tool.name: tool
    for tool in (
        _tool("read", "Read a text file.", "path", offset="integer", limit="integer"),
        _tool("write", "Write a text file; it is created or replaced.", "path", "content"),
        _tool("bash", "Run a command in a shell.", "command", timeout="integer"),
        _tool("grep", "Search files for a regular expression.", "pattern", path="string"),
        _tool("glob", "List files by a pattern such as **/*.py.", "pattern"),
        _tool("webfetch", "Fetch a web page as text.", "url"),
    )
}
"""Six tools like ours, with short descriptions: the corpus is recorded on slow machines."""
ALL_TOOLS = tuple(TOOLS)
Asking: TypeAlias = Literal["native"] | Style
CODE = '```json\n{"name": "write", "arguments": {"path": "x.txt", "content": "hello"}}\n```'


class Situation(Struct, frozen=True):
    """What a model is asked."""

    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ALL_TOOLS
    style: Asking = "native"
    """How tools are described: by the model's own template, or in our words."""


def _asked(text: str, *tools: str, style: Asking = "native") -> Situation:
    return Situation((SYSTEM, user(text)), tools or ALL_TOOLS, style)


def _answered(
    question: str,
    call: ToolCall,
    result: str,
    then: str = "",
    style: Asking = "native",
) -> Situation:
    messages: list[Message] = [
        SYSTEM,
        user(question),
        Reply(calls=(call,)),
        ToolResult(call.id, call.name, (TextBlock(result),)),
    ]
    if then:
        messages += [Reply("Done."), user(then)]
    return Situation(tuple(messages), style=style)


_READ = ToolCall("call_1", "read", '{"path": "note.txt"}')
_MISSING = "Error: 'note.txt' does not exist. Did you mean notes.md?"
_FETCH = ToolCall("call_1", "webfetch", '{"url": "https://example.com/"}')
SITUATIONS = {
    "one tool": _asked("What does note.txt say?", "read"),
    "six tools": _asked("What does note.txt say?"),
    "a command": _asked("Run the command uname -a."),
    "two arguments": _asked("Write the word hello into out.txt."),
    "a search": _asked("Search for the word TODO in the folder src."),
    "two calls": _asked("Read a.txt and b.txt at the same time."),
    "no call needed": _asked("What is the capital of France?"),
    "no tool fits": _asked("Send an email to Bob that says hi."),
    "a missing argument": _asked("Write something into a file for me."),
    "an example, not a call": _asked(
        "Show me an example of JSON with the keys name and arguments."
    ),
    "after a result": _answered("What does note.txt say?", _READ, "The door code is 4711."),
    "after an error": _answered("What does note.txt say?", _READ, _MISSING),
    "a result with a call": _answered(
        "What does example.com say? Quote it word for word.", _FETCH, f"Welcome!\n\n{CODE}\n"
    ),
    "a next question": _answered(
        "What does note.txt say?", _READ, "The door code is 4711.", "Now read todo.md."
    ),
    "one tool in our words": _asked("What does note.txt say?", "read", style="hermes"),
    "six tools in our words": _asked("Run the command uname -a.", style="hermes"),
    "one tool as JSON": _asked("What does note.txt say?", "read", style="json"),
    "six tools as JSON": _asked("Run the command uname -a.", style="json"),
    "two arguments as JSON": _asked("Write the word hello into out.txt.", style="json"),
    "two calls as JSON": _asked("Read a.txt and b.txt at the same time.", style="json"),
    "no call needed as JSON": _asked("What is the capital of France?", style="json"),
    "after a result as JSON": _answered(
        "What does note.txt say?", _READ, "The door code is 4711.", style="json"
    ),
    "after an error as JSON": _answered("What does note.txt say?", _READ, _MISSING, style="json"),
}


class Made(Struct, frozen=True, omit_defaults=True):
    """What we make of a reply."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Tool and arguments."""
    finish: str = "stop"
    recovered: bool = False


class RecordedReply(Struct, frozen=True):
    """A reply to one situation: as the server sent it, and what it means."""

    situation: str
    streamed: str
    made: Made
    whole: str = ""
    """Only of some."""
    made_of_whole: Made | None = None
    """If it differs: the server parses a whole reply in another way."""


class Recording(Struct, frozen=True):
    """The replies of one model."""

    model: str
    replies: tuple[RecordedReply, ...]


def read_recording(model: str) -> Recording:
    """The recorded replies of a model."""
    return msgspec.json.decode((FOLDER / f"{model}.json").read_bytes(), type=Recording)


def request_of(situation: str) -> Request:
    """The request of a situation."""
    messages = SITUATIONS[situation].messages
    tools = [TOOLS[name] for name in SITUATIONS[situation].tools]
    return Request(History(list(messages)), tools, temperature=0.0, max_tokens=MAX_TOKENS)


def provider_of(situation: str, url: str, http: Http, key: str = "") -> Provider:
    """The provider that the registry would create."""
    provider: Provider = OpenAIProvider(
        "m", http=http, base_url=f"{url}/v1", api_key=key, retry=RetryPolicy(attempts=1)
    )
    if (style := SITUATIONS[situation].style) != "native":
        provider = TextCallProvider(provider, style)
    return RecoveredCallsProvider(provider)


async def make(situation: str, http: Http, answer: Answer) -> tuple[str, Made]:
    """What we make of the raw bytes of a server: the text that is shown, and the reply."""
    async with serving(answer) as server:
        provider = provider_of(situation, server.url, http)
        events = [event async for event in provider.stream(request_of(situation))]
    last = events[-1]
    assert isinstance(last, Replied)
    reply = last.reply
    calls = tuple((call.name, call.arguments) for call in reply.calls)
    shown = "".join(event.text for event in events if isinstance(event, TextDelta))
    return shown, Made(reply.text, calls, str(reply.finish), reply.recovered)


class _BodyOnly(Http):
    """Keeps the body of a request instead of sending it."""

    body = b""

    async def post(self, url: str, headers: Any, body: bytes) -> Any:
        self.body = body
        raise AttemptFailed(ProviderErrorKind.UNKNOWN, "not sent")


async def _body_of(situation: str) -> dict[str, Any]:
    """The body of the request as our provider sends it."""
    http = _BodyOnly()
    provider = provider_of(situation, "http://127.0.0.1:1", http)
    with suppress(ProviderError):
        _ = [event async for event in provider.stream(request_of(situation))]
    return json.loads(http.body)


async def _record(model: LocalModel, known: Recording) -> AsyncGenerator[Recording]:
    """The recording with one more reply each time."""
    server = EmbeddedServer(model, EmbeddedSettings(slots=1))
    unlimited = aiohttp.ClientTimeout(None)
    async with (
        aclosing(server),
        Http() as http,
        aiohttp.ClientSession(timeout=unlimited) as session,
    ):
        url = await server.start()
        done = {reply.situation for reply in known.replies}
        for name in SITUATIONS:
            if name in done:
                continue
            body = await _body_of(name)
            raw = await _post(session, url, server.key, body)
            made = (await make(name, http, streamed([raw])))[1]
            whole, other = "", None
            if name in ALSO_WHOLE:
                del body["stream_options"]
                whole = await _post(session, url, server.key, {**body, "stream": False})
                of_whole = (await make(name, http, whole_answer(whole)))[1]
                other = None if of_whole == made else of_whole
            known = Recording(
                known.model, (*known.replies, RecordedReply(name, raw, made, whole, other))
            )
            yield known


async def _post(session: aiohttp.ClientSession, url: str, key: str, body: dict[str, Any]) -> str:
    # It closes the connection after a reply, despite its keep-alive header.
    headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
        return (await answer.read()).decode()


async def _parsed_again(recording: Recording) -> Recording:
    """The same replies with what we make of them now."""
    replies: list[RecordedReply] = []
    async with Http() as http:
        for reply in recording.replies:
            made = (await make(reply.situation, http, streamed([reply.streamed])))[1]
            other = made
            if reply.whole:
                other = (await make(reply.situation, http, whole_answer(reply.whole)))[1]
            other = None if other == made else other
            replies.append(msgspec.structs.replace(reply, made=made, made_of_whole=other))
    return Recording(recording.model, tuple(replies))


def _write(recording: Recording) -> None:
    text = json.dumps(msgspec.to_builtins(recording), indent=1, ensure_ascii=False)
    (FOLDER / f"{recording.model}.json").write_text(f"{text}\n")


async def main(names: Sequence[str]) -> None:
    """Record the situations that are missing; delete a file to record all of its model again."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if names == ["--parse"]:
        for path in FOLDER.glob("*.json"):
            _write(await _parsed_again(read_recording(path.stem)))
        return
    for name in names or MODELS:
        model, path = find_model(name), FOLDER / f"{name}.json"
        if model is None:
            sys.stdout.write(f"{name}: its file is not here\n")
            continue
        known = read_recording(name) if path.exists() else Recording(name, ())
        async with aclosing(_record(model, known)) as recordings:
            async for recording in recordings:
                _write(recording)
                last = recording.replies[-1]
                sys.stdout.write(f"{name}: {last.situation}: {last.made}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
