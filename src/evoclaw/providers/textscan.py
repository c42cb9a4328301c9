"""Reading calls out of a model's text while it streams: Hermes tags and ReAct lines.

Calls are found by following the JSON, not by looking for the next tag: text that a model copies
into an argument may hold tags of its own, and must not become a second call. For the same reason
nothing is read after a broken call, or after a result that the model made up.
"""

from __future__ import annotations

import re
from typing import Protocol, TypeAlias

import msgspec

from evoclaw.core.events import ReasoningDelta, TextDelta

UNREADABLE = "unreadable_call"
"""The name of a call whose own name could not be read; no tool has it, so the model is told."""

ENDS_JSON = re.compile(r"[}\]<>]")
"""A piece without any of these neither ends a JSON value nor a tag."""

_BRACKETS = re.compile(r'["\\{}\[\]]')
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,128})"')
_FENCE = re.compile(r"```\w*(?=[\s{\[])")


Deltas: TypeAlias = list[TextDelta | ReasoningDelta]


class Found(msgspec.Struct, frozen=True):
    """A call as it was written."""

    name: str
    arguments: str


class Scanner(Protocol):
    """Splits a growing reply into what people see, what the model thinks, and calls."""

    calls: list[Found]

    def feed(self, piece: str) -> Deltas:
        """Take a piece; give back what may already be shown."""
        ...

    def finish(self) -> Deltas:
        """The text is over: give back the rest; `calls` is complete."""
        ...


class _Envelope(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    parameters: msgspec.Raw = msgspec.Raw()
    """What Llama calls them."""


class JsonSpan:
    """Finds where a JSON value ends in a text that grows; linear, and aware of strings."""

    def __init__(self) -> None:
        self._depth = 0
        self._position = 0
        self._in_string = False

    def end(self, text: str, stop: str = "") -> int | None:
        """Where the value that `text` begins with ends; negative if `stop` comes first.

        Args:
            text: What was given last time, and more.
            stop: A mark that cannot be part of the value unless within a string.
        """
        while True:
            mark = _BRACKETS.search(text, self._position)
            if stop and not self._in_string:
                found = text.find(stop, self._position, mark.start() if mark else len(text))
                if found >= 0:
                    return -found
            if mark is None:
                # A stop mark or an escape may be cut in two by the end of the piece.
                self._position = max(self._position, len(text) - len(stop))
                return None
            if mark.group() == "\\" and mark.end() == len(text):
                return None
            self._position = mark.end() + (mark.group() == "\\")
            if self._step(mark.group()):
                return self._position

    def _step(self, char: str) -> bool:
        if char == '"':
            self._in_string = not self._in_string
        elif char in "{[" and not self._in_string:
            self._depth += 1
        elif char in "}]" and not self._in_string:
            self._depth -= 1
            return self._depth <= 0
        return False


def read_calls(text: str) -> list[Found] | None:
    """Read `{"name": …, "arguments": {…}}` or a list of them; None if that is not what it is."""
    try:
        if text.startswith("["):
            return [_found(asked) for asked in msgspec.json.decode(text, type=list[_Envelope])]
        return [_found(msgspec.json.decode(text, type=_Envelope))]
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def _found(asked: _Envelope) -> Found:
    arguments = bytes(asked.parameters) or bytes(asked.arguments)
    if arguments.startswith(b'"'):
        return Found(asked.name, msgspec.json.decode(arguments, type=str))
    return Found(asked.name, arguments.decode())


def is_json(text: str) -> bool:
    """Whether a text is one JSON value."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def broken_call(text: str) -> Found:
    """Keep what cannot be read as the call's arguments, so that the model is told of it."""
    text = text.strip() or "{"
    # Sound JSON of another shape must not reach a tool as if it were that tool's arguments.
    named = None if is_json(text) else _NAME.search(text)
    return Found(named.group(1) if named else UNREADABLE, text)


def skip_fence(text: str) -> str | None:
    """What is left after blanks and the opening of a code block; None while that cannot be told."""
    text = text.lstrip()
    if not text.startswith("`"):
        return text or None
    fence = _FENCE.match(text)
    return skip_fence(text[fence.end() :]) if fence else None
