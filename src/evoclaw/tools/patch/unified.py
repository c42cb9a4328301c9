"""Parses unified diffs as `git diff` and `diff -u` print them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evoclaw.tools.patch.hunks import (
    Action,
    FileChange,
    Hunk,
    HunkBuilder,
    forbidden_patch,
    invalid_patch,
    patch_path,
    quote,
)

GIT = b"diff --git "
DEV_NULL = b"/dev/null"
HUNK_HEADER = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
HEADERS = (
    *(b"old mode ", b"new mode ", b"deleted file mode ", b"new file mode "),
    *(b"rename from ", b"rename to ", b"similarity index ", b"dissimilarity index ", b"index "),
)
PREFIXES = ((b"a", b"b"), (b"b", b"a"), (b"i", b"w"), (b"c", b"i"), (b"c", b"w"), (b"o", b"w"))
LINK_MODE, SUBMODULE_MODE = b"120000", b"160000"
BINARY = (b"GIT binary patch", b"Binary files ")
REFUSED = {
    b"copy from ": "copies a file: add it as a new one instead.",
    b"diff --cc ": "merges several versions: give a plain diff of two.",
    b"diff --combined ": "merges several versions: give a plain diff of two.",
}
EPOCH_TIMESTAMP = re.compile(rb"\t(?:1970-01-01|1969-12-31) ")
"""The timestamp that `diff -N` prints for a file that does not exist."""
ESCAPED = re.compile(rb"\\(?:([0-7]{3})|(.))")
ESCAPED_BYTES = {
    **{b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13},
    **{b'"': 34, b"\\": 92},
}


@dataclass(slots=True)
class _FileHeaders:
    """The header lines of one file."""

    git: bytes = b""
    """The two names of the line `diff --git`."""
    known: dict[bytes, bytes] | None = None
    old: bytes | None = None
    new: bytes | None = None

    def get(self, key: bytes) -> bytes | None:
        return (self.known or {}).get(key)


def parse_unified_diff(lines: Sequence[bytes]) -> list[FileChange]:
    """Parse every file of the diff; text between the files is ignored."""
    return _UnifiedDiffParser(lines).changes()


class _UnifiedDiffParser:
    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._at = 0

    def changes(self) -> list[FileChange]:
        found: list[FileChange] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            self._refuse(line)
            if line.startswith(GIT) or self._names_follow():
                found.append(self._file())
            elif HUNK_HEADER.match(line):
                raise invalid_patch(
                    f"Line {self._at + 1} of the patch, {quote(line)}, starts a hunk, but "
                    "no '--- ' and '+++ ' lines above it name the file."
                )
            else:
                self._at += 1
        return found

    def _refuse(self, line: bytes) -> None:
        if line.startswith(BINARY):
            raise forbidden_patch("The patch changes a binary file. Only text can be patched.")
        for opening, problem in REFUSED.items():
            if line.startswith(opening):
                raise invalid_patch(f"The patch ({quote(line)}) {problem}")

    def _peek(self, ahead: int = 0) -> bytes | None:
        at = self._at + ahead
        return self._lines[at] if at < len(self._lines) else None

    def _names_follow(self) -> bool:
        return (self._peek() or b"").startswith(b"--- ") and (self._peek(1) or b"").startswith(
            b"+++ "
        )

    def _file(self) -> FileChange:
        headers = self._headers()
        hunks: list[Hunk] = []
        if self._names_follow():
            headers.old, headers.new = self._lines[self._at][4:], self._lines[self._at + 1][4:]
            self._at += 2
            if not HUNK_HEADER.match(self._peek() or b""):
                raise invalid_patch(
                    f"No hunk follows {quote(b'+++ ' + headers.new)}: it must start with "
                    "'@@ -line,count +line,count @@'."
                )
        above = 0
        while (line := self._peek()) is not None and (numbers := HUNK_HEADER.match(line)):
            hunk = self._hunk(numbers, len(hunks) + 1, _show_name(headers))
            before = hunk.lines_above or 0
            if before < above or (hunks and hunks[-1].at_end):
                raise invalid_patch(
                    f"{_show_name(headers)}, {hunk.label}: the hunks overlap or are not in the "
                    "order of the file. Put them in order, with the line numbers of the old file."
                )
            above = before + hunk.old.count(b"\n")
            hunks.append(hunk)
        return _change(headers, tuple(hunks))

    def _headers(self) -> _FileHeaders:
        line = self._lines[self._at]
        if not line.startswith(GIT):
            return _FileHeaders()
        known: dict[bytes, bytes] = {}
        self._at += 1
        while (header := self._peek()) is not None:
            self._refuse(header)
            opening = next((key for key in HEADERS if header.startswith(key)), None)
            if opening is None:
                break
            known[opening.strip()] = header[len(opening) :]
            self._at += 1
        return _FileHeaders(line[len(GIT) :], known)

    def _hunk(self, numbers: re.Match[bytes], number: int, name: str) -> Hunk:
        label = f"hunk {number} ({numbers[0].decode()})"
        old, new = int(numbers[2] or 1), int(numbers[4] or 1)
        body, first_line = HunkBuilder(), self._at + 1
        self._at = first_line
        while len(body.old_lines) < old or len(body.new_lines) < new:
            line = self._peek()
            if line is None or not self._take(body, line):
                break
        if (line := self._peek()) is not None and line.startswith(b"\\ "):
            self._take(body, line)
        if (len(body.old_lines), len(body.new_lines)) != (old, new) or self._hunk_continues():
            raise invalid_patch(
                f"{name}, {label}: the '@@' line promises {old} old and {new} new lines, but "
                f"what follows it (from line {first_line + 1} of the patch) does not agree. "
                "If the patch was cut off, send all of it; else correct the counts."
            )
        before = int(numbers[1]) - (old > 0)
        return Hunk(
            label,
            b"".join(body.old_lines),
            b"".join(body.new_lines),
            body.removed,
            body.added,
            max(0, before),
            at_end=body.old_ended or body.new_ended,
        )

    def _take(self, body: HunkBuilder, line: bytes) -> bool:
        taken = body.end_without_newline() if line.startswith(b"\\ ") else body.add(line)
        self._at += taken
        return taken

    def _hunk_continues(self) -> bool:
        """Whether the next line looks like one more line of a hunk that should be complete."""
        line = self._peek() or b""
        if line.startswith((b" ", b"+", b"\\ ")):
            return True
        # `-- ` alone starts the signature of a mailed patch.
        return line.startswith(b"-") and not self._names_follow() and line.rstrip() != b"--"


def _show_name(headers: _FileHeaders) -> str:
    named = headers.new if headers.new and not headers.new.startswith(DEV_NULL) else headers.old
    return quote(_plain(named or headers.git))


def _change(headers: _FileHeaders, hunks: tuple[Hunk, ...]) -> FileChange:
    _check_modes(headers)
    old, new = _names(headers)
    if old is None and new is None:
        raise invalid_patch("A file of the patch has /dev/null for both names.")
    rights = headers.get(b"new mode") is not None
    rights = rights or headers.get(b"new file mode") not in (None, b"100644")
    if old is None or new is None:
        named = patch_path(new or old or b"")
        if old is not None:
            return FileChange(Action.DELETE, named, hunks, hunks_cover_file=True)
        if any(hunk.old for hunk in hunks) or len(hunks) > 1:
            raise invalid_patch(f"{quote(named)} is a new file, but the patch has old lines of it.")
        return FileChange(Action.ADD, named, hunks, changes_mode=rights)
    if headers.get(b"rename to") is not None and old != new:
        return FileChange(Action.MOVE, patch_path(old), hunks, patch_path(new), changes_mode=rights)
    path = patch_path(new)
    patch_path(old)
    if not hunks:
        raise invalid_patch(
            f"The patch only changes the file mode of {quote(path)}, which is not supported here."
            if rights
            else f"The patch changes nothing in {quote(path)}."
        )
    return FileChange(Action.UPDATE, path, hunks, changes_mode=rights)


def _check_modes(headers: _FileHeaders) -> None:
    for key, value in (headers.known or {}).items():
        mode = value.rpartition(b" ")[2] if key == b"index" else value
        if mode == LINK_MODE:
            raise forbidden_patch(f"{_show_name(headers)}: a patch may not create or change links.")
        if mode == SUBMODULE_MODE:
            raise forbidden_patch(f"{_show_name(headers)}: a patch may not change submodules.")


def _names(headers: _FileHeaders) -> tuple[bytes | None, bytes | None]:
    """The old and the new name; None: the file does not exist."""
    created, deleted = headers.get(b"new file mode"), headers.get(b"deleted file mode")
    if headers.old is not None and headers.new is not None:
        old = None if EPOCH_TIMESTAMP.search(headers.old) else _plain(headers.old)
        new = None if EPOCH_TIMESTAMP.search(headers.new) else _plain(headers.new)
        old, new = _stripped(None if old == DEV_NULL else old, None if new == DEV_NULL else new)
        if (created is not None and old is not None) or (deleted is not None and new is not None):
            raise invalid_patch(f"{_show_name(headers)}: its header lines contradict each other.")
    else:
        old, new = _halves(headers)
        old, new = (None if created else old), (None if deleted else new)
    source, target = headers.get(b"rename from"), headers.get(b"rename to")
    if source is None and target is None:
        return old, new
    if source is None or target is None:
        raise invalid_patch(f"{_show_name(headers)}: the patch names only one side of a rename.")
    moved = _plain(source), _plain(target)
    if headers.old is not None and moved != (old, new):
        raise invalid_patch(f"{_show_name(headers)}: its header lines contradict each other.")
    return moved


def _halves(headers: _FileHeaders) -> tuple[bytes | None, bytes | None]:
    """Both names from the line `diff --git`, which does not mark where the first ends."""
    if headers.get(b"rename to") is not None:
        return None, None
    text = headers.git
    if text.startswith(b'"'):
        first, _, second = text.partition(b'" ')
        return _stripped(_plain(first + b'"'), _plain(second))
    middle = len(text) // 2
    old, new = _stripped(text[:middle], text[middle + 1 :])
    if old != new or text[middle : middle + 1] != b" ":
        raise invalid_patch(f"The line {quote(GIT + text)} does not say which file it changes.")
    return old, new


def _stripped(old: bytes | None, new: bytes | None) -> tuple[bytes | None, bytes | None]:
    """The names without the prefixes `a/` and `b/`."""
    first, second = (old or b"").partition(b"/"), (new or b"").partition(b"/")
    if old is None or new is None:
        known = second if old is None else first
        found = known[2] if known[0] in (b"a", b"b") and known[2] else (old or new)
        return (None, found) if old is None else (found, None)
    if (first[0], second[0]) in PREFIXES and first[2] and second[2]:
        return first[2], second[2]
    return old, new


def _plain(name: bytes) -> bytes:
    """A name without quotes, escapes and timestamp."""
    if not name.startswith(b'"'):
        return name.partition(b"\t")[0].rstrip(b"\r")
    end = re.match(rb'"((?:[^"\\]|\\.)*)"', name)
    if end is None:
        raise invalid_patch(f"The file name {quote(name)} has no closing quote.")
    return ESCAPED.sub(_letter, end[1])


def _letter(escaped: re.Match[bytes]) -> bytes:
    if escaped[1]:
        return bytes([int(escaped[1], 8) & 255])
    code = ESCAPED_BYTES.get(escaped[2])
    if code is None:
        raise invalid_patch(f"A file name has the escape {quote(escaped[0])}, which is not valid.")
    return bytes([code])
