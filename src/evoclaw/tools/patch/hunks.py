"""The parts of a parsed patch, independent of its format: file changes and hunks."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind

MAX_PATH_CHARS = 4096
MAX_QUOTED_CHARS = 200
"""Of a line or a name that a message quotes."""


class Action(StrEnum):
    """What a patch does to one file."""

    ADD = "add"
    UPDATE = "update"
    MOVE = "move"
    DELETE = "delete"


class Hunk(Struct, frozen=True):
    """Old lines of a file, and the new lines that replace them."""

    label: str
    """The name of the hunk in messages."""
    old: bytes
    new: bytes
    removed: int
    added: int
    lines_above: int | None = None
    """The number of lines above the hunk by its `@@` line; None if the patch has no numbers."""
    anchors: tuple[bytes, ...] = ()
    """Lines to find first, each below the one before."""
    at_end: bool = False
    """The last line of the hunk is the last line of the file."""
    exact_end: bool = True
    """The format marks a last line without a newline."""


class FileChange(Struct, frozen=True):
    """What a patch does to one file."""

    action: Action
    path: str
    """The old path; for a new file, the new path."""
    hunks: tuple[Hunk, ...] = ()
    target: str = ""
    """For a move: the new path."""
    hunks_cover_file: bool = False
    """The hunks must contain the whole file; it is deleted only if they do."""
    changes_mode: bool = False
    """The patch also changes the file mode, which is not applied."""

    @property
    def added(self) -> int:
        """The number of added lines."""
        return sum(hunk.added for hunk in self.hunks)

    @property
    def removed(self) -> int:
        """The number of removed lines."""
        return sum(hunk.removed for hunk in self.hunks)


class HunkBuilder:
    """Collects the lines of one hunk."""

    def __init__(self) -> None:
        self.old_lines: list[bytes] = []
        self.new_lines: list[bytes] = []
        self.removed = self.added = 0
        self.old_ended = self.new_ended = False
        """The old or new side ended with a line without a newline."""
        self._last = b""

    def add(self, line: bytes) -> bool:
        """Add a line with its prefix; False if it cannot be a line of the hunk here."""
        # Editors that strip trailing spaces turn an empty context line into an empty line.
        mark, content = line[:1] or b" ", line[1:] + b"\n"
        if mark not in (b" ", b"-", b"+"):
            return False
        if (mark != b"+" and self.old_ended) or (mark != b"-" and self.new_ended):
            return False
        if mark != b"+":
            self.old_lines.append(content)
        if mark != b"-":
            self.new_lines.append(content)
        self.removed += mark == b"-"
        self.added += mark == b"+"
        self._last = mark
        return True

    def end_without_newline(self) -> bool:
        """Mark the last line as one without a newline; False if that is not possible here."""
        if not self._last or (self.old_ended and self._last != b"+"):
            return False
        if self._last != b"+":
            self.old_lines[-1] = self.old_lines[-1][:-1]
            self.old_ended = True
        if self._last != b"-":
            self.new_lines[-1] = self.new_lines[-1][:-1]
            self.new_ended = True
        self._last = b""
        return True


def invalid_patch(problem: str) -> ToolFailure:
    """The error of a patch that is not valid or does not apply."""
    return ToolFailure(ErrorKind.INVALID_PARAMS, f"{problem} Nothing was written.")


def forbidden_patch(problem: str) -> ToolFailure:
    """The error of a patch that asks for something no patch may do."""
    return ToolFailure(ErrorKind.PERMISSION_DENIED, f"{problem} Nothing was written.")


def quote(text: bytes | str) -> str:
    """A line or name for a message: shortened, on one line, in quotes."""
    if isinstance(text, bytes):
        text = text[: 4 * MAX_QUOTED_CHARS].decode(errors="replace")
    text = text.rstrip("\r\n")
    return repr(text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS] + "…")


def patch_path(name: bytes) -> str:
    """The path of a file name in a patch; `ToolFailure` if no patch may touch it."""
    try:
        path = name.decode()
    except UnicodeDecodeError:
        raise invalid_patch(f"The file name {quote(name)} is not UTF-8.") from None
    if not path.strip() or path.endswith("/") or len(path) > MAX_PATH_CHARS:
        raise invalid_patch(f"The patch has an invalid file name: {quote(path)}.")
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise invalid_patch(f"The file name {quote(path)} has control characters.")
    if path.startswith("/"):
        raise forbidden_patch(
            f"{quote(path)} is an absolute path: name files relative to the workspace."
        )
    steps = path.split("/")
    if ".." in steps:
        raise forbidden_patch(f"{quote(path)} goes up with '..': name files below the workspace.")
    # Some file systems treat `.GIT` and `.git.` as `.git`.
    if any(step.casefold().rstrip(" .") == ".git" for step in steps):
        raise forbidden_patch(
            f"{quote(path)} is inside .git, which no patch may touch: use git itself."
        )
    return "/".join(step for step in steps if step not in ("", "."))
