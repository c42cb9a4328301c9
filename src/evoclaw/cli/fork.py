"""`evoclaw fork`: re-run a recorded run from a given turn, with another model or prompt."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from evoclaw.cli.client import open_client
from evoclaw.cli.options import FILE, ExclusiveCommand
from evoclaw.cli.output import print_err
from evoclaw.cli.run import RunOptions, run_options, start_run
from evoclaw.cli.service_api import get_records
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import Record
from evoclaw.core.forking import RunAlreadyEnded, fork_messages, with_prompt
from evoclaw.core.state import new_run


@click.command(cls=ExclusiveCommand, exclusive=(("yes", "read_only"), ("record", "no_record")))
@click.argument("recording", type=FILE, required=False, help="A recording of `evoclaw run`")
@click.option("--run", "run_id", metavar="ID", help="Fork this run of the service instead")
@click.option(
    "--at", type=int, required=True, metavar="TURN", help="Re-run from this turn; keep those before"
)
@click.option("--prompt", type=FILE, metavar="FILE", help="Replace the instructions by this file")
@click.option("--message", metavar="TEXT", help="Add this message; at turn 1, it replaces the task")
@run_options
def fork(
    recording: Path | None,
    run_id: str | None,
    at: int,
    prompt: Path | None,
    message: str | None,
    **options: Any,
) -> int:
    """Start a new run from the state before a turn; it gets a recording of its own."""
    records = _records(recording, run_id)
    try:
        messages = fork_messages(records, at, message or "")
    except RunAlreadyEnded as over:
        raise ConfigError(f"{over}: --message TEXT") from None
    if prompt is not None:
        messages = with_prompt(messages, _text(prompt))
    print_err(f"forked from run {records[0].run_id[:8]} at turn {at}")
    return start_run(RunOptions(**options), new_run(messages))


def _records(recording: Path | None, run_id: str | None) -> Sequence[Record]:
    from evoclaw.wiring.record_key import open_recording

    if recording is not None and run_id is None:
        return open_recording(recording)
    if recording is None and run_id is not None:
        return asyncio.run(_service_records(run_id))
    raise ConfigError("name what to fork: a recording, or --run ID for a run of the service")


async def _service_records(run_id: str) -> list[Record]:
    async with open_client(os.environ) as client:
        return await get_records(client, run_id)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
