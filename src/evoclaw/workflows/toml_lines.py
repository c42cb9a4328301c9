"""Line numbers of keys in a TOML text, for error messages; approximate, without parsing it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from evoclaw.core.toml import open_quote

TomlKeys: TypeAlias = tuple[str, ...]
"""The path to a value: its tables, then its own key; numbers are indices of an array."""

_NOISE = re.compile(r"[\s\"']")


class TomlLines:
    """The lines of a TOML text, by key."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._line_of_keys: dict[TomlKeys, int] = {}
        for line, keys in _keys(self._lines):
            self._line_of_keys.setdefault(keys, line)

    def line(self, keys: TomlKeys, fragment: str = "") -> int:
        """The line of a value, or of the table it is in; 0 if there is none.

        Args:
            keys: The path of the value.
            fragment: A part of the value, which may span several lines.
        """
        tries = (self._line_of_keys.get(keys[:end], 0) for end in range(len(keys), 0, -1))
        line = next(filter(None, tries), 0)
        fragment = fragment.partition("\n")[0]
        if fragment and line:
            for number, text in enumerate(self._lines[line - 1 :], line):
                if fragment in text:
                    return number
                if number > line and text.lstrip().startswith("["):
                    break
        return line


def _keys(lines: list[str]) -> Iterator[tuple[int, TomlKeys]]:
    """Each line that starts a table or sets a key, with the path of it."""
    here: TomlKeys = ()
    arrays: Counter[TomlKeys] = Counter()
    quote = ""
    for number, line in enumerate(lines, 1):
        inside, quote = bool(quote), open_quote(line, quote)
        text = line.strip()
        if inside or text.startswith("#"):
            continue
        if text.startswith("["):
            here = _table(text, arrays)
            yield number, here
        elif "=" in text:
            name = _NOISE.sub("", text.partition("=")[0])
            yield number, (*here, *name.split("."))


def _table(header: str, arrays: Counter[TomlKeys]) -> TomlKeys:
    keys: TomlKeys = ()
    names = _NOISE.sub("", header.strip("[").partition("]")[0]).split(".")
    for depth, name in enumerate(names, 1):
        plain = (*keys, name)
        if depth == len(names) and header.startswith("[["):
            arrays[plain] += 1
        # A table below an array of tables belongs to its last element.
        keys = (*plain, str(arrays[plain] - 1)) if plain in arrays else plain
    return keys
