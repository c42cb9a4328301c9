"""Recordings: a run as a file, one record per line, in order. It can be replayed and resumed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import msgspec

from evoclaw.core.errors import ConfigError, RecordingError
from evoclaw.core.events import Record
from evoclaw.store.databases.blob_cipher import BlobCipher, SealedValue, is_sealed_line

PLAIN = BlobCipher()
"""For a recording that is not encrypted."""


def encode_record(record: Record) -> bytes:
    """One line of a recording."""
    return msgspec.json.encode(record) + b"\n"


class Recording:
    """A sink that appends to a file; a record is with the operating system when it returns."""

    def __init__(self, path: Path, seq: int = 0, *, cipher: BlobCipher = PLAIN) -> None:
        """Open the file, and encrypt each line with the cipher."""
        self.path, self._cipher = path, cipher
        self.seq = seq
        """How many records the file had when it was opened."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Records hold whatever tools returned: readable by the owner only.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"cannot record to {path}: {error.strerror}; choose another file with --record"
            ) from None
        self._file: BinaryIO = os.fdopen(descriptor, "ab", buffering=0)
        if seq == 0 and os.fstat(descriptor).st_size:
            self._file.close()
            raise ConfigError(
                f"{path} is not empty; choose another file, or resume its run with --resume"
            )

    def receive(self, record: Record) -> None:
        """Append one record."""
        self._file.write(self._cipher.seal_line(msgspec.json.encode(record)) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def reopen_recording(path: Path, *, cipher: BlobCipher = PLAIN) -> tuple[list[Record], Recording]:
    """Read a recording to resume its run; an incomplete last line is truncated.

    It stays encrypted, or not, as it was started.
    """
    records = read_recording(path, cipher=cipher)
    data = path.read_bytes()
    # By its own lines: the records of an older file may be encoded differently today.
    complete = data.rfind(b"\n") + 1
    if len(data) > complete:
        os.truncate(path, complete)
    new_lines = cipher if is_sealed_line(data) else PLAIN
    return records, Recording(path, len(records), cipher=new_lines)


def read_recording(path: Path, *, cipher: BlobCipher = PLAIN) -> list[Record]:
    """Read a recording; an incomplete last line is ignored, other damage is an error."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from None
    decoder = msgspec.json.Decoder(Record)
    records: list[Record] = []
    lines = data.split(b"\n")
    torn = lines.pop()
    for number, line in enumerate(lines, 1):
        try:
            record = decoder.decode(cipher.open_line(line, path))
        except SealedValue as error:
            raise RecordingError(str(error)) from None
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise RecordingError(f"{path}, line {number}: not a record ({error})") from None
        if record.seq != number:
            raise RecordingError(f"{path}, line {number}: record {record.seq} is out of place")
        records.append(record)
    if not records:
        raise RecordingError(f"{path}: no records" + (" (one, cut off)" if torn else ""))
    return records
