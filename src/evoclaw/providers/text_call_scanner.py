"""Scan the streamed text of a model for calls; shared by the Hermes and ReAct scanners.

Calls are found by parsing the JSON, not by searching the next tag: text that a model copies into an
argument may contain tags, which must not become a second call. For the same reason nothing is
scanned after a broken call, or after a result that the model made up.
"""

from __future__ import annotations

import re
from typing import Protocol, TypeAlias

import msgspec

from evoclaw.core.events import ReasoningDelta, TextDelta

UNREADABLE_CALL = "unreadable_call"
"""The name of a call without a readable name; no tool has it, so the model gets an error."""

ENDS_JSON = re.compile(r"[}\]<>]")
"""A piece without any of these ends neither a JSON value nor a tag."""

_BRACKETS = re.compile(r'["\\{}\[\]]')
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,128})"')
_FENCE = re.compile(r"```\w*(?=[\s{\[])")


Deltas: TypeAlias = list[TextDelta | ReasoningDelta]


class ScannedCall(msgspec.Struct, frozen=True):
    """A call as the model wrote it."""

    name: str
    arguments: str


class CallScanner(Protocol):
    """Splits a streamed reply into text, reasoning and calls."""

    calls: list[ScannedCall]

    def feed(self, piece: str) -> Deltas:
        """Scan a piece; return the deltas that can be shown already."""
        ...

    def finish(self) -> Deltas:
        """End of text: return the remaining deltas; `calls` is complete."""
        ...


class _Envelope(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    parameters: msgspec.Raw = msgspec.Raw()
    """Llama's name for the arguments."""


class JsonSpan:
    """Finds the end of a JSON value in a growing text, in linear time."""

    def __init__(self) -> None:
        self._depth = 0
        self._position = 0
        self._in_string = False

    def end(self, text: str, stop: str = "") -> int | None:
        """The end of the value that `text` starts with; negative if `stop` comes first.

        Args:
            text: The text of the last call, extended.
            stop: A mark that cannot be part of the value, except within a string.
        """
        while True:
            mark = _BRACKETS.search(text, self._position)
            if stop and not self._in_string:
                found = text.find(stop, self._position, mark.start() if mark else len(text))
                if found >= 0:
                    return -found
            if mark is None:
                # The end of the piece may split a stop mark or an escape.
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


def read_calls(text: str) -> list[ScannedCall] | None:
    """Parse `{"name": …, "arguments": {…}}`, or a list of them; None if the text is neither."""
    try:
        if text.startswith("["):
            return [_to_call(call) for call in msgspec.json.decode(text, type=list[_Envelope])]
        return [_to_call(msgspec.json.decode(text, type=_Envelope))]
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def _to_call(envelope: _Envelope) -> ScannedCall:
    arguments = bytes(envelope.parameters) or bytes(envelope.arguments)
    if arguments.startswith(b'"'):
        return ScannedCall(envelope.name, msgspec.json.decode(arguments, type=str))
    return ScannedCall(envelope.name, arguments.decode())


def is_json(text: str) -> bool:
    """Whether a text is one JSON value."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def broken_call(text: str) -> ScannedCall:
    """A call with unreadable text as its arguments, so that the model gets an error."""
    text = text.strip() or "{"
    # Valid JSON of another form must not reach a tool as its arguments.
    named = None if is_json(text) else _NAME.search(text)
    return ScannedCall(named.group(1) if named else UNREADABLE_CALL, text)


def skip_fence(text: str) -> str | None:
    """The text after blanks and the start of a code block; None while more text is needed."""
    text = text.lstrip()
    if not text.startswith("`"):
        return text or None
    fence = _FENCE.match(text)
    return skip_fence(text[fence.end() :]) if fence else None
