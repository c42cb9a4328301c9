"""The proof that a run is what it says, and what is said of one that is not."""

from __future__ import annotations

from msgspec.structs import replace

from evoclaw.core.events import CallFinished, Record
from evoclaw.core.replay import ReplayResult, verify_replay
from evoclaw.providers.scripted import calls, says
from tests.core.test_replay import record


def other_call(records: list[Record]) -> tuple[int, list[Record]]:
    """The same, but that a call's result is said to be another call's."""
    place = next(i for i, one in enumerate(records) if isinstance(one.event, CallFinished))
    event = records[place].event
    assert isinstance(event, CallFinished)
    changed = replace(event, result=replace(event.result, call_id="another"))
    return place, [
        replace(one, event=changed) if number == place else one
        for number, one in enumerate(records)
    ]


async def test_an_unchanged_run_replays_identically() -> None:
    records = await record(calls(("echo", {"text": "a"})), says("done"))
    assert await verify_replay(records) == ReplayResult(True, len(records))


async def test_a_tampered_record_that_stalls_the_loop_is_detected() -> None:
    place, records = other_call(await record(calls(("echo", {"text": "a"})), says("done")))
    found = await verify_replay(records, stall=0.05)
    assert (found.same, found.differs_at) == (False, found.records + 1)
    assert found.differs_at is not None and found.differs_at <= place + 1
    assert "the replay stalled" in found.reason


async def test_an_empty_recording_is_refused() -> None:
    assert (await verify_replay([])).reason == "the recording does not start with run_started"
