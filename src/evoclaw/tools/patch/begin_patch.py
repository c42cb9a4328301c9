"""Parses the patch format that starts with `*** Begin Patch` and ends with `*** End Patch`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evoclaw.tools.patch.hunks import (
    Action,
    FileChange,
    Hunk,
    HunkBuilder,
    invalid_patch,
    patch_path,
    quote,
)

BEGIN, END, END_OF_FILE = b"*** Begin Patch", b"*** End Patch", b"*** End of File"
MOVE = b"*** Move to: "
SECTIONS = {
    b"*** Add File: ": Action.ADD,
    b"*** Update File: ": Action.UPDATE,
    b"*** Delete File: ": Action.DELETE,
}
HUNK_HEADER = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,\d{1,9})? @@")


def parse_begin_patch(lines: Sequence[bytes]) -> list[FileChange]:
    """Parse the patch; its first line is `*** Begin Patch`."""
    return _BeginPatchParser(lines).changes()


class _BeginPatchParser:
    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._at = 1
        self._next_non_empty = 0
        """The index of the next line that is not empty, as far as known."""

    def changes(self) -> list[FileChange]:
        found: list[FileChange] = []
        while (line := self._line()).rstrip() != END:
            if not line.strip():
                self._at += 1
                continue
            found.append(self._section(line))
        rest = next((line for line in self._lines[self._at + 1 :] if line.strip()), None)
        if rest is not None:
            raise invalid_patch(f"There is text after '*** End Patch': {quote(rest)}.")
        return found

    def _line(self) -> bytes:
        if self._at >= len(self._lines):
            raise invalid_patch("The patch does not end with '*** End Patch': send all of it.")
        return self._lines[self._at]

    def _section(self, line: bytes) -> FileChange:
        for opening, action in SECTIONS.items():
            if line.startswith(opening):
                self._at += 1
                path = patch_path(line[len(opening) :].strip())
                if action is Action.ADD:
                    return self._added(path)
                return self._updated(path) if action is Action.UPDATE else FileChange(action, path)
        raise invalid_patch(
            f"Line {self._at + 1} of the patch is {quote(line)}; expected '*** Add File: ', "
            "'*** Update File: ', '*** Delete File: ' or '*** End Patch'."
        )

    def _added(self, path: str) -> FileChange:
        body = HunkBuilder()
        while not (line := self._line()).startswith(b"*** "):
            if line.startswith(b"+"):
                body.add(line)
            elif line.strip():
                raise invalid_patch(
                    f"{quote(path)} is a new file: each of its lines must start with '+', "
                    f"but line {self._at + 1} of the patch is {quote(line)}."
                )
            self._at += 1
        return FileChange(
            Action.ADD, path, (Hunk("content", b"", b"".join(body.new_lines), 0, body.added),)
        )

    def _updated(self, path: str) -> FileChange:
        target = ""
        if (line := self._line()).startswith(MOVE):
            target = patch_path(line[len(MOVE) :].strip())
            self._at += 1
        hunks: list[Hunk] = []
        while not self._section_ends():
            hunks.append(self._hunk(path, len(hunks) + 1))
        if not hunks and not target:
            raise invalid_patch(f"The patch changes nothing in {quote(path)}.")
        return FileChange(Action.MOVE if target else Action.UPDATE, path, tuple(hunks), target)

    def _section_ends(self) -> bool:
        while self._is_section_gap():
            self._at += 1
        line = self._line()
        return line.startswith(b"*** ") and line.rstrip() != END_OF_FILE

    def _is_section_gap(self) -> bool:
        """Whether this is an empty line between two sections, not a line of the file."""
        if self._line():
            return False
        self._next_non_empty = max(self._next_non_empty, self._at)
        while self._next_non_empty < len(self._lines) and not self._lines[self._next_non_empty]:
            self._next_non_empty += 1
        after = (
            self._lines[self._next_non_empty] if self._next_non_empty < len(self._lines) else END
        )
        return after.startswith(b"*** ") and after.rstrip() != END_OF_FILE

    def _hunk(self, path: str, number: int) -> Hunk:
        anchors, before = self._anchors()
        body, at_end = HunkBuilder(), False
        while not (line := self._line()).startswith((b"@@", b"*** ")):
            if self._is_section_gap():
                break
            if not body.add(line):
                raise invalid_patch(
                    f"Line {self._at + 1} of the patch, in hunk {number} of {quote(path)}, is "
                    f"{quote(line)}: it must start with ' ', '-', '+' or '@@'."
                )
            self._at += 1
        if self._line().rstrip() == END_OF_FILE:
            at_end = True
            self._at += 1
        if not body.added and not body.removed:
            raise invalid_patch(
                f"Hunk {number} of {quote(path)} changes nothing. Write '-' before each line to "
                "remove, and '+' before each line to add."
            )
        return Hunk(
            f"hunk {number}",
            b"".join(body.old_lines),
            b"".join(body.new_lines),
            body.removed,
            body.added,
            before,
            anchors,
            at_end,
            exact_end=False,
        )

    def _anchors(self) -> tuple[tuple[bytes, ...], int | None]:
        anchors: list[bytes] = []
        before = None
        while (line := self._line()).startswith(b"@@"):
            if numbers := HUNK_HEADER.match(line):
                before = int(numbers[1]) - (numbers[2] != b"0")
            elif anchor := line[2:].strip():
                anchors.append(anchor)
            self._at += 1
        return tuple(anchors), None if before is None else max(0, before)
