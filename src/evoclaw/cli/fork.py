"""`evoclaw fork`: a recorded run again from one of its turns, with another model or other words."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from evoclaw.cli.client import open_client
from evoclaw.cli.needs import Wiring
from evoclaw.cli.render import tell
from evoclaw.cli.run import run
from evoclaw.cli.watching import records_of
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import Record
from evoclaw.core.forking import NothingLeft, forked, with_prompt
from evoclaw.core.state import new_run
from evoclaw.store.sessions.recordings import read_recording


def fork(options: Namespace, wiring: Wiring) -> int:
    """Begin a new run where the old one stood before a turn; it is recorded by itself."""
    records = _records(options)
    try:
        messages = forked(records, options.at, options.message or "")
    except NothingLeft as over:
        raise ConfigError(f"{over}: --message TEXT") from None
    if options.prompt is not None:
        messages = with_prompt(messages, _text(Path(options.prompt)))
    tell(f"forked from run {records[0].run_id[:8]} at turn {options.at}")
    return run(options, wiring, new_run(messages))


def _records(options: Namespace) -> Sequence[Record]:
    if (options.recording is None) == (options.run is None):
        raise ConfigError("say what to fork: a recording, or --run ID for a run of the service")
    if options.recording is not None:
        return read_recording(Path(options.recording))
    return asyncio.run(_records_there(options.run))


async def _records_there(run_id: str) -> list[Record]:
    async with open_client(os.environ) as client:
        return await records_of(client, run_id)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
