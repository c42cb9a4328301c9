"""Parses the patch format that starts with `*** Begin Patch` and ends with `*** End Patch`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evoclaw.tools.patch.parts import Action, Body, Change, Hunk, malformed, path_of, shown

BEGIN, END, END_OF_FILE = b"*** Begin Patch", b"*** End Patch", b"*** End of File"
MOVE = b"*** Move to: "
SECTIONS = {
    b"*** Add File: ": Action.ADD,
    b"*** Update File: ": Action.UPDATE,
    b"*** Delete File: ": Action.DELETE,
}
NUMBERS = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,\d{1,9})? @@")


def read_begin(lines: Sequence[bytes]) -> list[Change]:
    """Parse the patch; its first line is `*** Begin Patch`."""
    return _Reader(lines).changes()


class _Reader:
    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._at = 1
        self._solid = 0
        """The index of the next line that is not empty, as far as known."""

    def changes(self) -> list[Change]:
        found: list[Change] = []
        while (line := self._line()).rstrip() != END:
            if not line.strip():
                self._at += 1
                continue
            found.append(self._section(line))
        rest = next((line for line in self._lines[self._at + 1 :] if line.strip()), None)
        if rest is not None:
            raise malformed(f"There is text after '*** End Patch': {shown(rest)}.")
        return found

    def _line(self) -> bytes:
        if self._at >= len(self._lines):
            raise malformed("The patch does not end with '*** End Patch': send all of it.")
        return self._lines[self._at]

    def _section(self, line: bytes) -> Change:
        for opening, action in SECTIONS.items():
            if line.startswith(opening):
                self._at += 1
                path = path_of(line[len(opening) :].strip())
                if action is Action.ADD:
                    return self._added(path)
                return self._updated(path) if action is Action.UPDATE else Change(action, path)
        raise malformed(
            f"Line {self._at + 1} of the patch is {shown(line)}; expected '*** Add File: ', "
            "'*** Update File: ', '*** Delete File: ' or '*** End Patch'."
        )

    def _added(self, path: str) -> Change:
        body = Body()
        while not (line := self._line()).startswith(b"*** "):
            if line.startswith(b"+"):
                body.add(line)
            elif line.strip():
                raise malformed(
                    f"{shown(path)} is a new file: each of its lines must begin with '+', "
                    f"but line {self._at + 1} of the patch is {shown(line)}."
                )
            self._at += 1
        return Change(Action.ADD, path, (Hunk("content", b"", b"".join(body.news), 0, body.added),))

    def _updated(self, path: str) -> Change:
        target = ""
        if (line := self._line()).startswith(MOVE):
            target = path_of(line[len(MOVE) :].strip())
            self._at += 1
        hunks: list[Hunk] = []
        while not self._section_ends():
            hunks.append(self._hunk(path, len(hunks) + 1))
        if not hunks and not target:
            raise malformed(f"The patch says nothing that changes {shown(path)}.")
        return Change(Action.MOVE if target else Action.UPDATE, path, tuple(hunks), target)

    def _section_ends(self) -> bool:
        while self._parts_sections():
            self._at += 1
        line = self._line()
        return line.startswith(b"*** ") and line.rstrip() != END_OF_FILE

    def _parts_sections(self) -> bool:
        """Whether this is an empty line between two sections, not a line of the file."""
        if self._line():
            return False
        self._solid = max(self._solid, self._at)
        while self._solid < len(self._lines) and not self._lines[self._solid]:
            self._solid += 1
        after = self._lines[self._solid] if self._solid < len(self._lines) else END
        return after.startswith(b"*** ") and after.rstrip() != END_OF_FILE

    def _hunk(self, path: str, number: int) -> Hunk:
        anchors, before = self._places()
        body, at_end = Body(), False
        while not (line := self._line()).startswith((b"@@", b"*** ")):
            if self._parts_sections():
                break
            if not body.add(line):
                raise malformed(
                    f"Line {self._at + 1} of the patch, in hunk {number} of {shown(path)}, is "
                    f"{shown(line)}: it must begin with ' ', '-', '+' or '@@'."
                )
            self._at += 1
        if self._line().rstrip() == END_OF_FILE:
            at_end = True
            self._at += 1
        if not body.added and not body.removed:
            raise malformed(f"Hunk {number} of {shown(path)} changes nothing.")
        return Hunk(
            f"hunk {number}",
            b"".join(body.olds),
            b"".join(body.news),
            body.removed,
            body.added,
            before,
            anchors,
            at_end,
            exact_end=False,
        )

    def _places(self) -> tuple[tuple[bytes, ...], int | None]:
        anchors: list[bytes] = []
        before = None
        while (line := self._line()).startswith(b"@@"):
            if numbers := NUMBERS.match(line):
                before = int(numbers[1]) - (numbers[2] != b"0")
            elif anchor := line[2:].strip():
                anchors.append(anchor)
            self._at += 1
        return tuple(anchors), None if before is None else max(0, before)
