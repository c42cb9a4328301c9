"""The warm tier: a folder with one file per day, which several processes append to in turn.

`head.json` records where the chain ends, `checkpoints.jsonl` holds the signed checkpoints; both
are outside the day files, so that a truncated or restored day file does not match them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.observe.audit.checkpoints import NO_CHECKPOINT, AuditKey, Checkpoint, decode, encode
from evoclaw.observe.audit.records import (
    Fields,
    InvalidRecord,
    SealedRecord,
    day_of,
    genesis,
    seal,
    stamp,
    unseal,
)
from evoclaw.observe.audit.settings import AuditError

HEAD_FILE, CHECKPOINTS_FILE, LOCK_FILE, SHIPPED_FILE = (
    "head.json",
    "checkpoints.jsonl",
    "lock",
    "shipped.json",
)
HEAD_BYTES = 511
"""Of the head, padded with spaces: it never shrinks, and fits into one page."""
READ_BLOCK_BYTES = 1 << 16
"""For reading a file from its end."""
_DAY = re.compile(r"(\d{4}-\d\d-\d\d)\.(\d{12})\.jsonl")
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class ChainHead(Struct, frozen=True, kw_only=True):
    """The end of the chain."""

    chain: str
    seq: int = 0
    hash: str
    file: str = ""
    size: int = 0
    """Of the file, in bytes."""
    checkpoints: int = 0
    checkpoint: str = NO_CHECKPOINT
    """The hash of the last checkpoint."""
    signed: int = 0
    """The last record that it covers."""


class DayFile(Struct, frozen=True, order=True):
    """One file of the warm tier, ordered by its first record, not by the clock."""

    first: int
    day: str
    path: Path


def day_files(folder: Path) -> list[DayFile]:
    """The files of the folder, in the order of their records."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    found = [(match, name) for name in names if (match := _DAY.fullmatch(name))]
    return sorted(DayFile(int(match[2]), match[1], folder / name) for match, name in found)


def read_head(folder: Path) -> ChainHead | None:
    """The head; None if it is missing or cannot be read."""
    try:
        return msgspec.json.decode((folder / HEAD_FILE).read_bytes(), type=ChainHead)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None


class ShippedUpTo(Struct, frozen=True):
    """How far a cold tier was shipped to, and read back."""

    chain: str
    cold: str
    """The name of the cold tier; another one has nothing yet."""
    seq: int = 0
    checkpoints: int = 0


def read_shipped(folder: Path) -> ShippedUpTo | None:
    """How far the cold tier was shipped to; None if unknown."""
    try:
        return msgspec.json.decode((folder / SHIPPED_FILE).read_bytes(), type=ShippedUpTo)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def spool_size(folder: Path) -> int:
    """Bytes of the files that the cold tier does not have completely."""
    shipped, files = read_shipped(folder), day_files(folder)
    shipped_seq = 0 if shipped is None else shipped.seq
    ends = [*(file.first - 1 for file in files[1:]), None][: len(files)]
    return sum(
        _size(file.path)
        for file, end in zip(files, ends, strict=True)
        if end is None or end > shipped_seq
    )


