"""Parses the front matter of SKILL.md: a small, strict subset of YAML.

Only PyYAML's parser events are used, so every value stays text (`no` is not false, `1.0` is not a
number). A value is a text, or a map or list of texts, one level deep. Anchors, aliases, tags,
nesting and several documents are rejected with their line number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from yaml.error import MarkedYAMLError, YAMLError
    from yaml.events import Event, NodeEvent

FrontMatterValue: TypeAlias = str | dict[str, str] | list[str]

MAX_LINES = 500
MAX_CHARACTERS = 16 << 10
_KEY = re.compile(r"[A-Za-z_][\w.-]*")
_ODD_LINE_ENDS = re.compile("[\r\x85\u2028\u2029]")
"""PyYAML ends a line at these characters; editors and most programs do not."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a UTF-16 pair: an escape can name one, no UTF-8 file can contain one."""
_NOT_PLAIN = "\"'|>[{&*!%@`#-?"
"""A text that starts with one of these is not a plain one, or not a text at all."""
_LIKE_KEY = re.compile(r":(\s|$)")
_ONE_DOCUMENT = "only one document is allowed, without `%`, `---` and `...`"
_YAML_PROBLEMS = {
    "mapping values are not allowed here": "put a text that contains a colon in quotes",
    "found unexpected end of stream": "the text has no closing quote",
    "expected <block end>, but found '<scalar>'": "remove the text after the closing quote",
    "expected '<document start>', but found '<block mapping start>'": _ONE_DOCUMENT,
    "could not find expected ':'": "expected `key: value`",
}
"""PyYAML's error messages, and the ones shown to the author of the skill."""


class FrontMatterError(ValueError):
    """A line of the front matter that is not valid."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line, self.problem = line, problem


def split_front_matter(text: str) -> tuple[list[str], str]:
    """The lines between the two `---`, and the body after them."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        raise FrontMatterError(1, "the file must start with a line `---`")
    for number, line in enumerate(lines[1 : MAX_LINES + 2], 1):
        if line.rstrip() == "---":
            return lines[1:number], "\n".join(lines[number + 1 :])
    raise FrontMatterError(1, f"no second line `---` within {MAX_LINES} lines")


def parse_front_matter(lines: list[str]) -> dict[str, FrontMatterValue]:
    """Parse the lines of the front matter."""
    for number, line in enumerate(lines, 2):
        if "\t" in line[: len(line) - len(line.lstrip())]:
            raise FrontMatterError(number, "indent with spaces, not tabs")
        if _ODD_LINE_ENDS.search(line):
            raise FrontMatterError(number, "it contains a line break other than \\n")
    if sum(map(len, lines)) > MAX_CHARACTERS:
        raise FrontMatterError(2, f"the front matter has more than {MAX_CHARACTERS:,} characters")
    return _FrontMatterParser("\n".join((*_with_quoted_description(lines), ""))).top()


def _with_quoted_description(lines: list[str]) -> list[str]:
    """The lines with an unquoted description of several indented lines in quotes.

    Authors write sentences there, also with a colon ("Use it when: …"), which YAML would read as a
    key. A description is always a text, so there is nothing else that it could mean.
    """
    at = next((i for i, line in enumerate(lines) if line.startswith("description:")), None)
    if at is None:
        return lines
    first = lines[at].partition(":")[2].strip()
    end = at + 1
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" ")):
        end += 1
    more = [line.strip() for line in lines[at + 1 : end]]
    texts = [text for text in (first, *more) if text]
    if not any(more) or texts[0][0] in _NOT_PLAIN or not any(map(_LIKE_KEY.search, texts)):
        return lines
    text = json.dumps(" ".join(texts), ensure_ascii=False)
    # As many lines as before: errors name the line of the file.
    return [*lines[:at], f"description: {text}", *[""] * (end - at - 1), *lines[end:]]


