"""Finding records again, and taking them elsewhere."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator
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
"""Behind every record."""


class AuditLine(Struct, frozen=True):
    """A line and where it is."""

    place: str
    line: int
    data: bytes
    whole: bool = True
    """It ends as a line does."""


class AuditFiles(Struct, frozen=True):
    """What is checked."""

    rows: list[AuditLine]
    checkpoints: list[AuditLine]
    head: ChainHead | None = None
    in_place: bool = True
    """It is the audit itself: whole, and with a head. An export may begin and end anywhere."""


class ColdLines(Struct, frozen=True):
    """What the cold tier has."""

    rows: Iterable[tuple[int, bytes]]
    """Numbers and lines, in order."""
    name: str = ""
    """What was retired to another one is believed to be there."""
    delivered: int = 0
    """It has shown before that it has everything up to here."""


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
    """The audit in its own folder."""
    rows = [row for file in day_files(folder) for row in lines_of(file.path)]
    path = folder / CHECKPOINTS_FILE
    return AuditFiles(rows, lines_of(path) if path.exists() else [], read_head(folder))


def exported_files(paths: Iterable[Path]) -> AuditFiles:
    """Files that came from somewhere else, in the order given: records and checkpoints mixed."""
    rows = [row for path in paths for row in lines_of(path)]
    signed = [row for row in rows if decode(row.data) is not None]
    return AuditFiles([row for row in rows if decode(row.data) is None], signed, in_place=False)


def matches(one: SealedRecord, query: AuditQuery) -> bool:
    """Whether a record is wanted."""
    fields = one.fields
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
    return not query.text or json_text(query.text).lower() in one.line.decode().lower()


async def search(folder: Path, query: AuditQuery, cold: ColdTier | None = None) -> list[Fields]:
    """The newest records that fit, the oldest of them first: warm files, then the cold tier."""
    found = [one for _, one in zip(range(query.limit), _newest(folder, query), strict=False)]
    files, head = day_files(folder), read_head(folder)
    if cold is not None and head is not None and len(found) < query.limit:
        first = files[0].first if files else head.seq + 1
        await cold.prepare()
        for line in await cold.find(head.chain, query):
            one = _read(line)
            if one is not None and one.seq < first and matches(one, query):
                found.append(one)
    return [one.fields for one in reversed(found[: query.limit])]


def _newest(folder: Path, query: AuditQuery) -> Iterator[SealedRecord]:
    for file in reversed(day_files(folder)):
        for line in lines_backwards(file.path):
            one = _read(line)
            if one is not None and matches(one, query):
                yield one


def _read(line: bytes) -> SealedRecord | None:
    try:
        return unseal(line)
    except InvalidRecord:
        return None  # `verify` names it


async def cold_lines(
    cold: ColdTier, chain: str, first: int = 1
) -> AsyncIterator[tuple[int, bytes]]:
    """Everything the cold tier has of a chain, in order."""
    await cold.prepare()
    while page := await cold.lines(chain, first, MAX_SEQ):
        for seq, line in page:
            yield seq, line
        first = page[-1][0] + 1


async def export(
    folder: Path, target: Path, query: AuditQuery, cold: ColdTier | None = None
) -> tuple[int, int]:
    """Write a span of the chain to a file, with its checkpoints; the first and last record.

    It begins after a checkpoint, so that nothing can be cut from its beginning unnoticed.
    """
    lines = await _all_lines(folder, cold)
    times = {seq: one for seq, line in lines.items() if (one := _read(line)) is not None}
    only = AuditQuery(since=query.since, until=query.until)
    wanted = [seq for seq, one in times.items() if matches(one, only)]
    if not wanted:
        raise AuditError("there is no record in that time")
    signed = await _checkpoints(folder, cold)
    begin = max((one.seq for one in signed if one.seq < min(wanted)), default=0) + 1
    last = max(wanted)
    after = min((one.seq for one in signed if one.seq >= last), default=last)
    span = [line for seq, line in sorted(lines.items()) if begin <= seq <= after]
    words = [encode(one) for one in signed if begin - 1 <= one.seq <= after and one.seq]
    _write(target, [*words, *span])
    return begin, after


async def _all_lines(folder: Path, cold: ColdTier | None) -> dict[int, bytes]:
    head = read_head(folder)
    lines: dict[int, bytes] = {}
    if cold is not None and head is not None:
        lines = {seq: line async for seq, line in cold_lines(cold, head.chain)}
    for file in day_files(folder):
        for number, line in enumerate(read_lines(file.path)):
            one = _read(line)
            lines[file.first + number if one is None else one.seq] = line
    return lines


async def _checkpoints(folder: Path, cold: ColdTier | None) -> list[Checkpoint]:
    here = [decode(line) for line in read_lines(folder / CHECKPOINTS_FILE)]
    found = {one.n: one for one in here if one is not None}
    head = read_head(folder)
    if cold is not None and head is not None:
        found = {one.n: one for one in await cold.checkpoints(head.chain)} | found
    return [one for _, one in sorted(found.items())]


def _write(target: Path, lines: list[bytes]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(target, flags, 0o600), "wb") as file:
            file.writelines(line + b"\n" for line in lines)
    except OSError as problem:
        raise AuditError(
            f"cannot write {target}: {problem.strerror}; choose another file"
        ) from None