class WarmTier:
    """Appends records to the folder."""

    def __init__(self, folder: Path, key: AuditKey, *, checkpoint_every: int = 1000) -> None:
        self.folder, self._key, self._every = folder, key, checkpoint_every
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._unsynced: set[Path] = set()
        self._sizes_before: dict[Path, int] = {}
        """The sizes of the files before the current write."""

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the lock among all processes; a killed process releases it."""
        descriptor = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def problem(self) -> str:
        """What is wrong with the head; empty if nothing is. The next record continues from it."""
        head = read_head(self.folder)
        if head is None:
            started = day_files(self.folder) or (self.folder / CHECKPOINTS_FILE).exists()
            return f"{HEAD_FILE} is missing or cannot be read" if started else ""
        size = _size(self.folder / head.file) if head.file else 0
        if size < head.size:
            return f"{head.file} has {size} bytes, and {head.size} were written"
        return ""

    def append(self, records: Sequence[Fields], now: float) -> list[SealedRecord]:
        """Append records: all of them are written when this returns, or none."""
        with self.locked(), self._rolled_back_on_failure():
            head, notes = self._current(now)
            head = self._start_day(head, now)
            sealed = list(_chained([*notes, *records], head))
            head = self._write(head, sealed)
            if head.seq - head.signed >= self._every:
                head = self._sign(head, now)
            self._write_head(head)
        return sealed

    def checkpoint(self, now: float) -> Checkpoint | None:
        """Sign the end of the chain unless it is signed already, and sync to the disk."""
        with self.locked(), self._rolled_back_on_failure():
            head, notes = self._current(now)
            if notes:
                head = self._start_day(head, now)
                head = self._write(head, list(_chained(notes, head)))
            if head.seq > head.signed:
                head = self._sign(head, now)
            if head.seq:
                self._write_head(head)
        self.sync()
        return self.last_checkpoint()

    def last_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint."""
        lines = lines_backwards(self.folder / CHECKPOINTS_FILE)
        return next((cp for line in lines if (cp := decode(line)) is not None), None)

    def sync(self) -> None:
        """Sync what was written to the disk."""
        while self._unsynced:
            path = self._unsynced.pop()
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # shipped and deleted meanwhile
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _current(self, now: float) -> tuple[ChainHead, list[Fields]]:
        """The end of the chain, and records about what had to be recovered."""
        head, files = read_head(self.folder), day_files(self.folder)
        if head is None:
            return self._without_head(files, now)
        if files and files[-1].first == head.seq + 1 and files[-1].path.name != head.file:
            head = replace(head, file=files[-1].path.name, size=0)  # see below
        path = self.folder / head.file
        size = _size(path) if head.file else 0
        if size == head.size:
            return head, []
        if size > head.size and (adopted := _adopt(head, path)) is not None:
            # A writer was killed after its records and before the head.
            adopted, torn = adopted
            return adopted, [_recovery_note(now, f"{torn} bytes of a torn line")] if torn else []
        reason = f"{head.file} has {size} bytes and the head says {head.size}"
        return replace(head, file="", size=0), [_recovery_note(now, reason)]

    def _without_head(self, files: list[DayFile], now: float) -> tuple[ChainHead, list[Fields]]:
        if not files and not (self.folder / CHECKPOINTS_FILE).exists():
            chain = token_hex(16)
            return ChainHead(chain=chain, hash=genesis(chain)), []
        checkpoint = self.last_checkpoint()
        chain = checkpoint.chain if checkpoint else token_hex(16)
        head = ChainHead(chain=chain, hash=genesis(chain))
        if checkpoint is not None:
            head = replace(
                _with_checkpoint(head, checkpoint), seq=checkpoint.seq, hash=checkpoint.head
            )
        for file in reversed(files):
            for line in reversed(read_lines(file.path)):
                try:
                    sealed = unseal(line)
                except InvalidRecord:
                    continue
                if sealed.seq >= head.seq:
                    head = replace(head, seq=sealed.seq, hash=sealed.hash)
                return head, [_recovery_note(now, "the head was missing")]
        return head, [_recovery_note(now, "the head was missing")]

    def _start_day(self, head: ChainHead, now: float) -> ChainHead:
        """Start a file if there is none for today; the day before is signed."""
        today = day_of(now)
        if head.file.startswith(today):
            return head
        if head.seq > head.signed:
            head = self._sign(head, now)
        name = f"{today}.{head.seq + 1:012d}.jsonl"
        self._unsynced.add(self.folder)
        return replace(head, file=name, size=_size(self.folder / name))

    def _write(self, head: ChainHead, sealed: Sequence[SealedRecord]) -> ChainHead:
        if not sealed:
            return head
        data = b"".join(record.line + b"\n" for record in sealed)
        self._append(self.folder / head.file, data)
        return replace(head, seq=sealed[-1].seq, hash=sealed[-1].hash, size=head.size + len(data))

    def _sign(self, head: ChainHead, now: float) -> ChainHead:
        path = self.folder / CHECKPOINTS_FILE
        head = self._adopt_checkpoints(head, path)
        if head.seq <= head.signed:
            return head
        unsigned = Checkpoint(
            head.chain, head.checkpoints + 1, head.seq, head.hash, now, head.checkpoint, ""
        )
        signed = self._key.sign(unsigned)
        self._append(path, encode(signed) + b"\n")
        return _with_checkpoint(head, signed)

    def _adopt_checkpoints(self, head: ChainHead, path: Path) -> ChainHead:
        """Adopt checkpoints that a killed writer signed before the head; truncate a torn one."""
        _truncate_torn_line(path)
        unknown: list[Checkpoint] = []
        for line in lines_backwards(path):
            found = decode(line)
            if found is not None and found.hash == head.checkpoint:
                break
            unknown += [] if found is None else [found]
        for found in reversed(unknown):
            if found.prev == head.checkpoint and found.seq <= head.seq:
                head = _with_checkpoint(head, found)
        return head

    def _append(self, path: Path, data: bytes) -> None:
        """Append all of the data; raise `OSError` if the disk is full."""
        descriptor = os.open(path, _APPEND, 0o600)
        try:
            self._sizes_before.setdefault(path, os.fstat(descriptor).st_size)
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        finally:
            os.close(descriptor)
        self._unsynced.add(path)

    @contextmanager
    def _rolled_back_on_failure(self) -> Generator[None]:
        """On failure truncate the files to their old sizes: a retry writes no duplicates."""
        self._sizes_before.clear()
        try:
            yield
        except (OSError, AuditError):
            for path, size in self._sizes_before.items():
                os.truncate(path, size)
            raise

    def _write_head(self, head: ChainHead) -> None:
        """Overwrite the head in place: replacing the file would wait for the disk."""
        path = self.folder / HEAD_FILE
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            data = msgspec.json.encode(head).ljust(HEAD_BYTES) + b"\n"
            if os.pwrite(descriptor, data, 0) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        finally:
            os.close(descriptor)


