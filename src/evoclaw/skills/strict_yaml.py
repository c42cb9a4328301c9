"""A YAML parser with limits, for files from untrusted sources: values as in JSON, nothing else.

Only PyYAML's parser events are used. Anchors, aliases, tags, keys that occur twice and several
documents are rejected with their line number. A word without quotes is a text unless JSON has a
value of that spelling: `no` and `2026-01-01` are texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_object

if TYPE_CHECKING:
    from yaml.events import Event, NodeEvent

MAX_YAML_BYTES = 32 * 1024
"""PyYAML's parser is slow: this many bytes can take a second."""
MAX_YAML_DEPTH = 32
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_NUMBER = re.compile(r"[-+]?([0-9]{1,18}\.[0-9]{0,18}|\.[0-9]{1,18})([eE][-+]?[0-9]{1,3})?")
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_yaml(text: str, name: str) -> dict[str, JSON]:
    """Parse YAML; raise `ConfigError` for every problem."""
    if len(text.encode(errors="replace")) > MAX_YAML_BYTES:
        raise ConfigError(f"{name} has more than {MAX_YAML_BYTES // 1024} KB")
    return _YamlReader(text, name).document()


class _YamlReader:
    def __init__(self, text: str, name: str) -> None:
        import yaml

        self._yaml, self._name = yaml, name
        self._events = self._parsed(text)

    def _parsed(self, text: str) -> Iterator[Event]:
        try:
            yield from cast("Any", self._yaml).parse(text, Loader=self._yaml.SafeLoader)
        except self._yaml.YAMLError as problem:
            mark = getattr(problem, "problem_mark", None)
            where = f", line {mark.line + 1}" if mark else ""
            reason = getattr(problem, "problem", None) or "it contains a control character"
            raise ConfigError(f"{self._name}{where} is not YAML: {reason}") from None
        except (ValueError, OverflowError):
            raise ConfigError(f"{self._name}: a text in quotes has an invalid escape") from None

    def document(self) -> dict[str, JSON]:
        events = self._yaml.events
        next(self._events)  # the stream
        start = next(self._events)
        if isinstance(start, events.StreamEndEvent):
            return {}
        value = self._value(next(self._events), 0)
        next(self._events)  # the document's end
        if not isinstance(after := next(self._events), events.StreamEndEvent):
            raise self._error(after, "only one document is allowed")
        if not is_object(value):
            raise self._error(start, "it must consist of lines `key: value`")
        return value

    def _value(self, event: Event, depth: int) -> JSON:
        events = self._yaml.events
        if depth > MAX_YAML_DEPTH:
            raise self._error(event, "it is nested too deeply")
        if isinstance(event, events.AliasEvent):
            raise self._error(event, "aliases (`*name`) are not allowed; write the value again")
        self._refuse_anchor_and_tag(cast("NodeEvent", event))
        if isinstance(event, events.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, events.SequenceStartEvent):
            found: list[JSON] = []
            while not isinstance(item := next(self._events), events.SequenceEndEvent):
                found.append(self._value(item, depth + 1))
            return found
        table: dict[str, JSON] = {}
        while not isinstance(key_event := next(self._events), events.MappingEndEvent):
            key = self._value(key_event, depth + 1)
            if not isinstance(key, str):
                raise self._error(key_event, "a key must be a text; put it in quotes")
            if key in table:
                raise self._error(key_event, f"the key {key[:60]!r} occurs twice")
            table[key] = self._value(next(self._events), depth + 1)
        return table

    def _scalar(self, event: Any) -> JSON:
        text: str = event.value
        if _SURROGATE.search(text):
            raise self._error(event, "a text in quotes has an invalid escape")
        if event.style is not None:  # in quotes, or a block of text
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text):
            return int(text)
        return float(text) if _NUMBER.fullmatch(text) else text

    def _refuse_anchor_and_tag(self, event: NodeEvent) -> None:
        if event.anchor is not None:
            raise self._error(event, "anchors (`&name`) are not allowed")
        if getattr(event, "tag", None) is not None:
            raise self._error(event, "tags (`!name`) are not allowed")

    def _error(self, event: Event, problem: str) -> ConfigError:
        return ConfigError(f"{self._name}, line {event.start_mark.line + 1}: {problem}")
