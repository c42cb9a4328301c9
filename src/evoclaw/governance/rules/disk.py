"""Where a path really leads on this machine: links followed, patterns looked up."""

from __future__ import annotations

import os
from glob import iglob
from itertools import islice
from typing import Protocol

from evoclaw.shell.effects import unescape

MOST_FOUND = 256
"""Files that are looked up for one pattern; of more, nothing is claimed."""

_O_PATH: int | None = getattr(os, "O_PATH", None)
_NO_NAMES = ("", ".", "..")


class Disk(Protocol):
    """The file system that calls will meet."""

    def leads_to(self, pattern: str) -> tuple[str, ...] | None:
        """The real paths that an absolute pattern stands for now; None if that cannot be told."""
        ...


class ThisDisk:
    """This machine's; for a policy that judges where the call will run."""

    def leads_to(self, pattern: str) -> tuple[str, ...] | None:
        """Follow the links of one path, or of all that a pattern finds."""
        text = unescape(pattern)
        try:
            if text is not None:
                return (_real(text),)
            if "**" in pattern:
                return ()
            # Our patterns escape by a backslash, the library's by brackets.
            files = iglob(_for_glob(pattern), include_hidden=True)  # noqa: PTH207
            found = list(islice(files, MOST_FOUND))
            real = tuple(_real(one) for one in found)
        except (OSError, ValueError, RecursionError):
            return None
        return None if len(found) == MOST_FOUND else real


def _real(path: str) -> str:
    """The path without links; the system is asked once, where it can be, instead of per folder."""
    if _O_PATH is None:
        return os.path.realpath(path)
    there, missing, made = path, "", ""
    while (found := _asked(there, _O_PATH)) is None:
        # To be made: what counts is where its folder is.
        missing = there
        there, _, name = there.rpartition("/")
        if not there or name in _NO_NAMES:
            return os.path.realpath(path)
        made = f"/{name}{made}"
    if not found or (missing and os.path.lexists(missing)):
        # A link that leads nowhere is there all the same.
        return os.path.realpath(path)
    return found + made


def _asked(path: str, flag: int) -> str | None:
    """Where the system says that a path leads; None if to nothing, empty if it does not say."""
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
