"""Hermes-style calls in a model's text: `<tool_call>{"name": …, "arguments": …}</tool_call>`."""

from __future__ import annotations

import re
from enum import Enum

from evoclaw.core.events import ReasoningDelta, TextDelta
from evoclaw.providers.text_call_scanner import (
    ENDS_JSON,
    Deltas,
    JsonSpan,
    ScannedCall,
    broken_call,
    read_calls,
    skip_fence,
)


class _State(Enum):
    TEXT = "text"
    THINKING = "thinking"
    CALL = "call"
    AFTER = "after"
    IGNORED = "ignored"


_OPEN, _CLOSE, _RESULT = "<tool_call>", "</tool_call>", "<tool_response>"
_THINK, _THOUGHT = "<think>", "</think>"
_TAG = re.compile(rf"(?:```\w*\s*)?{_OPEN}|{_THINK}|{_RESULT}")
_PARTIAL_TAG = re.compile(r"(?:`{1,2}|(?:```\w*\s*)?(?:<\w*)?)$")
_LEFT_OVER = re.compile(r"[\s`,}\]]*")


class HermesScanner:
    """`<tool_call>{"name": …, "arguments": …}</tool_call>`, any number of them."""

    def __init__(self) -> None:
        self.calls: list[ScannedCall] = []
        self._state = _State.TEXT
        self._buffer = ""
        self._waiting: list[str] = []
        self._span = JsonSpan()

    def feed(self, piece: str) -> Deltas:
        """Scan a piece; return the deltas that can be shown already."""
        self._waiting.append(piece)
        if self._state is _State.CALL and not ENDS_JSON.search(piece):
            # Joining the buffer for every piece of a long argument would take quadratic time.
            return []
        return self._read()

    def finish(self) -> Deltas:
        """End of text: a call without its closing tag counts only if its JSON is complete."""
        shown = self._read()
        rest, self._buffer = self._buffer, ""
        if self._state is _State.CALL:
            self.calls.append(broken_call(rest))
        elif rest and self._state is _State.TEXT:
            shown.append(TextDelta(rest))
        elif rest and self._state is _State.THINKING:
            shown.append(ReasoningDelta(rest))
        return shown

    def _read(self) -> Deltas:
        self._buffer += "".join(self._waiting)
        self._waiting.clear()
        shown: Deltas = []
        while self._advance(shown):
            pass
        return shown

    def _advance(self, shown: Deltas) -> bool:
        match self._state:
            case _State.TEXT:
                return self._read_text(shown)
            case _State.THINKING:
                return self._read_thought(shown)
            case _State.CALL:
                return self._read_call()
            case _State.AFTER:
                return self._read_after()
            case _:
                self._buffer = ""
                return False

    def _read_text(self, shown: Deltas) -> bool:
        tag = _TAG.search(self._buffer)
        if tag is None:
            held = _PARTIAL_TAG.search(self._buffer)
            ready = held.start() if held and _may_be_tag(held.group()) else len(self._buffer)
            self._show(shown, TextDelta, ready)
            return False
        self._show(shown, TextDelta, tag.start())
        self._buffer = self._buffer[len(tag.group()) :]
        if tag.group() == _THINK:
            self._state = _State.THINKING
        elif tag.group() == _RESULT:
            self._state = _State.IGNORED
        else:
            self._start_call()
        return True

    def _read_thought(self, shown: Deltas) -> bool:
        end = self._buffer.find(_THOUGHT)
        if end < 0:
            held = _partial(self._buffer, _THOUGHT)
            self._show(shown, ReasoningDelta, len(self._buffer) - held)
            return False
        self._show(shown, ReasoningDelta, end)
        self._buffer = self._buffer[len(_THOUGHT) :]
        self._state = _State.TEXT
        return True

    def _read_call(self) -> bool:
        rest = skip_fence(self._buffer)
        if rest is None:
            return False
        self._buffer = rest
        end = self._call_end()
        if end is None:
            return False
        found = read_calls(rest[:end]) if end > 0 else None
        if found is None:
            self.calls.append(broken_call(rest[: abs(end)]))
            self._state = _State.IGNORED
            return True
        self.calls.extend(found)
        self._buffer, self._state = rest[end:], _State.AFTER
        return True

    def _call_end(self) -> int | None:
        if self._buffer[0] in "{[":
            return self._span.end(self._buffer, _CLOSE)
        end = self._buffer.find(_CLOSE)
        return -end if end >= 0 else None

    def _read_after(self) -> bool:
        left_over = _LEFT_OVER.match(self._buffer)
        rest = self._buffer[left_over.end() if left_over else 0 :]
        if not rest or (_CLOSE.startswith(rest) and rest != _CLOSE):
            return False
        if rest.startswith("{"):
            self._buffer = rest
            self._start_call()
            return True
        self._buffer = rest.removeprefix(_CLOSE)
        self._state = _State.AFTER if rest.startswith(_CLOSE) else _State.TEXT
        return True

    def _start_call(self) -> None:
        self._state, self._span = _State.CALL, JsonSpan()

    def _show(
        self,
        shown: Deltas,
        kind: type[TextDelta | ReasoningDelta],
        count: int,
    ) -> None:
        if count > 0:
            shown.append(kind(self._buffer[:count]))
            self._buffer = self._buffer[count:]


def _may_be_tag(text: str) -> bool:
    tag = text[text.find("<") :] if "<" in text else ""
    return bool(text) and any(mark.startswith(tag) for mark in (_OPEN, _THINK, _RESULT))


def _partial(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the start of `mark`."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)
