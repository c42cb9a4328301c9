"""Decodes bytes and truncates text for the model, and says what was lost."""

from __future__ import annotations

OMISSION_NOTE_CHARS = 40
"""The approximate length of the note."""
REPLACED_BYTES_NOTICE = "[Some bytes are not valid text and are shown as \ufffd.]"


def truncate_middle(text: str, limit: int) -> str:
    """Keep the head and the tail of a text that is longer than about `limit` characters."""
    if len(text) <= limit + OMISSION_NOTE_CHARS:
        return text  # truncation would save nothing
    half = limit // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[… {left_out} characters left out …]\n{text[len(text) - half :]}"


def to_text(data: bytes) -> tuple[str, bool]:
    """Decode UTF-8; the flag says whether bytes were replaced."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").replace("\0", "\ufffd"), True
    return text.replace("\0", "\ufffd"), "\0" in text


def truncate_line(line: str, limit: int, *, dropped: int = 0) -> str:
    """Keep the first `limit` characters of a line and append how many are missing."""
    if len(line) <= limit and not dropped:
        return line
    missing = max(0, len(line) - limit) + dropped
    return f"{line[:limit]} [… {missing:,} more in this line]"
