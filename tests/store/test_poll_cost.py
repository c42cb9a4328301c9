"""Polls of an orchestrator: they disturb no commit."""

from __future__ import annotations

from secrets import token_hex

import pytest

from evoclaw.store import memory
from evoclaw.store.databases.database import Connection
from evoclaw.store.databases.steps import Step
from evoclaw.store.governance import devices, stops
from evoclaw.store.governance.devices import DeviceStore
from evoclaw.store.governance.stops import StopStore
from evoclaw.store.memory import EventType, MemoryStore, Observation
from evoclaw.store.runs import queue
from evoclaw.store.runs.inbox import Inbox
from evoclaw.store.sessions import tables
from evoclaw.store.sessions.sessions import SessionStore
from tests.support.databases import Place, hold_deferred_commits

SCHEMAS = (memory.SCHEMA, devices.SCHEMA, stops.SCHEMA, tables.SCHEMA, queue.SCHEMA)


def observations(connection: Connection) -> int:
    return connection.execute("SELECT count(*) FROM memory_observations").fetchone()[0]


@pytest.mark.process
async def test_a_poll_does_not_commit_deferred_steps(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_deferred_commits(monkeypatch)
    place = Place(postgres_url, f"test_{token_hex(6)}")
    database = await place.open(*SCHEMAS)
    other = await place.open(*SCHEMAS)
    try:
        row = MemoryStore(database).row(Observation("r.1", "s", "a", EventType.DECISION, "text"))
        database.defer(Step(memory.PUT_OBSERVATIONS, ([row],)))
        assert await StopStore(database).all() == []
        assert await DeviceStore(database).since(0) == (0, {})
        inbox = Inbox(SessionStore(database))
        assert await inbox.message_counts("one") == {}
        assert await inbox.cancelled_runs() == []
        assert await other.read(observations) == 0
        await database.flush()
        assert await other.read(observations) == 1
    finally:
        await database.close()
        await other.close()
