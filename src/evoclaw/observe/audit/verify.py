"""Verifies the audit: finds records that were edited, removed, moved, truncated or restored."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from evoclaw.core.messages import JSON, is_object
from evoclaw.observe.audit.checkpoints import NO_CHECKPOINT, Checkpoint, decode, is_signed
from evoclaw.observe.audit.reader import AuditFiles, AuditLine, ColdLines
from evoclaw.observe.audit.records import InvalidRecord, SealedRecord, genesis, unseal
from evoclaw.observe.audit.warm import CHECKPOINTS_FILE, HEAD_FILE, ChainHead

MAX_FINDINGS = 100
COLD = "cold"
"""The place of lines in the cold tier."""


class AuditFinding(Struct, frozen=True, omit_defaults=True):
    """One difference from what was written."""

    kind: str
    """`edited`, `unlinked`, `gap`, `reordered`, `duplicate`, `cut`, `torn`, `old`, `checkpoint`,
    `head` or `cold`."""
    place: str
    """The file."""
    line: int
    """0 is the file as a whole."""
    text: str

    def __str__(self) -> str:
        where = f"{self.place}:{self.line}" if self.line else self.place
        return f"{where}: {self.kind}: {self.text}"


class VerifyReport(Struct, frozen=True):
    """The result of a verification."""

    findings: tuple[AuditFinding, ...]
    """In the order of the chain, then those of checkpoints and of the end."""
    first: int
    last: int
    records: int
    checkpoints: int
    signed: int
    """The last record that a checkpoint covers."""
    dropped: tuple[str, ...] = ()
    """Spans that were deleted unshipped, because the spool was full."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def verify(
    files: AuditFiles,
    keys: Iterable[str],
    *,
    cold: ColdLines | None = None,
    at_least: Checkpoint | None = None,
) -> VerifyReport:
    """Verify records, checkpoints and head against each other.

    Args:
        files: The lines of the audit.
        keys: The trusted public keys.
        cold: The lines of the cold tier; None assumes that it has all retired records.
        at_least: A checkpoint that is known from elsewhere: the chain must contain it.
    """
    check = _Verification(files, frozenset(keys))
    check.checkpoints(at_least)
    check.records(cold)
    check.against_checkpoints(at_least)
    check.end()
    return check.report()


class _RemovedSpan(Struct, frozen=True):
    """Records that another record declares as deleted here."""

    first: int
    last: int
    dropped: bool
    """Whether they were deleted unshipped; otherwise the cold tier has them."""
    where: str


