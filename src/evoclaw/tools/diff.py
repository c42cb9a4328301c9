"""Unified diffs of two versions of a file, for people, in bounded time and memory."""

from __future__ import annotations

import difflib

MAX_LINE_DIFF_LINES = 2_000
"""Of the longer version; above it the diff is a single hunk."""
MAX_DIFF_CHARS = 20_000
CONTEXT_LINES = 3


def unified_diff(path: str, old: str, new: str) -> str:
    """The unified diff of two versions of a text."""
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) <= MAX_LINE_DIFF_LINES:
        lines = list(difflib.unified_diff(before, after, path, path, lineterm="", n=CONTEXT_LINES))
    else:
        lines = _one_hunk(path, before, after)
    text = "\n".join(lines)
    return text if len(text) <= MAX_DIFF_CHARS else text[:MAX_DIFF_CHARS] + "\n[… the diff goes on]"


def _one_hunk(path: str, before: list[str], after: list[str]) -> list[str]:
    """One hunk from the first change to the last: linear time, where difflib could take minutes."""
    start = _common_prefix_length(before, after)
    end = _common_prefix_length(
        before[: start - len(before) - 1 : -1], after[: start - len(after) - 1 : -1]
    )
    top = max(0, start - CONTEXT_LINES)
    removed, added = before[start : len(before) - end], after[start : len(after) - end]
    tail = before[len(before) - end :][:CONTEXT_LINES]
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


def _common_prefix_length(first: list[str], second: list[str]) -> int:
    count = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        count += 1
    return count
