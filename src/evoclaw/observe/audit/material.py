"""What is checked: lines, and where they stand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from evoclaw.observe.audit.checkpoints import decode
from evoclaw.observe.audit.settings import AuditError
from evoclaw.observe.audit.warm import CHECKPOINTS, Head, day_files, read_head


class Row(Struct, frozen=True):
    """A line and where it is."""

    place: str
    line: int
    data: bytes
    whole: bool = True
    """It ends as a line does."""


class Material(Struct, frozen=True):
    """What is checked."""

    rows: list[Row]
    checkpoints: list[Row]
    head: Head | None = None
    in_place: bool = True
    """It is the audit itself: whole, and with a head. An export may begin and end anywhere."""


class Stored(Struct, frozen=True):
    """What the cold tier has."""

    rows: Iterable[tuple[int, bytes]]
    """Numbers and lines, in order."""
    name: str = ""
    """What was retired to another one is believed to be there."""
    delivered: int = 0
    """It has shown before that it has everything up to here."""


def rows_of(path: Path) -> list[Row]:
    """The lines of a file."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise AuditError(f"cannot read {path}: {problem.strerror}") from None
    *lines, rest = data.split(b"\n")
    rows = [Row(path.name, number, line) for number, line in enumerate(lines, 1)]
    return rows + ([Row(path.name, len(lines) + 1, rest, whole=False)] if rest else [])


def material_in(folder: Path) -> Material:
    """The audit in its own folder."""
    rows = [row for file in day_files(folder) for row in rows_of(file.path)]
    path = folder / CHECKPOINTS
    return Material(rows, rows_of(path) if path.exists() else [], read_head(folder))


def exported(paths: Iterable[Path]) -> Material:
    """Files that came from somewhere else, in the order given: records and checkpoints mixed."""
    rows = [row for path in paths for row in rows_of(path)]
    signed = [row for row in rows if decode(row.data) is not None]
    return Material([row for row in rows if decode(row.data) is None], signed, in_place=False)
