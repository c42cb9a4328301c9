"""The records that a run stores at once, as one row: most are pieces of a reply, and compress well.

The row has the number of its last record.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from evoclaw.core.events import Record
from evoclaw.core.record_encoding import record_json

MIN_COMPRESSED_BYTES = 512
"""Bytes from which compression is worth its time."""
_COMPRESSION_LEVEL = 1
_ZLIB_HEADER = b"x"
"""The first byte of compressed rows; JSON never begins with it."""
_DECODER = msgspec.json.Decoder(Record)


def pack_records(records: Sequence[Record]) -> bytes:
    """Records as lines of JSON, compressed if there are many."""
    lines = b"\n".join(map(record_json, records))
    if len(lines) < MIN_COMPRESSED_BYTES:
        return lines
    return zlib.compress(lines, _COMPRESSION_LEVEL)


def unpack_records(row: bytes) -> list[Record]:
    """The records of a row."""
    lines = zlib.decompress(row) if row.startswith(_ZLIB_HEADER) else row
    return _DECODER.decode_lines(lines)
