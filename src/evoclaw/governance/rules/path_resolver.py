"""Resolves paths on this machine: follows links, expands patterns."""

from __future__ import annotations

import os
from glob import iglob
from itertools import islice

from evoclaw.shell.effects import unescape

MAX_GLOB_RESULTS = 256
"""Files that one pattern is expanded to; a pattern with more counts as any path."""

_O_PATH: int | None = getattr(os, "O_PATH", None)
_SPECIAL_NAMES = ("", ".", "..")


class LocalPathResolver:
    """Resolves paths on this machine; for a policy that runs where calls run."""

    def resolve(self, pattern: str) -> tuple[str, ...] | None:
        """Follow the links of a path, or of all paths that a pattern matches."""
        text = unescape(pattern)
        try:
            if text is not None:
                return (_real_path(text),)
            if "**" in pattern:
                return ()
            # These patterns escape with a backslash, those of `glob` with brackets.
            files = iglob(_for_glob(pattern), include_hidden=True)  # noqa: PTH207
            found = list(islice(files, MAX_GLOB_RESULTS))
            real = tuple(_real_path(path) for path in found)
        except (OSError, ValueError, RecursionError):
            return None
        return None if len(found) == MAX_GLOB_RESULTS else real


def _real_path(path: str) -> str:
    """The path without links; one system call where possible, instead of one per folder."""
    if _O_PATH is None:
        return os.path.realpath(path)
    existing, missing, rest = path, "", ""
    while (found := _kernel_path(existing, _O_PATH)) is None:
        # The path does not exist yet: resolve its folder.
        missing = existing
        existing, _, name = existing.rpartition("/")
        if not existing or name in _SPECIAL_NAMES:
            return os.path.realpath(path)
        rest = f"/{name}{rest}"
    if not found or (missing and os.path.lexists(missing)):
        # A dangling link exists although its target does not.
        return os.path.realpath(path)
    return found + rest


def _kernel_path(path: str, flag: int) -> str | None:
    """The real path by /proc; None if the path does not exist, empty if /proc cannot tell."""
    try:
        file = os.open(path, flag | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        return ""
    try:
        found = os.readlink(f"/proc/self/fd/{file}")  # noqa: PTH115
    except OSError:
        return ""
    finally:
        os.close(file)
    return found if found[:1] == "/" and not found.endswith(" (deleted)") else ""


def _for_glob(pattern: str) -> str:
    out: list[str] = []
    signs = iter(pattern)
    for sign in signs:
        if sign == "\\":
            escaped = next(signs, "\\")
            out.append(f"[{escaped}]" if escaped in "*?[" else escaped)
        else:
            out.append("[[]" if sign == "[" and "]" not in pattern else sign)
    return "".join(out)
