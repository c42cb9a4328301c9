"""Cut long text in the middle and say so."""

from __future__ import annotations

NOTE = 40
"""About as long as the words that stand for what is left out."""


def head_and_tail(text: str, limit: int) -> str:
    """Keep the first and the last part of a text longer than about `limit` characters."""
    if len(text) <= limit + NOTE:
        return text  # a cut would not save anything
    half = limit // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[… {left_out} characters left out …]\n{text[len(text) - half :]}"
