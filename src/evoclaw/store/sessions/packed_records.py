"""The records that a run stores at once, as one row.

The row has the number of its last record. Its columns are the times, each as the time since the
record before, and the events. Most records are pieces of a reply: pieces in a row are one text and
their lengths, which is also the text of the reply, and so compresses to nearly nothing.

The list of tools in a `ToolsChanged` is the same in most runs of an agent, and larger than the
rest: it is stored once, under its digest, and the row begins with the digests of its lists.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.events import Event, ReasoningDelta, Record, TextDelta, ToolsChanged
from evoclaw.core.record_encoding import MAX_ENCODED_TOOLS, tools_json
from evoclaw.core.tools import Tool
from evoclaw.core.toolset import SameTools
from evoclaw.store.sessions.json_compression import compress_json, decompress_json

_TICKS_PER_S = 1 << 22
"""The times of records are multiples of this part of a second, as floats of our time are."""
_COLUMNS_START = b"["
"""The first byte of a row of columns; older rows are lines of JSON objects."""
_REFERENCES_HEADER = b"t"
"""The first byte of rows with tool lists: their digests by record, a line, and the records."""
_NO_TOOLS = ToolsChanged(())
_DELTA_TYPES = {"text_delta": TextDelta, "reasoning_delta": ReasoningDelta}
_DELTA_NAMES = {type_: name for name, type_ in _DELTA_TYPES.items()}
_Deltas: TypeAlias = tuple[str, str, list[int]]
"""Deltas of one type in a row: their type, all their text, and the length of each."""


class _Columns(Struct, frozen=True, array_like=True, gc=False):
    """The records of a row by column."""

    run_id: str
    seqs: int | list[int]
    """Their numbers; only the first one, if each is one higher."""
    times: list[int | float]
    """Whole numbers are ticks after the record before; others are absolute."""
    events: list[Event | _Deltas]


_COLUMNS_DECODER = msgspec.json.Decoder(_Columns)
_LINES_DECODER = msgspec.json.Decoder(Record)
_REFERENCES = msgspec.json.Decoder(dict[int, str])
_TOOLS = msgspec.json.Decoder(tuple[Tool, ...])


class StoredToolList(Struct, frozen=True):
    """The tools of a `ToolsChanged`, as they are stored."""

    digest: str
    data: bytes
    """Compressed JSON."""


class PackedRecords(Struct, frozen=True):
    """A row, and the tool lists that it refers to."""

    row: bytes
    tool_lists: Sequence[StoredToolList] = ()


def pack_records(records: Sequence[Record], key_id: str = "") -> PackedRecords:
    """The row of some records of a run.

    Args:
        records: The records, at least one.
        key_id: The key that tool lists are encrypted with: it is a part of their digest, so that no
            row refers to a list of a key that is lost.
    """
    lists: dict[int, StoredToolList] = {}
    events: list[Event] = []
    for record in records:
        event = record.event
        if isinstance(event, ToolsChanged) and event.tools:
            lists[record.seq] = _tool_list(SameTools(event.tools), key_id)
            event = _NO_TOOLS
        events.append(event)
    first, seqs = records[0], [record.seq for record in records]
    is_gapless = seqs == list(range(first.seq, first.seq + len(seqs)))
    columns = _Columns(
        first.run_id,
        first.seq if is_gapless else seqs,
        _relative_times([record.at for record in records]),
        [*_with_joined_deltas(events)],
    )
    row = compress_json(msgspec.json.encode(columns))
    if not lists:
        return PackedRecords(row)
    digests = msgspec.json.encode({seq: found.digest for seq, found in lists.items()})
    return PackedRecords(b"%b%b\n%b" % (_REFERENCES_HEADER, digests, row), tuple(lists.values()))


def _relative_times(times: Sequence[float]) -> list[int | float]:
    found: list[int | float] = [float(times[0])]
    for before, at in zip(times, times[1:], strict=False):
        ticks = round((at - before) * _TICKS_PER_S)
        found.append(ticks if before + ticks / _TICKS_PER_S == at else float(at))
    return found


def _absolute_times(times: Sequence[int | float]) -> Iterator[float]:
    at = 0.0
    for time in times:
        at = time if isinstance(time, float) else at + time / _TICKS_PER_S
        yield at


def _with_joined_deltas(events: Sequence[Event]) -> Iterator[Event | _Deltas]:
    for type_, group in groupby(events, type):
        if type_ is TextDelta or type_ is ReasoningDelta:
            texts = [event.text for event in group if isinstance(event, TextDelta | ReasoningDelta)]
            yield _DELTA_NAMES[type_], "".join(texts), [len(text) for text in texts]
        else:
            yield from group


def _with_split_deltas(events: Sequence[Event | _Deltas]) -> Iterator[Event]:
    for event in events:
        if not isinstance(event, tuple):
            yield event
            continue
        name, text, lengths = event
        type_, start = _DELTA_TYPES[name], 0
        for length in lengths:
            yield type_(text[start : start + length])
            start += length


def referenced_tool_lists(row: bytes) -> dict[int, str]:
    """The digests of the tool lists of a row, by the number of their record."""
    if not row.startswith(_REFERENCES_HEADER):
        return {}
    return _REFERENCES.decode(row[1 : row.index(b"\n")])


def unpack_records(row: bytes, tool_lists: Mapping[str, bytes]) -> list[Record]:
    """The records of a row; `tool_lists` has the data of the lists that it refers to."""
    references = referenced_tool_lists(row)
    if references:
        row = row[row.index(b"\n") + 1 :]
    records = _decoded(decompress_json(row))
    if not references:
        return records
    return [
        replace(record, event=ToolsChanged(_decoded_tools(tool_lists[references[record.seq]])))
        if record.seq in references
        else record
        for record in records
    ]


def _decoded(row: bytes) -> list[Record]:
    if not row.startswith(_COLUMNS_START):
        return _LINES_DECODER.decode_lines(row)
    columns = _COLUMNS_DECODER.decode(row)
    count, seqs = len(columns.times), columns.seqs
    numbers = range(seqs, seqs + count) if isinstance(seqs, int) else seqs
    times, events = _absolute_times(columns.times), _with_split_deltas(columns.events)
    return [
        Record(columns.run_id, seq, at, event)
        for seq, at, event in zip(numbers, times, events, strict=True)
    ]


@lru_cache(maxsize=MAX_ENCODED_TOOLS)
def _tool_list(same: SameTools, key_id: str) -> StoredToolList:
    tools = tools_json(same.tools)
    digest = hashlib.sha256(key_id.encode() + tools).hexdigest()[:32]
    return StoredToolList(digest, zlib.compress(tools))


@lru_cache(maxsize=MAX_ENCODED_TOOLS)
def _decoded_tools(data: bytes) -> tuple[Tool, ...]:
    return _TOOLS.decode(zlib.decompress(data))