class _Verification:
    def __init__(self, files: AuditFiles, keys: frozenset[str]) -> None:
        self._files, self._keys = files, keys
        self._findings: list[AuditFinding] = []
        self._checkpoint_findings: list[AuditFinding] = []
        self._signed: list[tuple[Checkpoint, AuditLine]] = []
        self._covered: set[int] = set()
        """Records that are the last of a checkpoint."""
        self._hashes: dict[int, tuple[str, AuditLine]] = {}
        self._removed: list[_RemovedSpan] = []
        self._count = 0
        self._last: tuple[SealedRecord, AuditLine] | None = None
        self._next: int | None = None
        """The expected number of the next record; None before the first."""
        self._prev: str | None = None
        """The hash of the previous record; None if unknown."""

    def _find(self, kind: str, row: AuditLine | None, text: str, place: str = "") -> None:
        at = (place, 0) if row is None else (row.place, row.line)
        self._findings.append(AuditFinding(kind, *at, text))

    def checkpoints(self, at_least: Checkpoint | None) -> None:
        """Check that each checkpoint is signed and follows the previous one."""
        self._covered = {at_least.seq} if at_least is not None else set()
        n, prev = None, NO_CHECKPOINT
        for row in self._files.checkpoints:
            found = decode(row.data) if row.whole else None
            if problem := self._problem_of(found, n, prev):
                self._checkpoint_findings.append(
                    AuditFinding("checkpoint", row.place, row.line, problem)
                )
            if found is not None:
                n, prev = found.n, found.hash
                self._covered.add(found.seq)
                if not problem:
                    self._signed.append((found, row))

    def _problem_of(self, found: Checkpoint | None, n: int | None, prev: str) -> str:
        if found is None:
            return "it is not a valid checkpoint"
        if found.key not in self._keys:
            return "it was signed with an untrusted key"
        if not is_signed(found):
            return "its signature is invalid"
        start = n is None and not self._files.in_place
        if not start and found.n != (n or 0) + 1:
            return f"number {found.n} is where {(n or 0) + 1} should be"
        if not start and found.prev != prev:
            return f"number {found.n} does not follow the previous one"
        head = self._files.head
        if head is not None and head.chain != found.chain:
            return "it belongs to another chain"
        return ""

    def records(self, cold: ColdLines | None) -> None:
        """Check each record: those that only the cold tier has, then the files."""
        here: dict[int, bytes] = {}
        for row in self._files.rows:
            try:
                sealed = unseal(row.data)
            except InvalidRecord:
                continue
            here.setdefault(sealed.seq, row.data)
            removed = _removed_span(sealed)
            if removed and (removed.dropped or cold is None or removed.where != cold.name):
                self._removed.append(removed)
        if cold is not None:
            self._from_cold(cold, here, min(here, default=None))
        present = sorted(here)
        for row in self._files.rows:
            self._row(row, present)

    def _from_cold(self, cold: ColdLines, here: dict[int, bytes], first: int | None) -> None:
        before = 0
        for seq, line in cold.rows:
            row = AuditLine(COLD, seq, line)
            if before and seq != before + 1 and (first is None or seq > first):
                self._find("cold", row, f"records {before + 1} to {seq - 1} are missing there")
            if first is None or seq < first:
                self._row(row, [])
            elif seq in here and here[seq] != line:
                self._find("cold", row, f"record {seq} differs from the one in the files")
            before = seq
        end = max(here, default=0)
        if before > end and here:
            text = f"the cold tier has records up to {before}, the files end with {end}"
            self._find("old", None, text, self._files.rows[-1].place)
        if before < cold.delivered:
            text = f"it had records up to {cold.delivered}, and ends with {before}"
            self._find("cold", None, text, COLD)

    def _row(self, row: AuditLine, present: list[int]) -> None:
        if not row.whole:
            return self._find("torn", row, "the line has no newline: it was truncated")
        try:
            sealed = unseal(row.data)
        except InvalidRecord as problem:
            self._find("edited", row, f"record {_claimed(row.data)}: {problem}")
            self._next, self._prev = self._next and self._next + 1, None
            return None
        if self._next is None:
            self._start(sealed, row)
        elif sealed.seq != self._next and not self._out_of_place(sealed, row, present):
            return None
        elif sealed.seq == self._next and self._prev not in (None, sealed.fields.get("prev")):
            self._find("unlinked", row, f"record {sealed.seq} does not follow the previous one")
        self._take(sealed, row)
        return None

    def _take(self, sealed: SealedRecord, row: AuditLine) -> None:
        self._next, self._prev, self._last = sealed.seq + 1, sealed.hash, (sealed, row)
        if row.place != COLD or sealed.seq in self._covered or not self._hashes:
            # The cold tier may have millions of records.
            self._hashes[sealed.seq] = sealed.hash, AuditLine(row.place, row.line, b"")
        self._count += 1

    def _start(self, sealed: SealedRecord, row: AuditLine) -> None:
        """Check the first record: record 1, or one that follows a checkpoint."""
        chain = self._chain()
        prev = sealed.fields.get("prev")
        if sealed.seq == 1:
            if chain and prev != genesis(chain):
                self._find("unlinked", row, "record 1 does not start this chain")
        elif not any((cp.seq, cp.head) == (sealed.seq - 1, prev) for cp, _ in self._signed):
            # Retired files end with a checkpoint, and exports start after one.
            self._find("cut", row, f"the records before {sealed.seq} are neither here nor signed")

    def _chain(self) -> str:
        if self._files.head is not None:
            return self._files.head.chain
        return self._signed[0][0].chain if self._signed else ""

    def _out_of_place(self, sealed: SealedRecord, row: AuditLine, present: list[int]) -> bool:
        """Report an unexpected number; return whether the chain continues from it."""
        expected = self._next or 1
        if sealed.seq < expected:
            same = self._hashes.get(sealed.seq, ("", row))[0] == sealed.hash
            kind, text = ("duplicate", "again") if same else ("reordered", "too late")
            self._find(kind, row, f"record {sealed.seq} comes {text}")
            if not same:
                self._hashes[sealed.seq] = sealed.hash, row
            return False
        if self._explained(expected) and self._explained(sealed.seq - 1):
            self._prev = None
            return True
        missing = sealed.seq - expected
        if bisect_left(present, expected) < bisect_left(present, sealed.seq):
            self._find("reordered", row, f"record {sealed.seq} is where {expected} should be")
        else:
            span = f"{expected}" if missing == 1 else f"{expected} to {sealed.seq - 1}"
            self._find("gap", row, f"missing before this line: {span}")
        self._prev = None
        return True

    def against_checkpoints(self, at_least: Checkpoint | None) -> None:
        """Check that signed records exist, unchanged."""
        self._findings += self._checkpoint_findings
        pins = [(at_least, None)] if at_least is not None else []
        for checkpoint, row in [*self._signed, *pins]:
            name = "the given checkpoint" if row is None else f"checkpoint {checkpoint.n}"
            found = self._hashes.get(checkpoint.seq)
            if found is not None and found[0] != checkpoint.head:
                self._find("edited", found[1], f"{name} signs another record {checkpoint.seq}")
            elif found is None and not self._explained(checkpoint.seq):
                self._find(
                    "old" if row is None else "cut",
                    None if self._last is None else self._last[1],
                    f"{name} covers record {checkpoint.seq}, which is missing",
                )

    def _explained(self, seq: int) -> bool:
        """Whether a record may be missing: it was deleted, or the export starts after it."""
        if not self._files.in_place:
            first = min(self._hashes, default=0)
            return bool(first) and seq < first
        return any(removed.first <= seq <= removed.last for removed in self._removed)

    def end(self) -> None:
        """Check that the start and the end are those that were written."""
        files, head = self._files, self._files.head
        if not files.in_place:
            return self._end_of_export()
        first = min(self._hashes, default=0)
        missing = 1
        for removed in sorted(self._removed, key=lambda removed: removed.first):
            missing = removed.last + 1 if removed.first <= missing <= removed.last else missing
        if missing < first:
            text = f"missing before this line: {missing} to {first - 1}"
            self._find("gap", self._hashes[first][1], text)
        if head is None:
            if files.rows or files.checkpoints:
                self._find("head", None, "it is missing or cannot be read", HEAD_FILE)
            return None
        return self._against_head(head)

    def _end_of_export(self) -> None:
        """Check that an export is signed from its start to its end."""
        first, last = min(self._hashes, default=0), self._last
        if first == 1 and self._signed and self._signed[0][0].n != 1:
            self._find("checkpoint", self._signed[0][1], "those before it are missing")
        signed = max((checkpoint.seq for checkpoint, _ in self._signed), default=0)
        if last is not None and last[0].seq > signed:
            self._find("checkpoint", last[1], f"the records after {signed} are not signed")

    def _against_head(self, head: ChainHead) -> None:
        last = self._last[0] if self._last else None
        row = self._last[1] if self._last else None
        ended = last.seq if last else 0
        if head.seq > ended and not (last is None and self._explained(head.seq)):
            self._find("cut", row, f"{head.seq} records were written, the files end with {ended}")
        elif head.seq < ended:
            self._find(
                "head", None, f"it knows of {head.seq} records only, not of {ended}", HEAD_FILE
            )
        elif last is not None and head.hash != last.hash:
            self._find("edited", row, f"record {head.seq} is not the one that was written last")
        rows = [row for row in self._files.rows if row.place == head.file]
        size = sum(len(row.data) + row.whole for row in rows)
        if head.size != size:
            self._find(
                "head", None, f"{head.file} had {head.size} bytes, and has {size}", HEAD_FILE
            )
        signed = len(self._files.checkpoints)
        tail = self._signed[-1][0] if self._signed else None
        if head.checkpoints > signed:
            text = f"there were {head.checkpoints}, and there are {signed}"
            self._find("checkpoint", None, text, CHECKPOINTS_FILE)
        elif head.checkpoints < signed:
            self._find("head", None, f"it knows of {head.checkpoints} checkpoints only", HEAD_FILE)
        elif tail is not None and (head.checkpoint, head.signed) != (tail.hash, tail.seq):
            self._find(
                "checkpoint", None, "the last one is not the one that was signed", CHECKPOINTS_FILE
            )

    def report(self) -> VerifyReport:
        """The findings so far."""
        return VerifyReport(
            tuple(self._findings[:MAX_FINDINGS]),
            min(self._hashes, default=0),
            max(self._hashes, default=0),
            self._count,
            len(self._signed),
            max((checkpoint.seq for checkpoint, _ in self._signed), default=0),
            tuple(f"{span.first} to {span.last}" for span in self._removed if span.dropped),
        )


def _claimed(line: bytes) -> str:
    """The record number in an invalid line."""
    try:
        value: JSON = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return "?"
    return str(value.get("seq", "?"))[:20] if is_object(value) else "?"


def _removed_span(sealed: SealedRecord) -> _RemovedSpan | None:
    fields = sealed.fields
    first, last = fields.get("first"), fields.get("last")
    if fields.get("kind") not in ("retired", "dropped"):
        return None
    if not isinstance(first, int) or not isinstance(last, int):
        return None
    return _RemovedSpan(first, last, fields["kind"] == "dropped", str(fields.get("reason")))
