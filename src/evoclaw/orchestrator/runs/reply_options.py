"""What a caller wants of every reply of a run: a call, only some tools, an end at some text.

The options wrap the provider of the run, so that they apply to every model and every turn.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.events import Replied, ReplyEvent, ReplyRetried, TextDelta
from evoclaw.core.history import History
from evoclaw.core.messages import Finish, Message, Reply, ToolResult
from evoclaw.core.ports import Ports, Provider, Request
from evoclaw.core.profile import Profile
from evoclaw.core.tools import Tool
from evoclaw.core.toolset import Toolset


class ReplyOptions(Struct, frozen=True, omit_defaults=True):
    """Options of a caller for the replies of a run; stored with the run."""

    must_call: bool = False
    """Every reply must call a tool."""
    only: tuple[str, ...] = ()
    """The only tools that are offered, by their names in records; empty: all."""
    stop: tuple[str, ...] = ()
    """Texts that end a reply; they are not part of it."""
    names: dict[str, str] = {}
    """Other names of tools for the model, by their names in records."""


def with_reply_options(ports: Ports, options: ReplyOptions | None) -> Ports:
    """The ports of a run with a provider that applies the options."""
    if options is None or options == ReplyOptions():
        return ports
    return replace(ports, provider=ReplyOptionsProvider(ports.provider, options))


class ReplyOptionsProvider:
    """Applies the options of a caller to every request and every reply."""

    def __init__(self, inner: Provider, options: ReplyOptions) -> None:
        self._inner, self._options = inner, options
        self._names = _ShownNames(options.names)
        self._tools: tuple[Sequence[Tool], Sequence[Tool]] = ((), ())
        """The tools of the last request, and those that the model was shown."""

    @property
    def model(self) -> str:
        """The wrapped provider's model."""
        return self._inner.model

    @property
    def profile(self) -> Profile:
        """The wrapped provider's profile."""
        return self._inner.profile

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Yield the reply to the changed request, as the options want it."""
        tools = self._shown(request.tools)
        inner = replace(
            request,
            history=self._names.history(request.history),
            tools=tools,
            must_call=self._options.must_call and request.offer_tools and bool(tools),
            stop=self._options.stop,
        )
        cutter = StopCutter(self._options.stop)
        async with aclosing(self._inner.stream(inner)) as pieces:
            async for piece in pieces:
                match piece:
                    case TextDelta(text) if self._options.stop:
                        if shown := cutter.feed(text):
                            yield TextDelta(shown)
                    case ReplyRetried():
                        cutter = StopCutter(self._options.stop)
                        yield piece
                    case Replied(reply):
                        if rest := cutter.finish():
                            yield TextDelta(rest)
                        yield Replied(self._finished(reply))
                    case _:
                        yield piece

    def _shown(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        seen, shown = self._tools
        if seen is not tools:
            only = self._options.only
            kept = [tool for tool in tools if not only or tool.name in only]
            shown = Toolset(self._names.tools(kept), like=tools)
            self._tools = tools, shown
        return shown

    def _finished(self, reply: Reply) -> Reply:
        reply = self._names.restored(_cut(reply, self._options.stop))
        if not self._options.only or not reply.calls:
            return reply
        calls = tuple(call for call in reply.calls if call.name in self._options.only)
        finish = reply.finish if calls or reply.finish is not Finish.CALLS else Finish.STOP
        return replace(reply, calls=calls, finish=finish)


class StopCutter:
    """Cuts a streamed text where one of the texts begins."""

    def __init__(self, stop: Iterable[str]) -> None:
        self._stop = tuple(text for text in stop if text)
        self._held, self._is_cut = "", False

    def feed(self, piece: str) -> str:
        """Add a piece; return what can be shown: no part of a text that may end the reply."""
        if self._is_cut:
            return ""
        text = self._held + piece
        end = first_stop(text, self._stop)
        if end is not None:
            self._is_cut, self._held = True, ""
            return text[:end]
        held = max((_overlap(text, mark) for mark in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """What was held back at the end of the reply."""
        held, self._held = self._held, ""
        return held


def first_stop(text: str, stop: Iterable[str]) -> int | None:
    """Where the first of the texts begins; None if there is none."""
    return min((at for mark in stop if mark and (at := text.find(mark)) >= 0), default=None)


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the start of `mark`."""
    return next(
        (n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0
    )


def _cut(reply: Reply, stop: Sequence[str]) -> Reply:
    """The reply up to a stop text; what the model would have called after it is dropped."""
    end = first_stop(reply.text, stop)
    if end is None:
        return reply
    return replace(reply, text=reply.text[:end], calls=(), finish=Finish.STOP)


class _ShownNames:
    """Shows tools to the model under other names, and reads them back."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._shown = dict(names)
        self._own = {shown: own for own, shown in self._shown.items()}
        self._source, self._history, self._done = History(), History(), 0

    def tools(self, tools: Iterable[Tool]) -> list[Tool]:
        """The tools under the names for the model."""
        if not self._shown:
            return list(tools)
        return [
            replace(tool, name=shown, aliases=())
            if (shown := self._shown.get(tool.name, tool.name)) != tool.name
            else tool
            for tool in tools
        ]

    def history(self, source: History) -> History:
        """The history with these names; only new messages are rewritten."""
        if not self._shown:
            return source
        if source is not self._source or len(source) < self._done:
            self._source, self._history, self._done = source, History(), 0
        for index in range(self._done, len(source)):
            self._history.append(self._message(source[index]))
        self._done = len(source)
        return self._history

    def _message(self, message: Message) -> Message:
        match message:
            case Reply() if message.calls:
                return _renamed(message, self._shown)
            case ToolResult():
                return replace(message, name=self._shown.get(message.name, message.name))
            case _:
                return message

    def restored(self, reply: Reply) -> Reply:
        """A reply with the tools' names in records."""
        return _renamed(reply, self._own) if self._own and reply.calls else reply


def _renamed(reply: Reply, names: Mapping[str, str]) -> Reply:
    calls = tuple(replace(call, name=names.get(call.name, call.name)) for call in reply.calls)
    return replace(reply, calls=calls)


def caller_name(options: ReplyOptions | None, name: str) -> str:
    """The caller's own name of a tool, by its name in records."""
    return name if options is None else options.names.get(name, name)
