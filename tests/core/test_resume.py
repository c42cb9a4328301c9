"""A run cut off after any event goes on from its records and ends the same."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.errors import RecordingError
from evoclaw.core.events import (
    CallFinished,
    CallStarted,
    Record,
    Replied,
    RunFinished,
    RunStarted,
)
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import ErrorKind, Message, Reply, TextBlock, ToolCall, ToolResult, user
from evoclaw.core.ports import AllowAll, Deny, Ports, Progress, Verdict
from evoclaw.core.profile import Profile
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import RunState, fold, new_run
from evoclaw.core.tools import Call, Effect
from evoclaw.providers.scripted import Scripted, ScriptedRequest, calls, says
from tests.support.loop import Table, echo, echo_table, tool

SETTINGS = LoopSettings(confirm=True)


def model() -> Scripted:
    """A model without memory: what it says depends on what it is shown, as a real one's does."""

    def speak(asked: ScriptedRequest) -> Reply:
        replies = sum(isinstance(message, Reply) for message in asked.messages)
        return (
            calls(("echo", {"text": "a"}), ("echo", {"text": "b"}), text="looking"),
            says("I think so"),
            calls(("echo", {"text": "c"})),
            says("COMPLETED: yes"),
            says("COMPLETED: yes"),
        )[replies]

    return Scripted(*[speak] * 9)


async def record(state: RunState, provider: Scripted, seq: int = 0) -> list[Record]:
    bus = Bus(state.run_id, seq=seq)
    ports = Ports(provider, echo_table(), AllowAll())
    async with asyncio.timeout(30):
        return [r async for r in recorded(run_loop(state, ports, SETTINGS), bus)]


async def whole_run() -> tuple[list[Record], RunState]:
    state = new_run([user("go")], "run")
    return await record(state, model()), state


async def test_records_fold_back_to_the_same_history_and_counts() -> None:
    records, state = await whole_run()
    wire = [msgspec.json.decode(msgspec.json.encode(r), type=Record) for r in records]
    folded = fold(wire)
    assert folded.history == state.history
    assert folded == state


async def test_a_run_cut_off_after_any_event_resumes_and_ends_the_same() -> None:
    records, state = await whole_run()
    for cut in range(1, len(records)):
        resumed = fold(records[:cut])
        paid = sum(isinstance(r.event, Replied) for r in records[:cut])
        provider = model()
        rest = await record(resumed, provider, seq=cut)
        assert isinstance(rest[-1].event, RunFinished), f"cut after {records[cut - 1].event}"
        assert resumed.history == state.history, f"cut after {records[cut - 1].event}"
        assert len(provider.requests) == 4 - paid, "no stored reply is paid for twice"


async def test_a_resumed_call_keeps_its_request_id() -> None:
    records, _ = await whole_run()
    ids = {r.event.request_id for r in records if isinstance(r.event, CallStarted)}
    after_first_reply = next(i for i, r in enumerate(records) if isinstance(r.event, Replied)) + 1
    rest = await record(fold(records[:after_first_reply]), model())
    assert {r.event.request_id for r in rest if isinstance(r.event, CallStarted)} == ids


async def test_a_call_running_at_the_end_of_the_records_is_marked_as_resumed() -> None:
    records, _ = await whole_run()
    for kind, resumed in ((Replied, False), (CallStarted, True)):
        cut = next(i for i, r in enumerate(records) if isinstance(r.event, kind)) + 1
        executor = echo_table()
        ports = Ports(model(), executor, AllowAll())
        async for _ in run_loop(fold(records[:cut]), ports, SETTINGS):
            pass
        assert executor.started[0].resumed is resumed


async def test_a_started_call_whose_tool_is_missing_has_an_unknown_outcome() -> None:
    records, _ = await whole_run()
    for kind, error in ((Replied, ErrorKind.NOT_FOUND), (CallStarted, ErrorKind.UNKNOWN)):
        cut = next(i for i, r in enumerate(records) if isinstance(r.event, kind)) + 1
        ports = Ports(model(), Table(), AllowAll())
        events = [event async for event in run_loop(fold(records[:cut]), ports, SETTINGS)]
        told = next(event for event in events if isinstance(event, CallFinished))
        assert told.result.error is error


class Refusing(AllowAll):
    """Would have no call made."""

    async def judge(self, call: Call) -> Verdict:
        return Deny("stopped", "somebody stopped everything")


