"""Find calls that a model writes into its text as JSON, although it could call tools natively.

Small models do: bare, in a code block or a tag, alone, in a list, with prose around. Such JSON is a
call only if it names an offered tool and its arguments fit the tool's schema, and only if the model
does not repeat it from a message or a result. All other text stays text. A model that was told to
write its calls like this may get the tool or the arguments wrong: then it must get an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

import msgspec

from evoclaw.core.events import TextDelta
from evoclaw.core.messages import JSON
from evoclaw.core.toolset import Toolset
from evoclaw.providers.text_call_scanner import (
    ENDS_JSON,
    Deltas,
    JsonSpan,
    ScannedCall,
    broken_call,
)

_TAG, _TAG_END, _FENCE = "<tool_call>", "</tool_call>", "```"
_CALL_LANGUAGES = frozenset(
    {"", "json", "jsonc", "json5", "text", "plaintext", "xml", "tool", "tool_call", "tool_code"}
)
"""The languages of code blocks that may be calls."""
_OPENING = re.compile(r"```(?P<language>[^\s`]*)[ \t]*\n|<tool_call>|(?=[{\[])")
_OPENING_SO_FAR = re.compile(r"(?:`{1,2}|```[^\s`]*[ \t]*|<[a-z_]{0,9})\Z")
_KEY = re.compile(
    r'[\[\s]*\{{1,2}\s*"(?:name|arguments|parameters|function|type|id|tool|tool_calls)"\s*:'
)
_KEY_SO_FAR = re.compile(r'[\[\s]*(?:\{{1,2}\s*(?:"\w{0,10}(?:"\s*)?)?)?\Z')
_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:')
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'", re.S)
_BARE_QUOTE = re.compile(r'(?<!\\)"')
_ESCAPE = re.compile(r"\\(.)", re.S)
_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_LEFT_AFTER_CALL = " \t\r\n,}"
_SPECIAL = re.compile(r"[{\[<`]")
_MAX_JOINED_CHARS = 256
"""Characters that are joined for every piece."""


class _WrittenCall(msgspec.Struct):
    """The forms in which models write a call."""

    name: str = ""
    tool: str = ""
    arguments: dict[str, JSON] | str | None = None
    parameters: dict[str, JSON] | str | None = None
    function: _WrittenCall | str | None = None
    tool_calls: list[_WrittenCall] | None = None


class _JsonState(Enum):
    TEXT = "text"
    OPEN = "open"
    """After the start of a code block, or after a tag: JSON may follow."""
    JSON = "json"
    AFTER = "after"
    """After a call: its code block or tag ends, or another call follows."""
    CODE = "code"
    """In a code block that is no call."""
    DATA = "data"
    """In JSON that is no call."""


class _Line:
    """What was shown of the current line."""

    __slots__ = ("_start", "_ticks")

    def __init__(self) -> None:
        self._start, self._ticks = "", 0

    @property
    def is_quoted(self) -> bool:
        """Whether what follows is in a quotation, or in code within the line."""
        return self._start.startswith(">") or self._ticks % 2 == 1

    @property
    def is_blank(self) -> bool:
        return not self._start

    def add(self, text: str) -> None:
        """Note more text."""
        _, newline, last = text.rpartition("\n")
        if newline:
            self._start, self._ticks = "", 0
        self._start = self._start or last.lstrip()[:1]
        self._ticks += last.count("`")


class JsonCallScanner:
    """Splits a streamed reply into text and calls."""

    def __init__(
        self,
        tools: Toolset | None,
        is_repeated: Callable[[ScannedCall], bool] = lambda call: False,
    ) -> None:
        """Find calls of these tools, unless the model only repeats one.

        Args:
            tools: The offered tools; None: everything with a name and arguments is a call.
            is_repeated: Whether a message or a result describes the call.
        """
        self.calls: list[ScannedCall] = []
        self.held: list[str] = []
        """The text of these calls, as the model wrote it."""
        self._tools, self._is_repeated = tools, is_repeated
        self._state = _JsonState.TEXT
        self._waiting: list[str] = []
        self._buffer = ""
        self._opening = ""
        """What was held back before the buffer: the start of a code block, or a tag."""
        self._fenced: bool = False
        self._line = _Line()
        self._span = JsonSpan()
        self._data_shown = 0
        """Characters of the buffer that were shown already."""
        self._shown: list[str] = []

    def feed(self, piece: str) -> Deltas:
        """Scan a piece; return the text that cannot be part of a call."""
        if self._state is _JsonState.TEXT and not self._buffer and not _SPECIAL.search(piece):
            self._line.add(piece)
            return [TextDelta(piece)]
        self._waiting.append(piece)
        if (
            self._state is _JsonState.JSON
            and len(self._buffer) > _MAX_JOINED_CHARS
            and not ENDS_JSON.search(piece)
        ):
            # Joining the buffer for every piece of a long argument would take quadratic time.
            return []
        return self._read()

    def finish(self, *, cut_short: bool = False) -> Deltas:
        """End of text: an unfinished call is text, unless only its last brace is missing.

        Args:
            cut_short: The model did not end the text by itself.
        """
        shown = self._read()
        if self._state is _JsonState.JSON and not cut_short:
            self._close_last_call()
        rest = self._opening + self._buffer[self._data_shown :]
        self._opening = self._buffer = ""
        if self._state is not _JsonState.AFTER or rest.strip(_LEFT_AFTER_CALL):
            self._emit(rest)
        return shown + self._take_shown()

    def _read(self) -> Deltas:
        self._buffer += "".join(self._waiting)
        self._waiting.clear()
        steps = {
            _JsonState.TEXT: self._read_text,
            _JsonState.OPEN: self._read_open,
            _JsonState.JSON: self._read_json,
            _JsonState.AFTER: self._read_after,
            _JsonState.CODE: self._read_code,
            _JsonState.DATA: self._read_data,
        }
        while self._buffer and steps[self._state]():
            pass
        return self._take_shown()

    def _take_shown(self) -> Deltas:
        """What is shown by now, as one delta."""
        shown, self._shown = "".join(self._shown), []
        return [TextDelta(shown)] if shown else []

    def _read_text(self) -> bool:
        """Show text up to the next opening; False if more text is needed."""
        while opening := _OPENING.search(self._buffer):
            self._show(opening.start())
            if self._line.is_quoted:
                self._show(max(len(opening.group()), 1))
                continue
            self._opening = self._cut(len(opening.group()))
            self._fenced = opening["language"] is not None
            code = self._fenced and opening["language"].lower() not in _CALL_LANGUAGES
            self._state = _JsonState.CODE if code else _JsonState.OPEN
            return True
        held = _OPENING_SO_FAR.search(self._buffer)
        self._show(held.start() if held else len(self._buffer))
        return False

    def _read_open(self) -> bool:
        rest = self._buffer.lstrip()
        if rest.startswith(_TAG):
            self._opening += self._cut(len(self._buffer) - len(rest) + len(_TAG))
            return True
        if not rest or _TAG.startswith(rest):
            return False
        if rest[0] in "{[":
            self._opening += self._cut(len(self._buffer) - len(rest))
            self._state, self._span = _JsonState.JSON, JsonSpan()
        else:
            self._state = _JsonState.CODE if self._fenced else _JsonState.TEXT
            self._show(0)
        return True

    def _read_json(self) -> bool:
        if not _KEY.match(self._buffer):
            if _KEY_SO_FAR.match(self._buffer):
                return False
            found = None
        else:
            end = self._span.end(self._buffer)
            if end is None:
                return False
            found = self._calls_in(self._buffer[:end])
            if found:
                self.calls.extend(found)
                self.held.append(self._opening + self._cut(end))
                self._opening = ""
                self._state = _JsonState.AFTER
                return True
        self._show(0)
        self._state, self._span = (_JsonState.CODE if self._fenced else _JsonState.DATA), JsonSpan()
        return True

    def _close_last_call(self) -> None:
        """Take a call whose arguments are complete, and which lacks the brace after them."""
        text = self._buffer.rstrip()
        for end in (_FENCE, _TAG_END):
            text = text.removesuffix(end).rstrip()
        found = self._calls_in(f"{text}}}") if text.endswith("}") or self._tools is None else []
        if found:
            self.calls.extend(found)
            self.held.append(self._opening + self._buffer)
            self._opening = self._buffer = ""
            self._state = _JsonState.AFTER

    def _read_after(self) -> bool:
        rest = self._buffer.lstrip(_LEFT_AFTER_CALL)
        ends = (_TAG_END, _FENCE) if self._fenced else (_TAG_END,)
        if not rest or any(end.startswith(rest) and end != rest for end in (*ends, _TAG)):
            return False
        end = next((end for end in ends if rest.startswith(end)), "")
        if end:
            self._buffer = rest[len(end) :]
            self._fenced = self._fenced and end != _FENCE
            self._state = _JsonState.AFTER
            return True
        if rest.startswith((_TAG, "{", "[")):
            self._buffer, self._state = rest, _JsonState.OPEN
        else:
            self._state = _JsonState.CODE if self._fenced else _JsonState.TEXT
        return True

    def _read_code(self) -> bool:
        """Show a code block to its end."""
        self._show(0)
        while "\n" in self._buffer:
            end = self._buffer.index("\n") + 1
            closes = self._line.is_blank and self._buffer[:end].strip() == _FENCE
            self._show(end)
            if closes:
                self._state, self._fenced = _JsonState.TEXT, False
                return True
        if not self._line.is_blank or not _FENCE.startswith(self._buffer.strip()):
            self._show(len(self._buffer))
        return False

    def _read_data(self) -> bool:
        """Show JSON to its end, or to a blank line: a brace in prose may never be closed."""
        end = self._span.end(self._buffer)
        blank = _BLANK_LINE.search(self._buffer, max(self._data_shown - 2, 0))
        if blank is not None and (end is None or blank.start() < end):
            end = max(blank.start(), self._data_shown)
        if end is None:
            self._emit(self._buffer[self._data_shown :])
            self._data_shown = len(self._buffer)
            return False
        self._emit(self._cut(end)[self._data_shown :])
        self._data_shown = 0
        self._state = _JsonState.TEXT
        return True

    def _calls_in(self, text: str) -> list[ScannedCall]:
        """The calls in a JSON value; none unless each is valid and new."""
        found = calls_in(text)
        if self._tools is None:
            if not _ARGUMENTS.search(text):
                return []
            found = found or [broken_call(text)]
        if any(not self._is_valid(call) or self._is_repeated(call) for call in found):
            return []
        return found

    def _is_valid(self, call: ScannedCall) -> bool:
        if self._tools is None:
            return True
        found = self._tools.find(call.name)
        if found is None:
            return False
        return found[1].is_valid(msgspec.json.decode(call.arguments))

    def _show(self, count: int) -> None:
        """Show what was held back, and so many characters of the buffer."""
        opening, self._opening = self._opening, ""
        self._emit(opening + self._cut(count))

    def _emit(self, text: str) -> None:
        if text:
            self._line.add(text)
            self._shown.append(text)

    def _cut(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken


def calls_in(text: str) -> list[ScannedCall]:
    """The calls that a JSON value describes, whatever their tools; none if it is anything else."""
    if text.startswith("{{"):
        text = text[1:-1]  # as in a template, where braces are doubled
    for form in (text, _repaired(text)):
        try:
            if form.startswith("["):
                written = msgspec.json.decode(form, type=list[_WrittenCall])
            else:
                written = [msgspec.json.decode(form, type=_WrittenCall)]
            return [_to_call(one) for call in written for one in _unwrapped(call)]
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError, ValueError):
            continue
    return []


def _repaired(text: str) -> str:
    """JSON with the escapes that models forget: of lone backslashes, line breaks and quotes."""
    return _STRING.sub(lambda found: _escaped(found.group()), text)


def _escaped(string: str) -> str:
    if string.startswith("'"):
        inner = string[1:-1].replace("\\'", "'")
        string = '"' + _BARE_QUOTE.sub(r'\\"', inner) + '"'
    string = _ESCAPE.sub(
        lambda found: found.group() if found[1] in '"\\/bfnrtu' else f"\\{found.group()}", string
    )
    return string.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _unwrapped(call: _WrittenCall) -> list[_WrittenCall]:
    if call.tool_calls is not None:
        return [one for inner in call.tool_calls for one in _unwrapped(inner)]
    return [call.function if isinstance(call.function, _WrittenCall) else call]


def _to_call(call: _WrittenCall) -> ScannedCall:
    named = call.function if isinstance(call.function, str) else ""
    arguments = call.parameters if call.arguments is None else call.arguments
    if isinstance(arguments, str):
        arguments = msgspec.json.decode(arguments, type=dict[str, JSON])
    name = call.name or call.tool or named
    if not name:
        raise ValueError("no name")
    return ScannedCall(name, msgspec.json.encode(arguments or {}).decode())
