"""ReAct-style calls in a model's text: an `Action:` line, then `Action Input:` with JSON."""

from __future__ import annotations

import re
from enum import Enum

from evoclaw.core.events import ReasoningDelta, TextDelta
from evoclaw.providers.text_call_scanner import (
    ENDS_JSON,
    UNREADABLE_CALL,
    Deltas,
    JsonSpan,
    ScannedCall,
    is_json,
    skip_fence,
)

_LABEL = re.compile(
    r"[ \t]*\**(thought|action input|action|observation|final answer)\**[ \t]*:", re.I
)
_TRIM = re.compile(r"\**[ \t]*")
_LABELS = ("thought:", "action input:", "action:", "observation:", "final answer:")


class _Part(Enum):
    TEXT = "text"
    THOUGHT = "thought"
    NAME = "action"
    INPUT = "action input"
    GAP = "gap"
    """After a name or an input: the text until the next label is ignored."""
    ANSWER = "final answer"
    IGNORED = "observation"
    """The model made up a result; the rest of its text is ignored."""


class ReActScanner:
    """Thoughts become reasoning; `Final Answer:` and text without a label become text."""

    def __init__(self) -> None:
        self.calls: list[ScannedCall] = []
        self._part = _Part.TEXT
        self._buffer = ""
        self._waiting: list[str] = []
        self._at_line_start = True
        self._after_label = False
        self._name: str | None = None
        self._span = JsonSpan()
        self._thoughts: list[str] = []
        self._has_text = False

    def feed(self, piece: str) -> Deltas:
        """Scan a piece; return the deltas that can be shown already."""
        self._waiting.append(piece)
        if self._part is _Part.INPUT and not ENDS_JSON.search(piece):
            return []
        return self._read()

    def finish(self) -> Deltas:
        """End of text: an action without input is a call without arguments."""
        shown = self._read()
        rest, self._buffer = self._buffer, ""
        if self._part is _Part.NAME:
            self._name = _clean(rest)
        elif self._part is _Part.INPUT:
            self._call(rest.strip() or "{}")
        elif self._part is not _Part.IGNORED:
            self._emit(rest, shown)
        if self._name is not None:
            self._call("{}")
        if not self.calls and not self._has_text:
            # If the model wrote only thoughts, they are its answer.
            shown.extend(TextDelta(text) for text in self._thoughts)
        return shown

    def _read(self) -> Deltas:
        self._buffer += "".join(self._waiting)
        self._waiting.clear()
        shown: Deltas = []
        while self._buffer and self._advance(shown):
            pass
        return shown

    def _advance(self, shown: Deltas) -> bool:
        if self._after_label and not self._trim():
            return False
        match self._part:
            case _Part.IGNORED:
                self._buffer = ""
                return False
            case _Part.ANSWER:
                return self._emit(self._take(len(self._buffer)), shown)
            case _Part.NAME:
                return self._read_name()
            case _Part.INPUT:
                return self._read_input()
            case _:
                return self._read_line(shown)

    def _trim(self) -> bool:
        """Drop the blanks (and the end of bold markup) after a label."""
        trim = _TRIM.match(self._buffer)
        end = trim.end() if trim else 0
        if end == len(self._buffer):
            return False
        self._take(end)
        self._after_label = False
        return True

    def _read_name(self) -> bool:
        end = self._buffer.find("\n")
        if end < 0:
            return False
        self._name = _clean(self._take(end + 1))
        self._part, self._at_line_start = _Part.GAP, True
        return True

    def _read_input(self) -> bool:
        rest = skip_fence(self._buffer)
        if rest is None:
            return False
        self._buffer = rest
        if rest[0] != "{":
            # Not JSON: the model gets it back in an error, and it is not scanned for calls.
            return False
        end = self._span.end(rest)
        if end is None:
            return False
        arguments = self._take(end)
        self._call(arguments)
        self._part = _Part.GAP if is_json(arguments) else _Part.IGNORED
        self._at_line_start = False
        return True

    def _read_line(self, shown: Deltas) -> bool:
        if self._at_line_start:
            label = _LABEL.match(self._buffer)
            if label is not None:
                self._take(label.end())
                self._switch(label.group(1).lower())
                return True
            if _may_be_label(self._buffer):
                return False
        end = self._buffer.find("\n") + 1
        self._at_line_start = end > 0
        self._emit(self._take(end or len(self._buffer)), shown)
        return True

    def _switch(self, label: str) -> None:
        if self._name is not None and label != "action input":
            self._call("{}")
        self._span = JsonSpan()
        self._at_line_start, self._after_label = False, True
        self._part = _Part(label)

    def _emit(self, text: str, shown: Deltas) -> bool:
        if not text or self._part is _Part.GAP:
            return False
        if self._part is _Part.THOUGHT:
            self._thoughts.append(text)
            shown.append(ReasoningDelta(text))
        else:
            self._has_text = self._has_text or not text.isspace()
            shown.append(TextDelta(text))
        return False

    def _call(self, arguments: str) -> None:
        self.calls.append(ScannedCall(self._name or UNREADABLE_CALL, arguments))
        self._name = None

    def _take(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken


def _clean(name: str) -> str:
    return name.strip().strip("*`'\"[] ")


def _may_be_label(line: str) -> bool:
    line = line.lstrip(" \t*").lower().replace("*", "")
    return "\n" not in line and any(label.startswith(line) for label in _LABELS)
