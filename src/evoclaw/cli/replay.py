"""`evoclaw replay FILE`: replay a recorded run offline, and prove that it is the same."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import click

from evoclaw.cli import exits
from evoclaw.cli.options import FILE, CliCommand, json_option
from evoclaw.cli.output import print_err
from evoclaw.cli.render import renderer
from evoclaw.core.replay import replay_exactly


@click.command(cls=CliCommand)
@click.argument("file", type=FILE, help="A recording of `evoclaw run`")
@json_option("Print every record as a line of JSON")
def replay(file: Path, *, as_json: bool) -> int:
    """Replay a recorded run."""
    return asyncio.run(_replay(file, as_json=as_json))


async def _replay(path: Path, *, as_json: bool) -> int:
    from evoclaw.wiring.record_key import open_recording

    shown, count = renderer(json=as_json), 0
    async with aclosing(replay_exactly(open_recording(path))) as records:
        async for record in records:
            count += 1
            shown.receive(record)
    print_err(f"replayed {count} records, byte for byte the same")
    return exits.OK
