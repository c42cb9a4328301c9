"""Parses a patch of either format into file changes."""

from __future__ import annotations

import re

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.tools.patch.begin import BEGIN, read_begin
from evoclaw.tools.patch.parts import Change, malformed, shown
from evoclaw.tools.patch.unified import read_unified

LARGEST_PATCH = 2 << 20
MOST_FILES = 200
WINDOWS = re.compile(r"^(?:\*\*\* Begin Patch|--- [^\n]*|diff --git [^\n]*)\r$", re.MULTILINE)
"""Header lines: if one ends with a carriage return, all lines of the patch do."""


def read_patch(text: str) -> list[Change]:
    """The changes of a patch in its order; `ToolFailure` if it is not valid or too large."""
    if len(text) > LARGEST_PATCH:
        raise ToolFailure(
            ErrorKind.TOO_LARGE,
            f"The patch has {len(text):,} characters, more than {LARGEST_PATCH:,}. Nothing was "
            "written. Make several smaller ones, or use write.",
        )
    if "\0" in text:
        raise malformed("The patch has a NUL character. Only text can be patched.")
    if WINDOWS.search(text):
        text = text.replace("\r\n", "\n")
    try:
        lines = text.encode().split(b"\n")
    except UnicodeEncodeError:
        raise malformed("The patch is not valid text: it has lone surrogates.") from None
    if not lines[-1]:
        del lines[-1]
    start = next((at for at, line in enumerate(lines) if line.strip()), 0)
    fenced = bool(lines) and lines[start].strip() == BEGIN
    changes = read_begin(lines[start:]) if fenced else read_unified(lines)
    _check(changes)
    return changes


def _check(changes: list[Change]) -> None:
    if not changes:
        raise malformed(
            "There is no change in the patch. Give a unified diff, with '--- a/path', "
            "'+++ b/path' and '@@ -line,count +line,count @@' lines, or the form from "
            "'*** Begin Patch' to '*** End Patch'."
        )
    if len(changes) > MOST_FILES:
        raise ToolFailure(
            ErrorKind.TOO_LARGE,
            f"The patch changes {len(changes)} files, more than {MOST_FILES}. Nothing was "
            "written. Make several smaller ones.",
        )
    seen: set[str] = set()
    for change in changes:
        for path in {change.path, change.target} - {""}:
            if path in seen:
                raise malformed(
                    f"{shown(path)} is in the patch twice. Put all that changes in a file into "
                    "one section, or make two patches."
                )
            seen.add(path)
        if change.path == change.target:
            raise malformed(f"{shown(change.path)} is moved to its own name.")
