"""Finds the entries of an array of tables in a TOML text, so that one can be replaced as text."""

from __future__ import annotations

import re
import tomllib

from msgspec import Struct

from evoclaw.core.messages import JSON, is_array, is_object

_HEADER = re.compile(r"\s*\[.*\]\s*(#.*)?")


class TomlEntry(Struct, frozen=True):
    """One `[[name]]` with everything that belongs to it, and the comment above it."""

    start: int
    """Its first line, counted from 0."""
    end: int
    """The line after its last one."""
    text: str
    values: dict[str, JSON]


def array_entries(text: str, name: str) -> list[TomlEntry]:
    """The entries of an array of tables at the top level of a valid TOML text."""
    lines = text.split("\n")
    headers = _headers(lines)
    found: list[TomlEntry] = []
    for number, (start, path, is_entry) in enumerate(headers):
        if path != (name,) or not is_entry:
            continue
        rest = headers[number + 1 :]
        end = next(
            (line for line, other, _ in rest if other[0] != name or len(other) == 1), len(lines)
        )
        while end > start and not lines[end - 1].strip():
            end -= 1
        block = "\n".join(lines[start:end])
        found.append(TomlEntry(start, end, block, _parse(block)[name][0]))
    return found


def replace_entry(text: str, entry: TomlEntry, new: str) -> str:
    """The text with another entry in place of one; an empty one removes it."""
    lines = text.split("\n")
    before, after = lines[: entry.start], lines[entry.end :]
    if new.strip():
        return "\n".join((*before, *new.strip("\n").split("\n"), *after))
    while after and not after[0].strip():
        del after[0]
    return "\n".join((*before, *after))


def append_entry(text: str, new: str) -> str:
    """The text with one more entry, at its end."""
    kept = text.rstrip()
    return f"{kept}\n\n{new.strip()}\n" if kept else f"{new.strip()}\n"


def _headers(lines: list[str]) -> list[tuple[int, tuple[str, ...], bool]]:
    """The first line of each table, its path, and whether it is an entry of an array."""
    found: list[tuple[int, tuple[str, ...], bool]] = []
    last = 0
    for number, line in enumerate(lines):
        # A line in a text or a list of several lines only looks like a header.
        if _HEADER.fullmatch(line) and _is_toml(lines[last:number]):
            path, is_entry = _path(line)
            found.append((_comment_start(lines, last, number), path, is_entry))
            last = number
    return found


def _comment_start(lines: list[str], last: int, header: int) -> int:
    """Where the comment directly above a header starts; the header if there is none."""
    start = header
    while start > last and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    return start if _is_toml(lines[last:start]) else header


def _parse(text: str) -> dict[str, JSON]:
    # The last line of a part may end with half a line break.
    return tomllib.loads(f"{text}\n")


def _is_toml(lines: list[str]) -> bool:
    try:
        _parse("\n".join(lines))
    except ValueError:
        return False
    return True


def _path(header: str) -> tuple[tuple[str, ...], bool]:
    value: JSON = _parse(header)
    path: list[str] = []
    is_entry = False
    while value:
        if is_array(value):
            value, is_entry = value[0], True
        elif is_object(value):
            ((key, value),) = value.items()
            path.append(key)
    return tuple(path), is_entry
