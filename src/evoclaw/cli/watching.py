"""Reads the records of a run of the service, until it ends or waits for a person."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from evoclaw.cli.client import ServiceClient
from evoclaw.cli.routes import api_path, as_object
from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import Record, RunFinished
from evoclaw.core.messages import JSON

PAUSED_STATES = ("ended", "waiting")
"""States of a run that produces no more records by itself."""


async def get_run(client: ServiceClient, run_id: str) -> dict[str, JSON]:
    """The state and figures of a run."""
    return as_object(await client.get(api_path("runs", run_id)))


async def get_records(client: ServiceClient, run_id: str) -> list[Record]:
    """The records of a run so far."""
    data = await client.request_bytes("GET", api_path("runs", run_id, "records"))
    try:
        return msgspec.json.Decoder(Record).decode_lines(data)
    except msgspec.DecodeError as problem:
        raise EvoClawError(f"the service sent records that cannot be read: {problem}") from None


async def watch_records(
    client: ServiceClient, run_id: str, after: int = 0
) -> AsyncGenerator[Record]:
    """Every record after number `after`, each once and in order.

    It reconnects to a service that restarts. The last record is a `RunFinished`, unless the run
    was cancelled before it started.
    """
    decoder = msgspec.json.Decoder(Record)
    while True:
        events = client.stream_events(
            api_path("runs", run_id, "events"), after=str(after) if after else "", follow="true"
        )
        async with aclosing(events):
            async for event in events:
                try:
                    record = decoder.decode(event.data)
                except msgspec.DecodeError as problem:
                    raise EvoClawError(
                        f"the service sent a record that cannot be read: {problem}"
                    ) from None
                if record.seq <= after:
                    continue
                after = record.seq
                yield record
                if isinstance(record.event, RunFinished):
                    return
        if (await get_run(client, run_id)).get("state") in PAUSED_STATES:
            return
