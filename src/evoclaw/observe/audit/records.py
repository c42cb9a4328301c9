"""One line of the audit: canonical JSON, chained to the previous line by its hash."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import TypeAlias

import msgspec
from msgspec import Struct

from evoclaw.core.messages import JSON, is_array, is_object

Fields: TypeAlias = dict[str, JSON]
"""Of a record, without its position in the chain."""

MAX_EXACT_INT = 1 << 53
"""Larger integers are written as text: not every JSON parser keeps them exact."""
ENCODING_ERRORS = (TypeError, ValueError, OverflowError, RecursionError)
"""Raised for values that cannot be written as JSON."""
_ENCODER = msgspec.json.Encoder(order="sorted")
_INVISIBLE = re.compile(
    "[\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff]"
)
"""Characters that end a line for some readers, change the text direction, or are invisible."""


class SealedRecord(Struct, frozen=True):
    """A record with its position in the chain."""

    seq: int
    hash: str
    line: bytes
    """Without the newline."""
    fields: Fields


class InvalidRecord(Exception):
    """A line that is not a record, or was changed after it was written."""


def genesis(chain: str) -> str:
    """The hash before the first record of a chain."""
    return sha256(b"evoclaw audit chain " + chain.encode()).hexdigest()


def canonical(fields: Mapping[str, JSON]) -> bytes:
    """The only encoding of a record: sorted names, no spaces, one line, no invisible characters."""
    line = _ENCODER.encode(fields)
    return line if line.isascii() else _INVISIBLE.sub(_escaped, line.decode()).encode()


def _escaped(match: re.Match[str]) -> str:
    """A character as a JSON escape."""
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def seal(fields: Fields, seq: int, prev: str) -> SealedRecord:
    """Append a record to the one with the hash `prev`."""
    try:
        body = canonical(fields := {**fields, "seq": seq, "prev": prev})
    except ENCODING_ERRORS:
        body = canonical(fields := {**plain(fields), "seq": seq, "prev": prev})
    digest = sha256(body).hexdigest()
    fields["hash"] = digest
    return SealedRecord(seq, digest, canonical(fields), fields)


def unseal(line: bytes) -> SealedRecord:
    """Parse a line; `InvalidRecord` says what is wrong with it."""
    try:
        fields: JSON = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise InvalidRecord("it is not JSON") from None
    if not is_object(fields):
        raise InvalidRecord("it is not a record")
    seq, digest = fields.get("seq"), fields.get("hash")
    if not isinstance(seq, int) or not isinstance(digest, str) or seq < 1:
        raise InvalidRecord("it has no number or no hash")
    if canonical(fields) != line:
        raise InvalidRecord("it is not in the audit's encoding")
    body = {name: value for name, value in fields.items() if name != "hash"}
    if sha256(canonical(body)).hexdigest() != digest:
        raise InvalidRecord("its hash does not match its content")
    return SealedRecord(seq, digest, line, fields)


def plain(value: JSON) -> JSON:
    """Convert what JSON cannot express into text."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bool | None):
        return value
    if isinstance(value, int):
        return value if -MAX_EXACT_INT < value < MAX_EXACT_INT else f"{value:#x}"[:100]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if is_object(value):
        return {plain(str(name)): plain(item) for name, item in value.items()}
    if is_array(value):
        return [plain(item) for item in value]
    return plain(str(value))


def stamp(at: float) -> str:
    """A time in ISO 8601, in UTC, to the millisecond."""
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return "unknown"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def day_of(at: float) -> str:
    """The day of a time, in UTC."""
    return stamp(at)[:10]
