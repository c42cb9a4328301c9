"""A record as JSON; the tools of a run, most of its bytes, are encoded once for many runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec
from msgspec import Raw, Struct

from evoclaw.core.events import Record, ToolsChanged
from evoclaw.core.messages import JSON
from evoclaw.core.tools import Tool
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
    """A record as JSON, for a watcher, a recording or the store."""
    event = record.event
    if not isinstance(event, ToolsChanged):
        return msgspec.json.encode(record)
    raw = _encoded(SameTools(event.tools))
    return msgspec.json.encode(_EncodedRecord(record.run_id, record.seq, record.at, raw))


@lru_cache(maxsize=MAX_ENCODED_TOOLS)
def _encoded(same: SameTools) -> Raw:
    event = msgspec.to_builtins(ToolsChanged(same.tools))
    return Raw(msgspec.json.encode({**event, "tools": Raw(tools_json(same.tools))}))


def tools_json(tools: Sequence[Tool]) -> bytes:
    """Tools as JSON: the same bytes again after they were decoded, unlike those of a set."""
    every: list[dict[str, JSON]] = msgspec.to_builtins(tools)
    for tool, known in zip(every, tools, strict=True):
        if known.permissions:
            tool["permissions"] = [*sorted(known.permissions)]
    return msgspec.json.encode(every)