class _FrontMatterParser:
    """Builds the values from PyYAML's events; each event is checked before the next is parsed."""

    def __init__(self, text: str) -> None:
        import yaml

        self._yaml = yaml
        self._events = self._parsed(text)

    def _parsed(self, text: str) -> Iterator[Event]:
        try:
            yield from cast("Any", self._yaml).parse(text, Loader=self._yaml.SafeLoader)
        except self._yaml.YAMLError as problem:
            raise _explain(problem, text) from None
        except (ValueError, OverflowError):
            # An escape of a character that does not exist.
            raise FrontMatterError(2, "a text in quotes has an invalid escape") from None

    def top(self) -> dict[str, FrontMatterValue]:
        events = self._yaml.events
        next(self._events)  # the stream
        start = next(self._events)
        if isinstance(start, events.StreamEndEvent):
            return {}
        if not isinstance(start, events.DocumentStartEvent) or start.explicit:
            raise _error(start, _ONE_DOCUMENT)
        found = self._map(next(self._events), deeper=True)
        next(self._events)  # the document's end
        after = next(self._events)
        if not isinstance(after, events.StreamEndEvent):
            raise _error(after, _ONE_DOCUMENT)
        return found

    def _map(self, start: Event, *, deeper: bool) -> dict[str, FrontMatterValue]:
        events = self._yaml.events
        if not isinstance(start, events.MappingStartEvent):
            raise _error(start, "expected `key: value`")
        _refuse_anchor_and_tag(start)
        found: dict[str, FrontMatterValue] = {}
        while not isinstance(event := next(self._events), events.MappingEndEvent):
            key = self._text(event)
            # A key indented deeper than its map was written as `? key`.
            if not _KEY.fullmatch(key) or event.start_mark.column != start.start_mark.column:
                raise _error(event, f"expected `key: value`, got {key[:60]!r}")
            if key in found:
                raise _error(event, f"the key {key!r} occurs twice")
            found[key] = self._value(next(self._events), deeper=deeper)
        return found

    def _value(self, event: Event, *, deeper: bool) -> FrontMatterValue:
        events = self._yaml.events
        if isinstance(event, events.CollectionStartEvent) and not deeper:
            raise _error(event, "only one level of keys is allowed")
        if isinstance(event, events.MappingStartEvent):
            if event.flow_style:
                raise _error(event, "a text may not start with '{'; put it in quotes")
            # No value of the inner map is a map or a list.
            return cast("dict[str, str]", self._map(event, deeper=False))
        if isinstance(event, events.SequenceStartEvent):
            return self._list(event)
        return self._text(event)

    def _list(self, start: NodeEvent) -> list[str]:
        events = self._yaml.events
        _refuse_anchor_and_tag(start)
        found: list[str] = []
        while not isinstance(event := next(self._events), events.SequenceEndEvent):
            if isinstance(event, events.CollectionStartEvent):
                problem = "a list may contain only texts; put this one in quotes"
                raise _error(event, problem)
            found.append(self._text(event))
        return found

    def _text(self, event: Event) -> str:
        events = self._yaml.events
        if isinstance(event, events.AliasEvent):
            raise _error(event, "a text may not start with '*'; put it in quotes")
        if not isinstance(event, events.ScalarEvent):
            raise _error(event, "expected `key: value`")
        _refuse_anchor_and_tag(event)
        if _SURROGATE.search(event.value):
            raise _error(event, "a text in quotes has an invalid escape")
        return event.value


def _refuse_anchor_and_tag(event: NodeEvent) -> None:
    """Reject anchors and tags."""
    if event.anchor is not None:
        raise _error(event, "a text may not start with '&'; put it in quotes")
    if getattr(event, "tag", None) is not None:
        raise _error(event, "a text may not start with '!'; put it in quotes")


def _error(event: Event, problem: str) -> FrontMatterError:
    return FrontMatterError(event.start_mark.line + 2, problem)


def _explain(problem: YAMLError, text: str) -> FrontMatterError:
    marked = cast("MarkedYAMLError", problem)
    position = getattr(problem, "position", None)
    if position is not None:
        line = text.count("\n", 0, position)
        return FrontMatterError(line + 2, "it contains a control character")
    reason = marked.problem or "this is not valid YAML"
    mark = marked.problem_mark
    if reason.startswith("found unexpected end of stream") and marked.context_mark:
        mark = marked.context_mark
    message = _YAML_PROBLEMS.get(reason, reason)
    return FrontMatterError((mark.line if mark else 0) + 2, message)
