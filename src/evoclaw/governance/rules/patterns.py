r"""Patterns of paths and words: whether a text matches, and whether two patterns overlap.

`*` and `?` match characters of one name, `**` any number of folders, `\x` the character x itself,
and NUL any text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from evoclaw.shell.effects import unescape

_TOKEN = re.compile(r"\\(.)|\[!?\]?(?:[^\]\\]|\\.)*\]|(.)", re.DOTALL)
_SPECIAL_CHARS = re.compile(r"[\\*?\[\0]")
_PLAIN_PATH = re.compile(r"(?:/[^/.\\*?\[\0][^/\\*?\[\0]*)+")
"""A path without wildcards and escapes, in which no name starts with a dot."""
Tokens: TypeAlias = tuple[str, ...]
"""Characters, `ANY_CHAR` and `ANY_CHARS`."""
ANY_CHAR, ANY_CHARS = "one letter", "some letters"


@lru_cache(4096)
def tokens(pattern: str) -> Tokens:
    """Split a pattern into tokens."""
    made: list[str] = []
    for found in _TOKEN.finditer(pattern):
        escaped, plain = found[1], found[2]
        if escaped is not None:
            made.append(escaped)
        elif plain is None or plain == "?":
            made.append(ANY_CHAR)
        elif plain in "*\0":
            made.append(ANY_CHARS)
        else:
            made.append(plain)
    return tuple(made)


def is_plain(pattern: str) -> bool:
    """Whether a pattern has no wildcards and no escapes."""
    return _SPECIAL_CHARS.search(pattern) is None


@lru_cache(8192)
def patterns_overlap(first: str, second: str) -> bool:
    """Whether some text matches both patterns."""
    if is_plain(first) and is_plain(second):
        return first == second
    return _tokens_overlap(tokens(first), tokens(second))


def _tokens_overlap(first: Tokens, second: Tokens) -> bool:
    """Walk both token lists at once, over every pair of positions that can be reached."""
    reached = {(0, 0)}
    pending = [(0, 0)]
    while pending:
        i, j = pending.pop()
        if i == len(first) and j == len(second):
            return True
        for step in _steps(first, second, i, j):
            if step not in reached:
                reached.add(step)
                pending.append(step)
    return False


def _steps(first: Tokens, second: Tokens, i: int, j: int) -> list[tuple[int, int]]:
    a = first[i] if i < len(first) else None
    b = second[j] if j < len(second) else None
    steps: list[tuple[int, int]] = []
    if a == ANY_CHARS:
        steps.append((i + 1, j))
        if b is not None and b != ANY_CHARS:
            steps.append((i, j + 1))
    if b == ANY_CHARS:
        steps.append((i, j + 1))
        if a is not None and a != ANY_CHARS:
            steps.append((i + 1, j))
    if a is None or b is None or ANY_CHARS in (a, b):
        return steps
    if a == b or ANY_CHAR in (a, b):
        steps.append((i + 1, j + 1))
    return steps


def _without_escapes(part: str) -> str:
    """A name without needless escapes, so that equal names compare equal."""
    text = unescape(part)
    return text if text is not None and is_plain(text) else part


def covers(rule: Sequence[str], path: Sequence[str], *, tree: bool) -> bool:
    """Whether a rule's path can be this path or above it; with `tree`, also below it."""
    return _covers(tuple(rule), tuple(path), 0, 0, tree)


def _covers(rule: Tokens, path: Tokens, j: int, i: int, tree: bool) -> bool:
    while True:
        if j == len(rule):
            return True
        wide = rule[j] == "**"
        if i == len(path):
            return tree or all(part == "**" for part in rule[j:])
        if path[i] == "**":
            return _covers(rule, path, j, i + 1, tree) or _covers(rule, path, j + 1, i, tree)
        if wide:
            return _covers(rule, path, j + 1, i, tree) or _covers(rule, path, j, i + 1, tree)
        if rule[j] != path[i] and not patterns_overlap(rule[j], path[i]):
            return False
        i, j = i + 1, j + 1


def path_parts(path: str) -> tuple[str, ...] | None:
    """The names of an absolute path or pattern, without `.` and `..`; None if it may be any."""
    if _PLAIN_PATH.fullmatch(path):
        names = path[1:].split("/")
        return None if names[0] == "proc" and _is_process_path(names) else tuple(names)
    made: list[str] = []
    for part in path.split("/"):
        if part in ("", ".", "\\."):
            continue
        if part == "..":
            if made and made[-1] == "**":
                return None
            del made[-1:]
        elif part.startswith(".") and not is_plain(part) and patterns_overlap(part, ".."):
            return None
        else:
            made.append(_without_escapes(part) if "\\" in part else part)
    return None if made[:1] == ["proc"] and _is_process_path(made) else tuple(made)


def _is_process_path(names: Sequence[str]) -> bool:
    """Whether a path is below a process in /proc, which links to the whole file system."""
    return len(names) > 2 and names[1] not in ("sys", "net", "bus", "irq", "fs")