def read_lines(path: Path) -> list[bytes]:
    """The complete lines of a file; none if it is missing."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise AuditError(f"cannot read {path}: {problem.strerror}") from None
    return data.split(b"\n")[:-1]


def lines_backwards(path: Path, block: int = READ_BLOCK_BYTES) -> Iterator[bytes]:
    """The complete lines of a file, the last one first, read only as far as needed."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    except OSError as problem:
        raise AuditError(f"cannot read {path}: {problem.strerror}") from None
    with file:
        end, start, seen = file.seek(0, os.SEEK_END), b"", False
        while end:
            end, last = max(0, end - block), end
            file.seek(end)
            start, *lines = (file.read(last - end) + start).split(b"\n")
            if lines and not seen:
                lines.pop()  # after the last newline there is no line
                seen = True
            yield from reversed(lines)
        if seen:
            yield start


def _truncate_torn_line(path: Path) -> None:
    """Truncate a file after its last complete line."""
    size = _size(path)
    if not size:
        return
    with path.open("rb") as file:
        file.seek(size - 1)
        if file.read() == b"\n":
            return
    os.truncate(path, sum(len(line) + 1 for line in read_lines(path)))


def _chained(records: Iterable[Fields], head: ChainHead) -> Iterator[SealedRecord]:
    seq, prev = head.seq, head.hash
    for fields in records:
        seq += 1
        sealed = seal(fields, seq, prev)
        prev = sealed.hash
        yield sealed


def _recovery_note(now: float, reason: str) -> Fields:
    return {"kind": "recovered", "timestamp": stamp(now), "at": now, "reason": reason}


def _adopt(head: ChainHead, path: Path) -> tuple[ChainHead, int] | None:
    """Continue from records after the head, if they follow it; a torn line is truncated."""
    data = path.read_bytes()[head.size :]
    *lines, torn = data.split(b"\n")
    for line in lines:
        try:
            sealed = unseal(line)
        except InvalidRecord:
            return None
        if sealed.seq != head.seq + 1 or sealed.fields.get("prev") != head.hash:
            return None
        head = replace(head, seq=sealed.seq, hash=sealed.hash, size=head.size + len(line) + 1)
    if torn:
        os.truncate(path, head.size)
    return head, len(torn)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _with_checkpoint(head: ChainHead, checkpoint: Checkpoint) -> ChainHead:
    return replace(
        head, checkpoints=checkpoint.n, checkpoint=checkpoint.hash, signed=checkpoint.seq
    )
