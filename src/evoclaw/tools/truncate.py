"""Decodes bytes and truncates lines for the model, and says where text was lost."""

from __future__ import annotations

REPLACED_BYTES_NOTICE = "[Some bytes are not valid text and are shown as \ufffd.]"


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