async def test_a_started_call_that_would_be_denied_now_has_an_unknown_outcome() -> None:
    records, _ = await whole_run()
    for kind, error in ((Replied, ErrorKind.PERMISSION_DENIED), (CallStarted, ErrorKind.UNKNOWN)):
        cut = next(i for i, r in enumerate(records) if isinstance(r.event, kind)) + 1
        executor = echo_table()
        ports = Ports(model(), executor, Refusing())
        events = [event async for event in run_loop(fold(records[:cut]), ports, SETTINGS)]
        told = next(event for event in events if isinstance(event, CallFinished))
        assert told.result.error is error
        assert executor.started == []


async def test_a_started_call_is_not_validated_against_a_changed_schema() -> None:
    records, _ = await whole_run()
    cut = next(i for i, r in enumerate(records) if isinstance(r.event, CallStarted)) + 1
    executor = Table((tool("echo", "another"), echo))
    ports = Ports(model(), executor, AllowAll())
    async for _ in run_loop(fold(records[:cut]), ports, SETTINGS):
        pass
    assert [call.resumed for call in executor.started] == [True]


async def test_a_history_ending_in_unanswered_calls_can_be_resumed() -> None:
    reply = Reply("", (ToolCall("x", "echo", '{"text":"1"}'), ToolCall("y", "echo")))
    answered: Message = ToolResult("y", "echo", ())
    state = new_run([user("go"), reply, answered])
    records = await record(state, Scripted(says("COMPLETED: ok"), says("COMPLETED: ok")))
    started = [r.event.call_id for r in records if isinstance(r.event, CallStarted)]
    assert started == ["x"]
    results = [m.call_id for m in state.history if isinstance(m, ToolResult)]
    assert results == ["x", "y"]


def test_records_of_two_runs_or_no_records_are_refused() -> None:
    one = Record("a", 1, 0.0, Replied(Reply("hi")))
    two = Record("b", 1, 0.0, Replied(Reply("hi")))
    with pytest.raises(RecordingError, match="two runs"):
        fold([one, two])
    with pytest.raises(RecordingError, match="no records"):
        fold([])


async def test_a_run_cut_off_in_its_closing_reply_ends_the_same() -> None:
    limit = LoopSettings(max_turns=1)

    def provider() -> Scripted:
        def speak(asked: ScriptedRequest) -> Reply:
            return calls(("echo", {})) if asked.offer_tools else says("so far")

        return Scripted(*[speak] * 3)

    async def go(state: RunState, seq: int = 0) -> list[Record]:
        ports = Ports(provider(), echo_table(), AllowAll())
        bus = Bus(state.run_id, seq=seq)
        return [r async for r in recorded(run_loop(state, ports, limit), bus)]

    records = await go(new_run([user("go")], "run"))
    for cut in range(1, len(records)):
        rest = await go(fold(records[:cut]), cut)
        end = rest[-1].event
        assert isinstance(end, RunFinished)
        assert (end.stop, end.text) == ("max_iterations", "so far")


def test_a_late_result_never_changes_a_closed_turn() -> None:
    state = new_run([user("go"), Reply("", (ToolCall("x", "echo"),))], "run")
    state.apply(RunStarted("m", state.opening, LoopSettings(), Profile()))
    state.apply(CallFinished(ToolResult("x", "echo", ())))
    before = state.history.to_tuple()
    state.apply(CallFinished(ToolResult("x", "echo", (TextBlock("late"),))))
    assert state.history.to_tuple() == before
    assert repr(state.history).startswith("History([")


async def test_no_call_starts_before_its_start_is_recorded() -> None:
    begun: list[str] = []

    async def note(call: Call, progress: Progress) -> str:
        begun.append(call.id)
        return "done"

    table = Table((tool("note", effect=Effect.READ, resources=()), note))
    provider = Scripted(calls(("note", {}), ("note", {}), ("note", {})), says("all done"))
    state = new_run([user("note three times")])
    kept: set[str] = set()
    async for event in run_loop(state, Ports(provider, table, AllowAll()), LoopSettings()):
        assert kept >= set(begun)  # nothing ran whose start nobody was told of
        if isinstance(event, CallStarted):
            for _ in range(10):  # as slow as a disk: the calls must wait for it
                await asyncio.sleep(0)
            kept.add(event.call_id)
    assert len(begun) == 3
