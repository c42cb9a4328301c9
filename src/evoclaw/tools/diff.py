"""Unified diffs of two versions of a file, for people, in bounded time and memory."""

from __future__ import annotations

import difflib

SMALL = 2_000
"""Of the longer version; above it the diff is a single hunk."""
LONGEST = 20_000
CONTEXT = 3


def unified(path: str, old: str, new: str) -> str:
    """The unified diff of two versions of a text."""
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) <= SMALL:
        lines = list(difflib.unified_diff(before, after, path, path, lineterm="", n=CONTEXT))
    else:
        lines = _one_hunk(path, before, after)
    text = "\n".join(lines)
    return text if len(text) <= LONGEST else text[:LONGEST] + "\n[… the diff goes on]"


def _one_hunk(path: str, before: list[str], after: list[str]) -> list[str]:
    """One hunk from the first change to the last: linear time, where difflib could take minutes."""
    start = _same(before, after)
    end = _same(before[: start - len(before) - 1 : -1], after[: start - len(after) - 1 : -1])
    top = max(0, start - CONTEXT)
    removed, added = before[start : len(before) - end], after[start : len(after) - end]
    tail = before[len(before) - end :][:CONTEXT]
    around = start - top + len(tail)
    return [
        f"--- {path}",
        f"+++ {path}",
        f"@@ -{top + 1},{len(removed) + around} +{top + 1},{len(added) + around} @@",
        *(f" {line}" for line in before[top:start]),
        *(f"-{line}" for line in removed),
        *(f"+{line}" for line in added),
        *(f" {line}" for line in tail),
    ]


def _same(first: list[str], second: list[str]) -> int:
    count = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        count += 1
    return count
