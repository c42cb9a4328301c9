"""Truncate long text in the middle, with a note."""

from __future__ import annotations

OMISSION_NOTE_CHARS = 40
"""The approximate length of the note."""


def truncate_middle(text: str, limit: int) -> str:
    """Keep the head and the tail of a text that is longer than about `limit` characters."""
    if len(text) <= limit + OMISSION_NOTE_CHARS:
        return text  # truncation would save nothing
    half = limit // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[… {left_out} characters left out …]\n{text[len(text) - half :]}"
