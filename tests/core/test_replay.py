"""A recorded run comes out again byte for byte, however it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ProviderError, ProviderErrorKind, RecordingError
from evoclaw.core.events import (
    CallDelayed,
    CallFinished,
    CallJudged,
    CallOutput,
    CallStarted,
    Record,
    RunFinished,
    StopReason,
    TextDelta,
    ToolsChanged,
)
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import ErrorKind, Reply, ToolCall, user
from evoclaw.core.ports import (
    ALLOW,
    Ask,
    Decision,
    Delay,
    Deny,
    Executor,
    Policy,
    Ports,
    Progress,
    Verdict,
)
from evoclaw.core.profile import Profile
from evoclaw.core.replay import Replay
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import RunState, fold, new_run
from evoclaw.core.tools import Call, Tool
from evoclaw.providers.scripted import Scripted, ScriptStep, calls, says
from evoclaw.store.sessions.recordings import encode_record, read_recording
from tests.core.test_loop import Answering, Asking
from tests.support.loop import DenyingPolicy, Gate, Table, echo, echo_table, fail, tool


async def record(
    *steps: ScriptStep,
    executor: Executor | None = None,
    policy: Policy | None = None,
    approver: Answering | None = None,
    settings: LoopSettings = LoopSettings(),
    profile: Profile = Profile(),
    deadline: Deadline | None = None,
    cancel_at: type | None = None,
    state: RunState | None = None,
    seq: int = 0,
) -> list[Record]:
    state = state or new_run([user("go")])
    ports = Ports(
        Scripted(*steps, profile=profile),
        executor or echo_table(),
        policy or DenyingPolicy(),
        approver or Answering(),
    )
    deadline = deadline or Deadline()
    records: list[Record] = []
    async with asyncio.timeout(30):
        bus = Bus(state.run_id, seq=seq)
        async for r in recorded(run_loop(state, ports, settings, deadline), bus):
            records.append(r)
            if cancel_at is not None and isinstance(r.event, cancel_at):
                deadline.cancel()
    return records


async def assert_replays(records: list[Record]) -> None:
    async with asyncio.timeout(30):
        again = [r async for r in Replay(records).records()]
    assert [msgspec.json.encode(r) for r in again] == [msgspec.json.encode(r) for r in records]


async def test_a_plain_run_with_parallel_calls_bad_calls_and_confirmation_replays() -> None:
    mixed = Reply(
        "hm",
        (
            ToolCall("", "echo", '{"text":"a"}'),
            ToolCall("x", "missing"),
            ToolCall("x", "echo", "{"),
            ToolCall("y", "bad", "{}"),
            ToolCall("z", "echo", '{"text":"b"}'),
            ToolCall("w", "echo"),
        ),
    )
    executor = Table((tool("bad"), fail), (tool("echo", effect="read", resources=()), echo))
    settings = LoopSettings(confirm=True)
    script = (mixed, says("well"), says("COMPLETED: yes"))
    await assert_replays(await record(*script, executor=executor, settings=settings))


async def test_tools_that_were_reported_twice_and_are_stored_once_replay() -> None:
    class Reconnecting(Table):
        def tools(self) -> Sequence[Tool]:
            return list(super().tools())

    records = await record(says("ok"), executor=Reconnecting((tool("echo"), echo)))
    changes = [r for r in records if isinstance(r.event, ToolsChanged)]
    assert len(changes) == 2
    await assert_replays(records)
    stored = [
        msgspec.structs.replace(r, event=changes[0].event) if r in changes else r for r in records
    ]
    await assert_replays(stored)


async def test_denied_approved_and_refused_calls_replay() -> None:
    asked = calls(("echo", {"text": "1"}), ("echo", {"text": "2"}))
    approver = Answering(Decision.ONCE, Decision.DENY)
    await assert_replays(await record(asked, says("ok"), policy=Asking(), approver=approver))
    deny = DenyingPolicy(frozenset({"echo"}))
    await assert_replays(await record(asked, says("ok"), policy=deny))


class ElsewhereTable(Table):
    """An executor whose calls run on another machine."""

    async def machine_of(self, call: Call) -> str:
        return "garage"


async def test_the_machines_of_calls_and_their_delays_replay() -> None:
    async def slow(call: Call, progress: Progress) -> str:
        progress("so far\n")
        progress(Delay("garage", 12.5))
        progress(Delay("garage", 0.0))
        return "done"

    executor = ElsewhereTable((tool("slow"), slow))
    records = await record(calls(("slow", {})), says("ok"), executor=executor)
    events = [r.event for r in records]
    assert [e.machine for e in events if isinstance(e, CallJudged | CallStarted)] == ["garage"] * 2
    assert [e.seconds for e in events if isinstance(e, CallDelayed)] == [12.5, 0.0]
    assert [e.text for e in events if isinstance(e, CallOutput)] == ["so far\n"]
    assert [call.machine for call in executor.started] == ["garage"]
    await assert_replays(records)


@pytest.mark.parametrize("at", [TextDelta, CallStarted])
async def test_a_cancelled_run_replays(at: type) -> None:
    executor = Table((tool("slow"), Gate(9)))
    asked = calls(("slow", {"n": 1}), ("slow", {"n": 2}), text="looking\nfor it\n")
    records = await record(asked, says("never"), executor=executor, cancel_at=at)
    assert isinstance(records[-1].event, RunFinished)
    assert records[-1].event.stop is StopReason.CANCELLED
    await assert_replays(records)


async def test_a_run_cancelled_after_a_crash_reports_started_calls_as_unknown_and_replays() -> None:
    executor = Table((tool("slow"), Gate(9)))
    asked = calls(("slow", {"n": 1}), ("slow", {"n": 2}))
    whole = await record(asked, executor=executor, cancel_at=CallStarted)
    started = next(n for n, r in enumerate(whole, 1) if isinstance(r.event, CallStarted))
    crashed = whole[:started]
    deadline = Deadline()
    deadline.cancel()
    rest = await record(
        state=fold(crashed), executor=executor, deadline=deadline, seq=crashed[-1].seq
    )
    results = [r.event.result for r in rest if isinstance(r.event, CallFinished)]
    assert [result.error for result in results] == [ErrorKind.UNKNOWN, ErrorKind.CANCELLED]
    assert "outcome is unknown" in results[0].text and "Not executed" in results[1].text
    await assert_replays([*crashed, *rest])


async def test_a_run_that_exceeded_its_deadline_replays() -> None:
    executor = Table((tool("slow", timeout=60), Gate(9)))
    await assert_replays(
        await record(calls(("slow", {})), executor=executor, deadline=Deadline(0.01))
    )


async def test_failures_budgets_loops_and_limits_replay() -> None:
    error = ProviderError(ProviderErrorKind.SERVER_ERROR, "down")
    await assert_replays(await record(calls(("echo", {})), error))
    again = calls(("echo", {"text": "again"}))
    await assert_replays(await record(again, again, again))
    await assert_replays(await record(again, policy=DenyingPolicy(turns=1)))
    limit = LoopSettings(max_turns=1)
    await assert_replays(await record(again, says("so far"), settings=limit))
    await assert_replays(await record(again, error, settings=limit))
    await assert_replays(await record(says(""), says("now")))


async def test_a_trimmed_run_replays() -> None:
    def speak(asked: object) -> Reply:
        nonlocal turn
        turn += 1
        return calls(("echo", {"text": str(turn) * 150})) if turn < 15 else says("done")

    turn = 0
    tiny = Profile(context_tokens=300, max_output_tokens=50)
    settings = LoopSettings(max_turns=30)
    too_long = ProviderError(ProviderErrorKind.CONTEXT_TOO_LONG, "too long")
    records = await record(*[speak] * 30, profile=tiny, settings=settings)
    assert any(type(r.event).__name__ == "ContextTrimmed" for r in records)
    await assert_replays(records)
    turn = 0
    await assert_replays(await record(speak, speak, too_long, *[speak] * 20, settings=settings))


async def test_a_run_that_waited_and_was_resumed_replays_as_one() -> None:
    asked = calls(("echo", {"text": "1"}), ("echo", {"text": "2"}))
    state = new_run([user("go")])
    first = await record(
        asked, policy=Asking(), approver=Answering(Decision.PENDING, Decision.ONCE), state=state
    )
    second = await record(
        says("ok"), policy=Asking(), approver=Answering(Decision.ONCE), state=state, seq=len(first)
    )
    await assert_replays([*first, *second])


async def test_a_run_cut_off_by_a_crash_replays_up_to_the_crash() -> None:
    records = await record(calls(("echo", {"text": "1"})), says("ok"))
    for cut in range(1, len(records)):
        await assert_replays(records[:cut])


async def test_a_tampered_recording_does_not_replay() -> None:
    records = await record(calls(("echo", {"text": "1"})), says("ok"))
    end = records[-1].event
    assert isinstance(end, RunFinished)
    changed = msgspec.structs.replace(end, text="something else")
    forged = [*records[:-1], msgspec.structs.replace(records[-1], event=changed)]
    with pytest.raises(RecordingError, match="does not replay"):
        await assert_replays(forged)


async def test_an_incomplete_or_overlong_recording_is_refused() -> None:
    records = await record(says("ok"))
    with pytest.raises(RecordingError, match="does not start with run_started"):
        Replay(records[1:])
    with pytest.raises(RecordingError, match="comes after the end of the run"):
        await assert_replays([*records, records[1]])


async def test_a_run_waiting_for_a_budget_approval_replays() -> None:
    class AskFirst(DenyingPolicy):
        async def admit(self, turn: int) -> Verdict:
            return Ask("warned", "half is used") if turn > 1 else ALLOW

    await assert_replays(await record(calls(("echo", {})), policy=AskFirst()))


async def test_a_run_with_a_failed_policy_replays() -> None:
    class Broken(DenyingPolicy):
        async def admit(self, turn: int) -> Verdict:
            raise KeyError("ledger")

    await assert_replays(await record(says("never"), policy=Broken()))


async def test_a_run_cut_off_while_calls_ran_and_then_resumed_replays() -> None:
    asked = calls(("echo", {"text": "1"}), ("echo", {"text": "2"}))
    first = await record(asked, says("ok"))
    cut = next(i for i, r in enumerate(first) if isinstance(r.event, CallStarted)) + 1
    state = fold(first[:cut])
    second = await record(says("ok"), state=state, seq=cut)
    await assert_replays([*first[:cut], *second])


async def test_the_golden_recording_replays_byte_for_byte() -> None:
    """The format is a promise: a recording made by an older version stays good."""
    path = Path(__file__).parent / "golden" / "run.jsonl"
    records = read_recording(path)
    await assert_replays(records)
    assert b"".join(map(encode_record, records)) == path.read_bytes()


@pytest.mark.parametrize("stopped_at", [1, 2])
async def test_a_run_that_an_emergency_stop_ended_replays(stopped_at: int) -> None:
    class Stopped(DenyingPolicy):
        async def admit(self, turn: int) -> Verdict:
            if turn < stopped_at:
                return ALLOW
            return Deny("stopped", "a person stopped everything (smoke)")

    records = await record(calls(("echo", {"text": "a"})), says("never"), policy=Stopped())
    end = records[-1].event
    assert isinstance(end, RunFinished) and end.stop is StopReason.CANCELLED
    assert "smoke" in end.reason
    await assert_replays(records)
