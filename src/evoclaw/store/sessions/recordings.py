"""A run as a file: one record a line, in order. It can be replayed, and gone on with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import msgspec

from evoclaw.core.errors import ConfigError, RecordingError
from evoclaw.core.events import Record


def encode_record(record: Record) -> bytes:
    """One line of a recording."""
    return msgspec.json.encode(record) + b"\n"


class Recording:
    """A sink that appends to a file; each record is in the hands of the system when it returns."""

    def __init__(self, path: Path, seq: int = 0) -> None:
        self.path = path
        self.seq = seq
        """How many records it held when it was opened."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A run's records hold whatever its tools saw: for the owner's eyes alone.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"cannot record to {path}: {error.strerror}; choose another place with --record"
            ) from None
        self._file: BinaryIO = os.fdopen(descriptor, "ab", buffering=0)
        if seq == 0 and os.fstat(descriptor).st_size:
            self._file.close()
            raise ConfigError(
                f"{path} is not empty; choose another place, or go on with its run by --resume"
            )

    def receive(self, record: Record) -> None:
        """Append one record."""
        self._file.write(encode_record(record))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def reopen_recording(path: Path) -> tuple[list[Record], Recording]:
    """Read a recording to go on with it; what a crash left of a last line is cut away."""
    records = read_recording(path)
    data = path.read_bytes()
    # By its own lines: an older file's records may be written otherwise today.
    whole = data.rfind(b"\n") + 1
    if len(data) > whole:
        os.truncate(path, whole)
    return records, Recording(path, len(records))


def read_recording(path: Path) -> list[Record]:
    """Read a recording; a last line cut off by a crash is left out, other damage is an error."""
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
            record = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RecordingError(f"{path}, line {number}: not a record ({error})") from None
        if record.seq != number:
            raise RecordingError(f"{path}, line {number}: record {record.seq} is out of place")
        records.append(record)
    if not records:
        raise RecordingError(f"{path}: no records" + (" (one, cut off)" if torn else ""))
    return records
