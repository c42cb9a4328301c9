"""Parses a patch of either format into file changes."""

from __future__ import annotations

import re

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.tools.patch.begin_patch import BEGIN, parse_begin_patch
from evoclaw.tools.patch.hunks import FileChange, invalid_patch, quote
from evoclaw.tools.patch.unified import parse_unified_diff

MAX_PATCH_CHARS = 2 << 20
MAX_FILES = 200
CRLF_HEADER = re.compile(r"^(?:\*\*\* Begin Patch|--- [^\n]*|diff --git [^\n]*)\r$", re.MULTILINE)
"""Header lines: if one ends with a carriage return, all lines of the patch do."""


def parse_patch(text: str) -> list[FileChange]:
    """The changes of a patch in its order; `ToolFailure` if it is not valid or too large."""
    if len(text) > MAX_PATCH_CHARS:
        raise ToolFailure(
            ErrorKind.TOO_LARGE,
            f"The patch has {len(text):,} characters, more than {MAX_PATCH_CHARS:,}. Nothing was "
            "written. Make several smaller ones, or use write.",
        )
    if "\0" in text:
        raise invalid_patch("The patch has a NUL character. Only text can be patched.")
    if CRLF_HEADER.search(text):
        text = text.replace("\r\n", "\n")
    try:
        lines = text.encode().split(b"\n")
    except UnicodeEncodeError:
        raise invalid_patch("The patch is not valid text: it has lone surrogates.") from None
    if not lines[-1]:
        del lines[-1]
    start = next((at for at, line in enumerate(lines) if line.strip()), 0)
    fenced = bool(lines) and lines[start].strip() == BEGIN
    changes = parse_begin_patch(lines[start:]) if fenced else parse_unified_diff(lines)
    _check(changes)
    return changes


def _check(changes: list[FileChange]) -> None:
    if not changes:
        raise invalid_patch(
            "There is no change in the patch. Give a unified diff, with '--- a/path', "
            "'+++ b/path' and '@@ -line,count +line,count @@' lines, or the form from "
            "'*** Begin Patch' to '*** End Patch'."
        )
    if len(changes) > MAX_FILES:
        raise ToolFailure(
            ErrorKind.TOO_LARGE,
            f"The patch changes {len(changes)} files, more than {MAX_FILES}. Nothing was "
            "written. Make several smaller ones.",
        )
    seen: set[str] = set()
    for change in changes:
        for path in {change.path, change.target} - {""}:
            if path in seen:
                raise invalid_patch(
                    f"{quote(path)} is in the patch twice. Put all that changes in a file into "
                    "one section, or make two patches."
                )
            seen.add(path)
        if change.path == change.target:
            raise invalid_patch(f"{quote(change.path)} is moved to its own name.")
