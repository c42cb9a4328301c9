"""Calls that a model wrote as JSON into its text are calls, if it made no native one."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from itertools import islice

import msgspec

from evoclaw.core.events import Replied, ReplyEvent, ReplyRetried, TextDelta
from evoclaw.core.history import History
from evoclaw.core.messages import Finish, Reply, ToolCall, ToolResult, UserMessage
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import Profile
from evoclaw.core.toolset import Toolset
from evoclaw.providers.json_calls import JsonCallScanner, calls_in
from evoclaw.providers.request_encoding import own_tool_names
from evoclaw.providers.text_call_scanner import JsonSpan, ScannedCall
from evoclaw.providers.text_calls import last_call_number
from evoclaw.providers.wrappers import close

_START = re.compile(r'[{\[]\s*[{\[]?\s*"')
MAX_COMPARED_VALUES = 1_000
"""JSON values in one message that are compared with a call."""


class RecoveredCallsProvider:
    """A provider whose replies may have calls as JSON in their text."""

    def __init__(self, provider: Provider) -> None:
        self.inner = provider

    @property
    def model(self) -> str:
        """The wrapped provider's model."""
        return self.inner.model

    @property
    def profile(self) -> Profile:
        """The wrapped provider's profile."""
        return self.inner.profile

    async def aclose(self) -> None:
        """Close the wrapped provider."""
        await close(self.inner)

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Yield the reply; calls that are found in its text are not shown as text."""
        if not request.tools or not request.offer_tools:
            async with aclosing(self.inner.stream(request)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        reader = _Reader(request)
        async with aclosing(self.inner.stream(request)) as pieces:
            async for piece in pieces:
                match piece:
                    case TextDelta(text):
                        for delta in reader.feed(text):
                            yield delta
                    case ReplyRetried():
                        reader = _Reader(request)
                        yield piece
                    case Replied(reply):
                        if reader.fed != reply.text:
                            reader = _Reader(request)
                            reader.feed(reply.text)
                        for delta in reader.finish(has_calls=bool(reply.calls)):
                            yield delta
                        yield Replied(reader.reply(reply))
                    case _:
                        yield piece


class _Reader:
    """Reads one reply."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._own_names = own_tool_names(request.tools)
        self._scanner = JsonCallScanner(self._toolset(), self._is_repeated)
        self._repeatable: frozenset[bytes] | None = None
        self._fed: list[str] = []
        self._text: list[str] = []

    @property
    def fed(self) -> str:
        """What the model has written so far."""
        return "".join(self._fed)

    def feed(self, piece: str) -> list[TextDelta]:
        """Scan a piece; return the text that cannot be part of a call."""
        self._fed.append(piece)
        return self._keep(self._scanner.feed(piece))

    def finish(self, *, has_calls: bool) -> list[TextDelta]:
        """The rest of the text; with what was held back if the model made a native call."""
        rest = self._scanner.finish()
        if has_calls:
            rest += [TextDelta(text) for text in self._scanner.held]
        return self._keep(rest)

    def reply(self, reply: Reply) -> Reply:
        """The reply with the calls that were found, if it has no native ones."""
        found = self._scanner.calls
        if reply.calls or not found:
            return reply
        number = last_call_number(self._request.history)
        calls = tuple(
            ToolCall(
                f"text_{number + index}",
                self._own_names.get(call.name, call.name),
                call.arguments,
            )
            for index, call in enumerate(found, start=1)
        )
        return msgspec.structs.replace(
            reply,
            text="".join(self._text).strip(),
            calls=calls,
            finish=Finish.CALLS if reply.finish is Finish.STOP else reply.finish,
            recovered=True,
        )

    def _toolset(self) -> Toolset:
        """The tools by their own names, and by those that the vendor got."""
        tools = Toolset.of(self._request.tools)
        if not self._own_names:
            return tools
        vendor_names = {own: vendor for vendor, own in self._own_names.items()}
        return Toolset(
            (
                msgspec.structs.replace(
                    tool, aliases=(*tool.aliases, vendor_names.get(tool.name, tool.name))
                )
                for tool in tools
            ),
            like=tools,
        )

    def _keep(self, deltas: list[TextDelta]) -> list[TextDelta]:
        self._text.extend(delta.text for delta in deltas)
        return deltas

    def _is_repeated(self, call: ScannedCall) -> bool:
        if self._repeatable is None:
            self._repeatable = frozenset(_calls_in_messages(self._request.history))
        return _key(call) in self._repeatable


def _key(call: ScannedCall) -> bytes:
    arguments = msgspec.json.decode(call.arguments)
    return msgspec.json.encode([call.name, arguments], order="sorted")


def _calls_in_messages(history: History) -> Iterator[bytes]:
    """What looks like a call in messages and results: data, even if the model repeats it."""
    for message in history:
        if isinstance(message, UserMessage | ToolResult):
            text = message.text
            for variant in {text, text.replace('\\"', '"')}:
                yield from _calls_in_text(variant)


def _calls_in_text(text: str) -> Iterator[bytes]:
    for start in islice(_START.finditer(text), MAX_COMPARED_VALUES):
        value = text[start.start() :]
        end = JsonSpan().end(value)
        if end is not None:
            for call in calls_in(value[:end]):
                yield _key(call)
