"""`evoclaw replay FILE`: a recorded run again, offline, and the proof that it is the same."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from contextlib import aclosing
from pathlib import Path

from evoclaw.cli import exits
from evoclaw.cli.render import face, tell
from evoclaw.core.replaying import replayed
from evoclaw.store.sessions.recordings import read_recording


def replay(options: Namespace, _wiring: object = None) -> int:
    """Run the command."""
    return asyncio.run(_replay(Path(options.file), json=options.json))


async def _replay(path: Path, *, json: bool) -> int:
    shown, count = face(json=json), 0
    async with aclosing(replayed(read_recording(path))) as records:
        async for record in records:
            count += 1
            shown.receive(record)
    tell(f"replayed {count} records, byte for byte the same")
    return exits.OK
