"""Whether the audit is as it was written: what was edited, left out, moved, cut or put back."""

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
"""The place of what the cold tier has."""


class AuditFinding(Struct, frozen=True, omit_defaults=True):
    """One thing that is not as it was written."""

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
    """What came of a check."""

    findings: tuple[AuditFinding, ...]
    """In the order of the chain, then what is wrong with checkpoints and the end."""
    first: int
    last: int
    records: int
    checkpoints: int
    signed: int
    """The last record that a checkpoint speaks of."""
    dropped: tuple[str, ...] = ()
    """What a policy let go unshipped."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def verify(
    material: AuditFiles,
    keys: Iterable[str],
    *,
    cold: ColdLines | None = None,
    at_least: Checkpoint | None = None,
) -> VerifyReport:
    """Check everything against everything.

    Args:
        material: What there is.
        keys: The public keys that may sign.
        cold: What the cold tier has; None if it was not asked: then it is believed that it has what
            was retired.
        at_least: A checkpoint that is known from elsewhere: the chain must hold it.
    """
    check = _Verification(material, frozenset(keys))
    check.checkpoints(at_least)
    check.records(cold)
    check.against_checkpoints(at_least)
    check.end()
    return check.report()


class _RemovedSpan(Struct, frozen=True):
    """What a record says of others: that they are no longer here."""

    first: int
    last: int
    dropped: bool
    """Undelivered, by policy; else retired to the cold tier."""
    where: str


class _Verification:
    def __init__(self, material: AuditFiles, keys: frozenset[str]) -> None:
        self._material, self._keys = material, keys
        self._findings: list[AuditFinding] = []
        self._about_checkpoints: list[AuditFinding] = []
        self._signed: list[tuple[Checkpoint, AuditLine]] = []
        self._spoken: set[int] = set()
        """Records that are spoken of in a checkpoint."""
        self._hashes: dict[int, tuple[str, AuditLine]] = {}
        self._gone: list[_RemovedSpan] = []
        self._count = 0
        self._last: tuple[SealedRecord, AuditLine] | None = None
        self._next: int | None = None
        """The number that should come now; None before the first."""
        self._prev: str | None = None
        """The hash before; None if it cannot be known."""

    def _find(self, kind: str, row: AuditLine | None, text: str, place: str = "") -> None:
        at = (place, 0) if row is None else (row.place, row.line)
        self._findings.append(AuditFinding(kind, *at, text))

    def checkpoints(self, at_least: Checkpoint | None) -> None:
        """Each signed, and each after the one before."""
        self._spoken = {at_least.seq} if at_least is not None else set()
        n, prev = None, NO_CHECKPOINT
        for row in self._material.checkpoints:
            found = decode(row.data) if row.whole else None
            if problem := self._wrong(found, n, prev):
                self._about_checkpoints.append(
                    AuditFinding("checkpoint", row.place, row.line, problem)
                )
            if found is not None:
                n, prev = found.n, found.hash
                self._spoken.add(found.seq)
                if not problem:
                    self._signed.append((found, row))

    def _wrong(self, found: Checkpoint | None, n: int | None, prev: str) -> str:
        if found is None:
            return "it is not a checkpoint as they are written"
        if found.key not in self._keys:
            return "it was signed with a key that is not trusted here"
        if not is_signed(found):
            return "its signature is not right"
        start = n is None and not self._material.in_place
        if not start and found.n != (n or 0) + 1:
            return f"number {found.n} stands where {(n or 0) + 1} should be"
        if not start and found.prev != prev:
            return f"number {found.n} does not follow the one before"
        head = self._material.head
        if head is not None and head.chain != found.chain:
            return "it belongs to another chain"
        return ""

    def records(self, cold: ColdLines | None) -> None:
        """One after the other: those that only the cold tier has, then the files."""
        here: dict[int, bytes] = {}
        for row in self._material.rows:
            try:
                sealed = unseal(row.data)
            except InvalidRecord:
                continue
            here.setdefault(sealed.seq, row.data)
            gone = _removed_span(sealed)
            if gone is not None and (gone.dropped or cold is None or gone.where != cold.name):
                self._gone.append(gone)
        if cold is not None:
            self._from_cold(cold, here, min(here, default=None))
        present = sorted(here)
        for row in self._material.rows:
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
                self._find("cold", row, f"record {seq} is not the one that is kept here")
            before = seq
        end = max(here, default=0)
        if before > end and here:
            said = f"the cold tier has records up to {before}, here they end with {end}"
            self._find("old", None, said, self._material.rows[-1].place)
        if before < cold.delivered:
            said = f"it had records up to {cold.delivered}, and ends with {before}"
            self._find("cold", None, said, COLD)

    def _row(self, row: AuditLine, present: list[int]) -> None:
        if not row.whole:
            return self._find("torn", row, "the line has no end: it was cut off")
        try:
            sealed = unseal(row.data)
        except InvalidRecord as problem:
            self._find("edited", row, f"record {_claimed(row.data)}: {problem}")
            self._next, self._prev = self._next and self._next + 1, None
            return None
        if self._next is None:
            self._begin(sealed, row)
        elif sealed.seq != self._next and not self._out_of_place(sealed, row, present):
            return None
        elif sealed.seq == self._next and self._prev not in (None, sealed.fields.get("prev")):
            self._find("unlinked", row, f"record {sealed.seq} does not follow the one before it")
        self._take(sealed, row)
        return None

    def _take(self, sealed: SealedRecord, row: AuditLine) -> None:
        self._next, self._prev, self._last = sealed.seq + 1, sealed.hash, (sealed, row)
        if row.place != COLD or sealed.seq in self._spoken or not self._hashes:
            # There may be millions in the cold tier.
            self._hashes[sealed.seq] = sealed.hash, AuditLine(row.place, row.line, b"")
        self._count += 1

    def _begin(self, sealed: SealedRecord, row: AuditLine) -> None:
        """The first record: the chain's own, or one whose elders are elsewhere."""
        chain = self._chain()
        prev = sealed.fields.get("prev")
        if sealed.seq == 1:
            if chain and prev != genesis(chain):
                self._find("unlinked", row, "record 1 does not begin this chain")
        elif not any((one.seq, one.head) == (sealed.seq - 1, prev) for one, _ in self._signed):
            # Retired files end with a checkpoint, and exports begin after one.
            self._find(
                "cut", row, f"what came before record {sealed.seq} is neither here nor signed"
            )

    def _chain(self) -> str:
        if self._material.head is not None:
            return self._material.head.chain
        return self._signed[0][0].chain if self._signed else ""

    def _out_of_place(self, sealed: SealedRecord, row: AuditLine, present: list[int]) -> bool:
        """Say what is wrong with a number; whether the chain goes on from it."""
        awaited = self._next or 1
        if sealed.seq < awaited:
            same = self._hashes.get(sealed.seq, ("", row))[0] == sealed.hash
            kind, said = ("duplicate", "again") if same else ("reordered", "too late")
            self._find(kind, row, f"record {sealed.seq} comes {said}")
            if not same:
                self._hashes[sealed.seq] = sealed.hash, row
            return False
        if self._explained(awaited) and self._explained(sealed.seq - 1):
            self._prev = None
            return True
        missing = sealed.seq - awaited
        if bisect_left(present, awaited) < bisect_left(present, sealed.seq):
            self._find("reordered", row, f"record {sealed.seq} stands where {awaited} should be")
        else:
            span = f"{awaited}" if missing == 1 else f"{awaited} to {sealed.seq - 1}"
            self._find("gap", row, f"missing before this line: {span}")
        self._prev = None
        return True

    def against_checkpoints(self, at_least: Checkpoint | None) -> None:
        """What was signed must be there."""
        self._findings += self._about_checkpoints
        pins = [(at_least, None)] if at_least is not None else []
        for checkpoint, row in [*self._signed, *pins]:
            name = "the checkpoint asked for" if row is None else f"checkpoint {checkpoint.n}"
            there = self._hashes.get(checkpoint.seq)
            if there is not None and there[0] != checkpoint.head:
                self._find("edited", there[1], f"{name} signs another record {checkpoint.seq}")
            elif there is None and not self._explained(checkpoint.seq):
                self._find(
                    "old" if row is None else "cut",
                    None if self._last is None else self._last[1],
                    f"{name} speaks of record {checkpoint.seq}, which is not here",
                )

    def _explained(self, seq: int) -> bool:
        """Whether a record may be missing: it was let go, or the export begins after it."""
        if not self._material.in_place:
            first = min(self._hashes, default=0)
            return bool(first) and seq < first
        return any(gone.first <= seq <= gone.last for gone in self._gone)

    def end(self) -> None:
        """Whether the beginning and the end are those that were written."""
        material, head = self._material, self._material.head
        if not material.in_place:
            return self._end_of_export()
        first = min(self._hashes, default=0)
        missing = 1
        for gone in sorted(self._gone, key=lambda one: one.first):
            missing = gone.last + 1 if gone.first <= missing <= gone.last else missing
        if missing < first:
            said = f"missing before this line: {missing} to {first - 1}"
            self._find("gap", self._hashes[first][1], said)
        if head is None:
            if material.rows or material.checkpoints:
                self._find("head", None, "it is missing or cannot be read", HEAD_FILE)
            return None
        return self._against_head(head)

    def _end_of_export(self) -> None:
        """An export is signed from its beginning to its end."""
        first, last = min(self._hashes, default=0), self._last
        if first == 1 and self._signed and self._signed[0][0].n != 1:
            self._find("checkpoint", self._signed[0][1], "those before it are missing")
        signed = max((one.seq for one, _ in self._signed), default=0)
        if last is not None and last[0].seq > signed:
            self._find("checkpoint", last[1], f"what comes after record {signed} is not signed")

    def _against_head(self, head: ChainHead) -> None:
        last = self._last[0] if self._last else None
        row = self._last[1] if self._last else None
        ended = last.seq if last else 0
        if head.seq > ended and not (last is None and self._explained(head.seq)):
            self._find("cut", row, f"{head.seq} records were written, here they end with {ended}")
        elif head.seq < ended:
            self._find(
                "head", None, f"it knows of {head.seq} records only, not of {ended}", HEAD_FILE
            )
        elif last is not None and head.hash != last.hash:
            self._find("edited", row, f"record {head.seq} is not the one that was written last")
        rows = [row for row in self._material.rows if row.place == head.file]
        size = sum(len(row.data) + row.whole for row in rows)
        if head.size != size:
            self._find(
                "head", None, f"{head.file} had {head.size} bytes, and has {size}", HEAD_FILE
            )
        signed = len(self._material.checkpoints)
        tail = self._signed[-1][0] if self._signed else None
        if head.checkpoints > signed:
            said = f"there were {head.checkpoints}, and there are {signed}"
            self._find("checkpoint", None, said, CHECKPOINTS_FILE)
        elif head.checkpoints < signed:
            self._find("head", None, f"it knows of {head.checkpoints} checkpoints only", HEAD_FILE)
        elif tail is not None and (head.checkpoint, head.signed) != (tail.hash, tail.seq):
            self._find(
                "checkpoint", None, "the last is not the one that was signed", CHECKPOINTS_FILE
            )

    def report(self) -> VerifyReport:
        """What was found."""
        return VerifyReport(
            tuple(self._findings[:MAX_FINDINGS]),
            min(self._hashes, default=0),
            max(self._hashes, default=0),
            self._count,
            len(self._signed),
            max((one.seq for one, _ in self._signed), default=0),
            tuple(f"{one.first} to {one.last}" for one in self._gone if one.dropped),
        )


def _claimed(line: bytes) -> str:
    """The number that a broken line claims to have."""
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
