"""`evoclaw replay FILE`: a recorded run again, offline, and the proof that it is the same."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from pathlib import Path

from evoclaw.cli import exits
from evoclaw.cli.render import face, tell
from evoclaw.core.errors import RecordingError
from evoclaw.core.replay import Replay
from evoclaw.store.recordings import encode_record, read_recording


def replay(options: Namespace, _wiring: object = None) -> int:
    """Run the command."""
    return asyncio.run(_replay(Path(options.file), json=options.json))


async def _replay(path: Path, *, json: bool) -> int:
    records = read_recording(path)
    shown = face(json=json)
    count = 0
    async for record in Replay(records).records():
        if encode_record(record) != encode_record(records[count]):
            raise RecordingError(f"record {count + 1} came out differently")
        count += 1
        shown.receive(record)
    tell(f"replayed {count} records, byte for byte the same")
    return exits.OK
