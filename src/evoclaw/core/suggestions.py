"""Suggestions for a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable

MAX_NAME_CHARS = 80


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the name that is most similar; empty if none is."""
    from difflib import get_close_matches  # only when a name is wrong

    by_lower = {candidate.lower(): candidate for candidate in known}
    found = get_close_matches(name[:MAX_NAME_CHARS].lower(), list(by_lower), 1)
    return f"; did you mean {by_lower[found[0]]!r}?" if found else ""
