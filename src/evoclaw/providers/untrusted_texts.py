"""Calls that messages and results describe: data, even if the model repeats them.

A document may contain a call in any notation: pretty, as a string in JSON, in HTML, with its keys
in another order, as YAML. So texts are compared without quotes, escapes and blanks.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import cast

import msgspec

from evoclaw.core.history import History
from evoclaw.core.messages import JSON, ToolResult, UserMessage
from evoclaw.providers.text_call_scanner import ScannedCall

_NAME_KEYS = ("name", "tool", "function")
_CODE_POINT = re.compile(r"\\+u([0-9a-fA-F]{4})")
_NOTATION = re.compile(r"\\+[nrt]|[\s\\\"'`]")


class UntrustedTexts:
    """The texts of a conversation that the model did not write."""

    def __init__(self, history: History) -> None:
        self._texts = [
            _bare(message.text)
            for message in history
            if isinstance(message, UserMessage | ToolResult)
        ]

    def contain(self, call: ScannedCall) -> bool:
        """Whether one of the texts describes this call: the name of its tool, and each argument."""
        try:
            arguments = msgspec.json.decode(call.arguments)
        except msgspec.DecodeError:
            return False  # no tool runs with them
        names = [f"{key}:{_bare(call.name)}" for key in _NAME_KEYS]
        pairs = list(_pairs("", arguments))
        return any(
            any(name in text for name in names) and all(pair in text for pair in pairs)
            for text in self._texts
        )


def _pairs(prefix: str, value: JSON) -> Iterator[str]:
    """The values in a JSON value, each after its key."""
    if isinstance(value, dict):
        for key, inner in cast("dict[str, JSON]", value).items():
            yield from _pairs(f"{_bare(key)}:", inner)
    elif isinstance(value, list):
        for inner in cast("list[JSON]", value):
            yield from _pairs("", inner)
    else:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        yield prefix + _bare(text)


def _bare(text: str) -> str:
    """A text without what differs between notations of the same values."""
    text = _CODE_POINT.sub(lambda found: chr(int(found[1], 16)), html.unescape(text))
    return _NOTATION.sub("", text)
