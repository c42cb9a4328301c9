"""A record on its way to a watcher: the same bytes, though parts of it are encoded once."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from evoclaw.api.routes.runs import record_frame
from evoclaw.api.sse import frame
from evoclaw.core.events import Record, ToolsChanged
from evoclaw.core.record_encoding import record_json
from evoclaw.store.sessions.recordings import read_recording
from evoclaw.tools.sets import everything

GOLDEN = Path(__file__).parent.parent / "core" / "golden" / "run.jsonl"


def test_every_record_is_encoded_alike_before_and_after_it_was_decoded() -> None:
    rights = frozenset({"shell", "file_read", "file_write", "network", "session"})
    tools = tuple(replace(bound.tool, permissions=rights) for bound in everything())
    changed = (replace(tools[0], description="changed"), *tools[1:])
    offers = [Record("r", 1, 0.5, ToolsChanged(offer)) for offer in (tools, tools, changed, ())]
    for record in [*read_recording(GOLDEN), *offers]:
        tag = str(type(record.event).__struct_config__.tag)
        encoded = record_json(record)
        decoded = msgspec.json.decode(encoded, type=Record)
        assert decoded == record
        assert record_json(decoded) == encoded
        assert record_frame(record) == frame(tag, msgspec.Raw(encoded), record.seq)
