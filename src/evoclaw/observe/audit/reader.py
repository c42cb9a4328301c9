"""Reads the audit: the files to verify, search and export."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from pathlib import Path

from msgspec import Struct

from evoclaw.observe.audit.checkpoints import Checkpoint, decode, encode
from evoclaw.observe.audit.cold import AuditQuery, ColdTier, json_text
from evoclaw.observe.audit.records import Fields, InvalidRecord, SealedRecord, unseal
from evoclaw.observe.audit.settings import AuditError
from evoclaw.observe.audit.warm import (
    CHECKPOINTS_FILE,
    ChainHead,
    day_files,
    lines_backwards,
    read_head,
    read_lines,
)

MAX_SEQ = 1 << 62
"""Larger than the number of any record."""


class AuditLine(Struct, frozen=True):
    """A line and its position."""

    place: str
    line: int
    data: bytes
    whole: bool = True
    """Whether it ends with a newline."""


class AuditFiles(Struct, frozen=True):
    """The lines that are verified."""

    rows: list[AuditLine]
    checkpoints: list[AuditLine]
    head: ChainHead | None = None
    in_place: bool = True
    """Whether it is the complete audit with its head; an export may start and end anywhere."""


class ColdLines(Struct, frozen=True):
    """The lines that the cold tier has."""

    rows: Iterable[tuple[int, bytes]]
    """Record numbers and lines, in order."""
    name: str = ""
    """Of the cold tier; records that were retired to another one are not checked."""
    delivered: int = 0
    """The last record that it was known to have."""


def lines_of(path: Path) -> list[AuditLine]:
    """The lines of a file."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise AuditError(f"cannot read {path}: {problem.strerror}") from None
    *lines, rest = data.split(b"\n")
    rows = [AuditLine(path.name, number, line) for number, line in enumerate(lines, 1)]
    return rows + ([AuditLine(path.name, len(lines) + 1, rest, whole=False)] if rest else [])


def audit_files(folder: Path) -> AuditFiles:
    """The files of the audit in its own folder."""
    rows = [row for file in day_files(folder) for row in lines_of(file.path)]
    path = folder / CHECKPOINTS_FILE
    return AuditFiles(rows, lines_of(path) if path.exists() else [], read_head(folder))


def exported_files(paths: Iterable[Path]) -> AuditFiles:
    """Exported files, in the given order: records and checkpoints mixed."""
    rows = [row for path in paths for row in lines_of(path)]
    signed = [row for row in rows if decode(row.data) is not None]
    return AuditFiles([row for row in rows if decode(row.data) is None], signed, in_place=False)


def matches(record: SealedRecord, query: AuditQuery) -> bool:
    """Whether a record matches a query."""
    fields = record.fields
    wanted = {
        "kind": query.kind, "tenant": query.tenant, "user": query.user, "verdict": query.verdict,
        "agent_id": query.agent_id, "run_id": query.run_id, "tool": query.tool,
    }  # fmt: skip
    if any(value and fields.get(name) != value for name, value in wanted.items()):
        return False
    at = fields.get("at")
    at = at if isinstance(at, float | int) else 0.0
    if query.since is not None and at < query.since:
        return False
    if query.until is not None and at >= query.until:
        return False
    return not query.text or json_text(query.text).lower() in record.line.decode().lower()


async def search(folder: Path, query: AuditQuery, cold: ColdTier | None = None) -> list[Fields]:
    """The newest records that match, the oldest of them first: warm files, then the cold tier."""
    found = list(islice(_newest(folder, query), query.limit))
    files, head = day_files(folder), read_head(folder)
    if cold is not None and head is not None and len(found) < query.limit:
        first = files[0].first if files else head.seq + 1
        await cold.prepare()
        for line in await cold.find(head.chain, query):
            record = _read(line)
            if record is not None and record.seq < first and matches(record, query):
                found.append(record)
    return [record.fields for record in reversed(found[: query.limit])]


def _newest(folder: Path, query: AuditQuery) -> Iterator[SealedRecord]:
    for file in reversed(day_files(folder)):
        for line in lines_backwards(file.path):
            record = _read(line)
            if record is not None and matches(record, query):
                yield record


def records_since(folder: Path, since: float) -> Iterator[Fields]:
    """The warm records from a time on, the newest first; the files before it are not read."""
    for file in reversed(day_files(folder)):
        for line in lines_backwards(file.path):
            record = _read(line)
            if record is None:
                continue
            at = record.fields.get("at")
            if isinstance(at, float | int) and at < since:
                return
            yield record.fields


def _read(line: bytes) -> SealedRecord | None:
    try:
        return unseal(line)
    except InvalidRecord:
        return None  # `verify` names it


async def cold_lines(
    cold: ColdTier, chain: str, first: int = 1
) -> AsyncIterator[tuple[int, bytes]]:
    """All lines that the cold tier has of a chain, in order."""
    await cold.prepare()
    while page := await cold.lines(chain, first, MAX_SEQ):
        for seq, line in page:
            yield seq, line
        first = page[-1][0] + 1


async def export(
    folder: Path, target: Path, query: AuditQuery, cold: ColdTier | None = None
) -> tuple[int, int]:
    """Write a span of the chain to a file, with its checkpoints; the first and last record.

    It starts after a checkpoint, so that nothing can be removed from its start unnoticed.
    """
    lines = await _all_lines(folder, cold)
    records = {seq: read for seq, line in lines.items() if (read := _read(line)) is not None}
    only = AuditQuery(since=query.since, until=query.until)
    wanted = [seq for seq, record in records.items() if matches(record, only)]
    if not wanted:
        raise AuditError("there are no records in that period; choose a longer one")
    signed = await _checkpoints(folder, cold)
    first = max((cp.seq for cp in signed if cp.seq < min(wanted)), default=0) + 1
    last = max(wanted)
    after = min((cp.seq for cp in signed if cp.seq >= last), default=last)
    span = [line for seq, line in sorted(lines.items()) if first <= seq <= after]
    checkpoints = [encode(cp) for cp in signed if first - 1 <= cp.seq <= after and cp.seq]
    _write(target, [*checkpoints, *span])
    return first, after


async def _all_lines(folder: Path, cold: ColdTier | None) -> dict[int, bytes]:
    head = read_head(folder)
    lines: dict[int, bytes] = {}
    if cold is not None and head is not None:
        lines = {seq: line async for seq, line in cold_lines(cold, head.chain)}
    for file in day_files(folder):
        for number, line in enumerate(read_lines(file.path)):
            record = _read(line)
            lines[file.first + number if record is None else record.seq] = line
    return lines


async def _checkpoints(folder: Path, cold: ColdTier | None) -> list[Checkpoint]:
    here = [decode(line) for line in read_lines(folder / CHECKPOINTS_FILE)]
    found = {checkpoint.n: checkpoint for checkpoint in here if checkpoint is not None}
    head = read_head(folder)
    if cold is not None and head is not None:
        found = {cp.n: cp for cp in await cold.checkpoints(head.chain)} | found
    return [checkpoint for _, checkpoint in sorted(found.items())]


def _write(target: Path, lines: list[bytes]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(target, flags, 0o600), "wb") as file:
            file.writelines(line + b"\n" for line in lines)
    except OSError as problem:
        raise AuditError(
            f"cannot write {target}: {problem.strerror}; choose another file"
        ) from None
