"""What a patch is made of once it is read, whichever form it came in."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind

LONGEST_PATH = 4096
SHOWN = 200
"""Characters of a line or a name that a message shows."""


class Action(StrEnum):
    """What a patch does to one file."""

    ADD = "add"
    UPDATE = "update"
    MOVE = "move"
    DELETE = "delete"


class Hunk(Struct, frozen=True):
    """Some lines of a file, and the lines that take their place."""

    label: str
    """How messages name it."""
    old: bytes
    new: bytes
    removed: int
    added: int
    before: int | None = None
    """The lines that are above it, as the patch says; None if the patch does not say."""
    anchors: tuple[bytes, ...] = ()
    """Lines to find first, one below the other."""
    at_end: bool = False
    """Its last line is the file's last."""
    exact_end: bool = True
    """The patch would say if the file's last line had no newline."""


class Change(Struct, frozen=True):
    """What a patch does to one file."""

    action: Action
    path: str
    """What it is called before; for a new file, what it will be called."""
    hunks: tuple[Hunk, ...] = ()
    target: str = ""
    """For a move: what it is called afterwards."""
    whole: bool = False
    """The hunks hold all of the file, which is deleted only if that is so."""
    rights: bool = False
    """The patch also asks for other rights, which are not changed."""

    @property
    def added(self) -> int:
        """Lines."""
        return sum(hunk.added for hunk in self.hunks)

    @property
    def removed(self) -> int:
        """Lines."""
        return sum(hunk.removed for hunk in self.hunks)


class Body:
    """Gathers the lines of one hunk."""

    def __init__(self) -> None:
        self.olds: list[bytes] = []
        self.news: list[bytes] = []
        self.removed = self.added = 0
        self.cut_old = self.cut_new = False
        """A side has had its last line, one without a newline."""
        self._last = b""

    def add(self, line: bytes) -> bool:
        """Take a line with its mark; whether it can be one of a hunk, at this place."""
        # An editor that strips spaces at the ends of lines leaves an empty line of an empty one.
        mark, content = line[:1] or b" ", line[1:] + b"\n"
        if mark not in (b" ", b"-", b"+"):
            return False
        if (mark != b"+" and self.cut_old) or (mark != b"-" and self.cut_new):
            return False
        if mark != b"+":
            self.olds.append(content)
        if mark != b"-":
            self.news.append(content)
        self.removed += mark == b"-"
        self.added += mark == b"+"
        self._last = mark
        return True

    def cut(self) -> bool:
        """The last line taken has no newline; whether that can be."""
        if not self._last or (self.cut_old and self._last != b"+"):
            return False
        if self._last != b"+":
            self.olds[-1] = self.olds[-1][:-1]
            self.cut_old = True
        if self._last != b"-":
            self.news[-1] = self.news[-1][:-1]
            self.cut_new = True
        self._last = b""
        return True


def malformed(problem: str) -> ToolFailure:
    """A patch that cannot be read."""
    return ToolFailure(ErrorKind.INVALID_PARAMS, f"{problem} Nothing was written.")


def forbidden(problem: str) -> ToolFailure:
    """A patch that asks for what no patch may do."""
    return ToolFailure(ErrorKind.PERMISSION_DENIED, f"{problem} Nothing was written.")


def shown(text: bytes | str) -> str:
    """A line or name as a message shows it: short, on one line, in quotes."""
    if isinstance(text, bytes):
        text = text[: 4 * SHOWN].decode(errors="replace")
    text = text.rstrip("\r\n")
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")


def path_of(name: bytes) -> str:
    """The name of a file in a patch as a path, unless no patch may touch it."""
    try:
        path = name.decode()
    except UnicodeDecodeError:
        raise malformed(f"The file name {shown(name)} is not UTF-8.") from None
    if not path.strip() or path.endswith("/") or len(path) > LONGEST_PATH:
        raise malformed(f"The patch has no proper name for a file: {shown(path)}.")
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise malformed(f"The file name {shown(path)} has control characters.")
    if path.startswith("/"):
        raise forbidden(f"{shown(path)} is an absolute path: name files relative to the workspace.")
    steps = path.split("/")
    if ".." in steps:
        raise forbidden(f"{shown(path)} goes up with '..': name files below the workspace.")
    # Some file systems take `.GIT` and `.git.` for the same.
    if any(step.casefold().rstrip(" .") == ".git" for step in steps):
        raise forbidden(f"{shown(path)} is inside .git, which no patch may touch: use git itself.")
    return "/".join(step for step in steps if step not in ("", "."))
