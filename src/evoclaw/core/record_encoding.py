"""A record as JSON; the tools of a run, most of its bytes, are encoded once for many runs."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec import Raw, Struct

from evoclaw.core.events import Record, ToolsChanged
from evoclaw.core.toolset import SameTools

MAX_ENCODED_TOOLS = 32
"""Encoded events of tools in the cache: most runs of an agent are offered the same tools."""


class _EncodedRecord(Struct, frozen=True, gc=False):
    """A record whose event is encoded already; with the fields of `Record`."""

    run_id: str
    seq: int
    at: float
    event: Raw


def record_json(record: Record) -> bytes:
    """The bytes of `msgspec.json.encode(record)`; for a watcher, a recording or the store."""
    event = record.event
    if not isinstance(event, ToolsChanged):
        return msgspec.json.encode(record)
    raw = _encoded(SameTools(event.tools))
    return msgspec.json.encode(_EncodedRecord(record.run_id, record.seq, record.at, raw))


@lru_cache(maxsize=MAX_ENCODED_TOOLS)
def _encoded(same: SameTools) -> Raw:
    return Raw(msgspec.json.encode(ToolsChanged(same.tools)))
