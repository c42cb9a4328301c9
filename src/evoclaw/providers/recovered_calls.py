"""Calls that a model wrote as JSON into its text are calls, if it made no native one.

Small models then often repeat the call when they get its result, again and again. They are asked
once more without tools, and answer from the result.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from evoclaw.core.events import Replied, ReplyEvent, ReplyRetried, TextDelta
from evoclaw.core.history import History
from evoclaw.core.messages import ErrorKind, Finish, Reply, ToolCall, ToolResult
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import CallStyle, Profile
from evoclaw.core.toolset import Toolset
from evoclaw.providers.json_calls import JsonCallScanner
from evoclaw.providers.request_encoding import own_tool_names
from evoclaw.providers.text_call_scanner import Deltas, ScannedCall
from evoclaw.providers.text_calls import last_call_number
from evoclaw.providers.untrusted_texts import UntrustedTexts
from evoclaw.providers.wrappers import close

REPEATED_CALL = "repeated_call"
"""The kind of `ReplyRetried` for a reply that only repeats the last calls."""

_FINAL = (
    None,
    ErrorKind.NOT_FOUND,
    ErrorKind.INVALID_PARAMS,
    ErrorKind.PERMISSION_DENIED,
)
"""How calls end that end the same when they are repeated at once; another error may go away."""


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
        async with aclosing(self._with_calls(request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Replied) and self._is_repeating(piece.reply, request.history):
                    break
                yield piece
            else:
                return
        yield ReplyRetried(REPEATED_CALL, "it repeated a call that was answered", 1, 0.0)
        without_tools = msgspec.structs.replace(request, offer_tools=False)
        async with aclosing(self.inner.stream(without_tools)) as closing:
            async for event in closing:
                is_last = isinstance(event, Replied)
                yield Replied(_paid(event.reply, piece.reply)) if is_last else event

    def _is_repeating(self, reply: Reply, history: History) -> bool:
        in_text = reply.recovered or self.profile.calls is CallStyle.JSON
        return in_text and bool(reply.calls) and _are_answered(reply.calls, history)

    async def _with_calls(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        if self.profile.calls is CallStyle.JSON:  # all calls are found already
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
                        for delta in reader.finish(reply):
                            yield delta
                        yield Replied(reader.reply(reply))
                    case _:
                        yield piece


def _are_answered(calls: Sequence[ToolCall], history: History) -> bool:
    """Whether all calls were made in the last turn already, and would be answered the same."""
    answered: set[str] = set()
    made: set[tuple[str, bytes]] = set()
    for message in reversed(history.to_tuple()):
        if isinstance(message, ToolResult) and message.error in _FINAL:
            answered.add(message.call_id)
        elif isinstance(message, Reply):
            made = {_content(call) for call in message.calls if call.id in answered}
            break
        elif not isinstance(message, ToolResult):
            break
    return all(_content(call) in made for call in calls)


def _content(call: ToolCall) -> tuple[str, bytes]:
    """The tool and the arguments, however they are written."""
    try:
        return call.name, msgspec.json.encode(msgspec.json.decode(call.arguments), order="sorted")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return call.name, call.arguments.encode(errors="replace")


def _paid(reply: Reply, before: Reply) -> Reply:
    """A reply with the tokens and the cost of the one before it."""
    cost = None if reply.cost is None or before.cost is None else reply.cost + before.cost
    return msgspec.structs.replace(reply, usage=reply.usage + before.usage, cost=cost)


class _Reader:
    """Reads one reply."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._own_names = own_tool_names(request.tools)
        self._scanner = JsonCallScanner(self._toolset(), self._is_repeated)
        self._untrusted: UntrustedTexts | None = None
        self._fed: list[str] = []
        self._text: list[str] = []

    @property
    def fed(self) -> str:
        """What the model has written so far."""
        return "".join(self._fed)

    def feed(self, piece: str) -> Deltas:
        """Scan a piece; return the text that cannot be part of a call."""
        self._fed.append(piece)
        return self._keep(self._scanner.feed(piece))

    def finish(self, reply: Reply) -> Deltas:
        """The rest of the text; with what was held back if the model made a native call."""
        rest = self._scanner.finish(cut_short=reply.finish is not Finish.STOP)
        if reply.calls:
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

    def _keep(self, deltas: Deltas) -> Deltas:
        self._text.extend(delta.text for delta in deltas)
        return deltas

    def _is_repeated(self, call: ScannedCall) -> bool:
        if self._untrusted is None:
            self._untrusted = UntrustedTexts(self._request.history)
        return self._untrusted.contain(call)
