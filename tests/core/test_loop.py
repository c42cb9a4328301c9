"""Limits, endings and bad replies: the run always ends with a true answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ProviderError, ProviderErrorKind, ToolFailure
from evoclaw.core.events import (
    ApprovalAnswered,
    CallFinished,
    CallOutput,
    CallStarted,
    Event,
    Prompted,
    ReplyFailed,
    ReplyRetried,
    RunFinished,
    StopReason,
    TextDelta,
    ToolsChanged,
)
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import JSON, ErrorKind, Finish, Reply, ToolCall, ToolResult, Usage, user
from evoclaw.core.ports import (
    ALLOW,
    AllowAll,
    Approval,
    Ask,
    Decision,
    Deny,
    Ports,
    Progress,
    Request,
    Verdict,
)
from evoclaw.core.profile import CallStyle, Profile
from evoclaw.core.replay import verify_replay
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import new_run
from evoclaw.core.tools import Call, Tool
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.loop import Body, DenyingPolicy, Gate, Table, echo, echo_table, fail, run, tool


async def test_fault_46_calls_beyond_the_limit_of_a_turn_are_answered_but_not_run() -> None:
    ran = await run(Scripted(calls(*[("echo", {"text": str(i)}) for i in range(500)]), says("ok")))
    assert len(ran.results) == 500
    assert ran.end.calls == 5
    assert {r.error for r in ran.results if "Not executed" in r.text} == {ErrorKind.QUEUE_FULL}
    answered = [m.call_id for m in ran.state.history if isinstance(m, ToolResult)]
    assert answered == [f"call_{i}" for i in range(500)]


async def test_an_empty_reply_is_followed_by_one_closing_reply_without_tools() -> None:
    provider = Scripted(says(""), says("here it is"))
    ran = await run(provider)
    assert (ran.end.stop, ran.end.text) == (StopReason.COMPLETED, "here it is")
    assert [request.offer_tools for request in provider.requests] == [True, False]


async def test_two_empty_replies_are_reported_as_no_answer() -> None:
    ran = await run(Scripted(says(""), says("  ")))
    assert ran.end.stop is StopReason.COMPLETED
    assert "gave no answer" in ran.end.text


async def test_calls_in_a_closing_reply_are_not_run() -> None:
    ran = await run(
        Scripted(calls(("echo", {})), calls(("echo", {"text": "x"}), text="nearly")),
        settings=LoopSettings(max_turns=1),
    )
    assert ran.end.calls == 1
    assert ran.end.text == "nearly"


async def test_a_provider_that_fails_ends_the_run_with_the_reason() -> None:
    error = ProviderError(ProviderErrorKind.AUTH_ERROR, "the key was refused")
    ran = await run(Scripted(error))
    assert ran.end.stop is StopReason.ERROR
    assert "the key was refused" in ran.end.text


async def test_a_failed_closing_reply_does_not_hide_the_stop_reason() -> None:
    error = ProviderError(ProviderErrorKind.SERVER_ERROR, "down")
    ran = await run(Scripted(calls(("echo", {})), error), settings=LoopSettings(max_turns=1))
    assert ran.end.stop is StopReason.MAX_ITERATIONS
    assert "turn limit" in ran.end.text


async def test_usage_of_a_failed_reply_is_counted() -> None:
    error = ProviderError(ProviderErrorKind.SERVER_ERROR, "broke off", usage=Usage(100, 7))
    ran = await run(Scripted(calls(("echo", {})), error))
    assert ran.end.usage == Usage(110, 12)
    assert ran.end.cost is None
    assert ReplyFailed("server_error", "broke off", Usage(100, 7)) in ran.events


class Crashing:
    model = "crash/test"
    profile = Profile()

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def stream(self, request: Request):
        yield TextDelta("well")
        if self._error:
            raise self._error


@pytest.mark.parametrize("error", [None, KeyError("choices"), OSError("gone"), TimeoutError()])
async def test_a_provider_that_fails_mid_stream_runs_no_call_and_shows_no_traceback(
    error: Exception | None,
) -> None:
    ran = await run(Crashing(error))
    assert ran.end.stop is StopReason.ERROR
    assert "crash/test" in ran.end.text
    assert ran.end.calls == 0


async def test_fault_48_calls_of_a_reply_cut_off_at_the_output_limit_are_not_run() -> None:
    cut = Reply("", (ToolCall("a", "echo", '{"text":"rm -rf /'),), Finish.LENGTH)
    ran = await run(Scripted(cut, says("ok")))
    assert ran.end.calls == 0
    assert "cut off" in ran.results[0].text


async def test_a_reply_cut_off_at_the_output_limit_is_named_in_the_stop_reason() -> None:
    ran = await run(Scripted(says("half an ans", finish=Finish.LENGTH)))
    assert "cut off" in ran.end.reason


async def test_fault_49_the_same_calls_three_times_in_a_row_end_the_run() -> None:
    ran = await run(Scripted(*[calls(("echo", {"text": "again"}))] * 3))
    assert ran.end.stop is StopReason.LOOP_DETECTED
    assert ran.end.calls == 2
    assert len(ran.results) == 3


async def test_repeated_calls_with_others_in_between_are_not_a_loop() -> None:
    again, other = calls(("echo", {"text": "a"})), calls(("echo", {"text": "b"}))
    ran = await run(Scripted(again, again, other, again, again, says("ok")))
    assert ran.end.stop is StopReason.COMPLETED


async def test_the_same_denied_call_three_times_ends_the_run() -> None:
    again, other = calls(("bash", {"command": "x"})), calls(("echo", {}))
    third = calls(("echo", {"text": "y"}))
    ran = await run(
        Scripted(again, other, again, third, again),
        echo_table("echo", "bash"),
        policy=DenyingPolicy(frozenset({"bash"})),
    )
    assert ran.end.stop is StopReason.LOOP_DETECTED
    assert "denied" in ran.end.reason


async def test_a_turn_with_only_denied_calls_is_not_a_failed_turn() -> None:
    script = [calls(("bash", {"command": str(i)})) for i in range(4)]
    ran = await run(
        Scripted(*script, says("I give up")),
        echo_table("bash"),
        policy=DenyingPolicy(frozenset({"bash"})),
    )
    assert (ran.end.stop, ran.end.text) == (StopReason.COMPLETED, "I give up")


async def test_a_turn_with_one_successful_call_is_not_a_failed_turn() -> None:
    executor = Table((tool("bad"), fail), (tool("echo"), echo))
    script = [calls(("bad", {"n": i}), ("echo", {"n": i})) for i in range(4)]
    ran = await run(Scripted(*script, says("ok")), executor)
    assert ran.end.stop is StopReason.COMPLETED


async def test_a_tool_crash_becomes_a_result_without_its_traceback() -> None:
    async def crash(call: Call, progress: Progress) -> str:
        raise ZeroDivisionError("secret detail")

    ran = await run(Scripted(calls(("boom", {})), says("ok")), Table((tool("boom"), crash)))
    assert ran.results[0].error is ErrorKind.INTERNAL
    assert "secret detail" not in ran.results[0].text
    assert "secret detail" in ran.results[0].details["traceback"]


async def test_failure_details_may_use_any_key() -> None:
    details: dict[str, JSON] = {"text": "a", "kind": "b", "call": "c", "self_": "d"}

    async def refuse(call: Call, progress: Progress) -> str:
        failure = ToolFailure(ErrorKind.CONFLICT, "it did not fit")
        failure.details.update(details)
        raise failure

    ran = await run(Scripted(calls(("put", {})), says("ok")), Table((tool("put"), refuse)))
    assert (ran.results[0].text, ran.results[0].details) == ("it did not fit", details)


async def test_a_tool_that_cancels_itself_does_not_cancel_the_run() -> None:
    async def give_up(call: Call, progress: Progress) -> str:
        raise asyncio.CancelledError

    ran = await run(Scripted(calls(("quit", {})), says("ok")), Table((tool("quit"), give_up)))
    assert ran.results[0].error is ErrorKind.CANCELLED
    assert ran.end.stop is StopReason.COMPLETED


async def test_a_timed_out_call_returns_the_documented_error_text() -> None:
    gate = Gate(99)
    executor = Table((tool("bash", "command", timeout=0.01), gate))
    ran = await run(Scripted(calls(("bash", {"command": "sleep 60"})), says("ok")), executor)
    assert ran.results[0].text == (
        "Error: Tool 'bash' timed out after 0.01s. Command: 'sleep 60'.\n"
        "Try again with a shorter timeout or explain to the user."
    )
    assert (gate.inside, gate.cancelled) == (0, 1)


async def test_output_before_a_timeout_is_returned() -> None:
    async def talk(call: Call, progress: Progress) -> str:
        progress("listening on port 8000\n")
        await asyncio.Event().wait()
        return ""

    executor = Table((tool("serve", timeout=0.01, streams=True), talk))
    ran = await run(Scripted(calls(("serve", {})), says("ok")), executor)
    assert ran.results[0].text.endswith("output so far:\nlistening on port 8000\n")


async def test_a_call_can_set_its_timeout_up_to_the_maximum_of_the_tool() -> None:
    seen: list[float] = []

    async def note(call: Call, progress: Progress) -> str:
        seen.append(call.timeout)
        return ""

    executor = Table((tool("t", timeout=1, max_timeout=5), note))
    script = [calls(("t", {"timeout_ms": ms})) for ms in (2_000, 9_000, -1, "soon")]
    await run(Scripted(*script, says("ok")), executor)
    assert seen == [2.0, 5.0, 1, 1]


async def test_no_call_gets_more_than_the_runs_limit_of_one_call_but_those_that_wait() -> None:
    seen: list[float] = []

    async def note(call: Call, progress: Progress) -> str:
        seen.append(call.timeout)
        return ""

    waiting = tool("question", timeout=300, permissions=frozenset({"interact"}))
    executor = Table((tool("t", timeout=30, max_timeout=60), note), (waiting, note))
    script = [calls(("t", {"timeout_ms": ms})) for ms in (0, 50_000, 2_000)]
    ask = calls(("question", {}))
    await run(
        Scripted(*script, ask, says("ok")), executor, settings=LoopSettings(max_call_seconds=5)
    )
    assert seen == [5, 5, 2, 300]


async def test_a_failing_policy_denies_the_call() -> None:
    class Broken(AllowAll):
        async def judge(self, call: Call) -> Verdict:
            raise RuntimeError("bug")

    executor = echo_table()
    ran = await run(Scripted(calls(("echo", {})), says("ok")), executor, policy=Broken())
    assert executor.started == []
    assert ran.results[0].error is ErrorKind.PERMISSION_DENIED


async def test_a_policy_can_require_approval_before_a_turn_and_the_run_waits() -> None:
    class AskFirst(AllowAll):
        async def admit(self, turn: int) -> Verdict:
            return Ask("warned", "half of the budget is used")

    class Later:
        async def approve(self, call: Call, ask: Ask) -> Approval:
            return Approval(Decision.PENDING)

    ran = await run(Scripted(says("never")), policy=AskFirst(), approver=Later())
    assert ran.end.stop is StopReason.WAITING
    assert "half of the budget" in ran.end.text
    ran = await run(Scripted(says("never")), policy=AskFirst())
    assert ran.end.stop is StopReason.BUDGET_EXCEEDED, "nobody is there to say yes"


async def test_a_policy_that_fails_before_a_turn_ends_the_run_with_an_error() -> None:
    class Broken(AllowAll):
        async def admit(self, turn: int) -> Verdict:
            raise KeyError("ledger")

    provider = Scripted(says("never"))
    ran = await run(provider, policy=Broken())
    assert ran.end.stop is StopReason.ERROR
    assert "a policy failed" in ran.end.text
    assert provider.requests == []


class Hanging:
    """Rules that never come to a verdict; the run is cancelled meanwhile."""

    def __init__(self, deadline: Deadline, where: str) -> None:
        self._deadline, self._where = deadline, where

    async def _hang(self) -> None:
        asyncio.get_running_loop().call_soon(self._deadline.cancel)
        await asyncio.Event().wait()

    async def admit(self, turn: int) -> Verdict:
        if self._where == "admit":
            await self._hang()
        return ALLOW

    async def judge(self, call: Call) -> Verdict:
        if self._where == "judge":
            await self._hang()
        return Ask("a", "may it?")

    async def approve(self, call: Call, ask: Ask) -> Approval:
        await self._hang()
        return Approval(Decision.ONCE)


@pytest.mark.parametrize("where", ["admit", "judge", "approve"])
async def test_a_run_can_be_cancelled_during_a_policy_check_or_an_approval(where: str) -> None:
    deadline = Deadline()
    rules = Hanging(deadline, where)
    executor = echo_table()
    ran = await run(
        Scripted(calls(("echo", {}))), executor, policy=rules, approver=rules, deadline=deadline
    )
    assert ran.end.stop is StopReason.CANCELLED
    assert executor.started == []


async def test_a_failing_approver_denies_the_call() -> None:
    class Broken:
        async def approve(self, call: Call, ask: Ask) -> Approval:
            raise OSError("no terminal")

    executor = echo_table()
    await run(
        Scripted(calls(("echo", {})), says("ok")), executor, policy=Asking(), approver=Broken()
    )
    assert executor.started == []


async def test_progress_of_a_non_streaming_tool_is_emitted_when_it_ends() -> None:
    async def talk(call: Call, progress: Progress) -> str:
        progress("one")
        progress("two")
        return "done"

    ran = await run(Scripted(calls(("talk", {})), says("ok")), Table((tool("talk"), talk)))
    assert [e.text for e in ran.events if isinstance(e, CallOutput)] == ["one", "two"]


class Asking(AllowAll):
    async def judge(self, call: Call) -> Verdict:
        return Ask("supervised", f"{call.name} changes things")


class Answering:
    def __init__(self, *decisions: Decision) -> None:
        self._decisions = iter(decisions)
        self.asked: list[Call] = []

    async def approve(self, call: Call, ask: Ask) -> Approval:
        self.asked.append(call)
        return Approval(next(self._decisions), "because")


async def test_an_approved_call_runs_and_a_refused_one_does_not() -> None:
    executor = echo_table()
    asked = [("echo", {"text": "yes"}), ("echo", {"text": "no"})]
    ran = await run(
        Scripted(calls(*asked), says("ok")),
        executor,
        policy=Asking(),
        approver=Answering(Decision.ONCE, Decision.DENY),
    )
    assert [call.arguments["text"] for call in executor.started] == ["yes"]
    assert "because" in ran.state.history[3].text  # type: ignore[union-attr]


class Editing:
    """Approves each call once, with other arguments."""

    def __init__(self, **arguments: JSON) -> None:
        self._arguments = arguments
        self.asked = 0

    async def approve(self, call: Call, ask: Ask) -> Approval:
        self.asked += 1
        return Approval(Decision.ONCE, "edited", self._arguments)


async def test_a_call_that_a_person_edited_is_judged_again_and_runs_as_edited() -> None:
    executor, approver = echo_table(), Editing(text="mine")
    ran = await run(
        Scripted(calls(("echo", {"text": "its"})), says("ok")),
        executor,
        policy=Asking(),
        approver=approver,
    )
    assert [call.arguments for call in executor.started] == [{"text": "mine"}]
    assert approver.asked == 1
    kinds = [type(event).__name__ for event in ran.events]
    assert kinds.count("CallJudged") == 2
    (answered,) = [event for event in ran.events if isinstance(event, ApprovalAnswered)]
    assert answered.arguments == {"text": "mine"}
    result = ran.state.history[2]
    assert isinstance(result, ToolResult)
    assert result.text.startswith("[The user edited this call before it ran.")
    assert result.text.endswith("echo(mine)")


class DenyingMine(Asking):
    async def judge(self, call: Call) -> Verdict:
        if call.arguments.get("text") == "mine":
            return Deny("rule", "not even you")
        return await super().judge(call)


async def test_an_edited_call_that_a_policy_denies_does_not_run() -> None:
    executor = echo_table()
    ran = await run(
        Scripted(calls(("echo", {"text": "its"})), says("ok")),
        executor,
        policy=DenyingMine(),
        approver=Editing(text="mine"),
    )
    assert executor.started == []
    result = ran.state.history[2]
    assert isinstance(result, ToolResult) and "not even you" in result.text


async def test_edited_arguments_that_do_not_fit_the_tool_are_refused() -> None:
    executor = Table((tool("echo", "text"), echo))
    ran = await run(
        Scripted(calls(("echo", {"text": "its"})), says("ok")),
        executor,
        policy=Asking(),
        approver=Editing(text=["no", "text"]),
    )
    assert executor.started == []
    result = ran.state.history[2]
    assert isinstance(result, ToolResult) and result.error is ErrorKind.INVALID_PARAMS


async def test_an_edited_call_that_was_interrupted_resumes_as_edited() -> None:
    executor, provider = echo_table(), Scripted(calls(("echo", {"text": "its"})), says("ok"))
    state = new_run([user("go")])
    ports = Ports(provider, executor, Asking(), Editing(text="mine"))
    async with aclosing(run_loop(state, ports, LoopSettings())) as events:
        async for event in events:
            if isinstance(event, CallStarted):
                break
    later = Ports(provider, executor, Asking(), Answering())
    async with aclosing(run_loop(state, later, LoopSettings())) as events:
        assert [event async for event in events][-1].stop is StopReason.COMPLETED  # type: ignore[union-attr]
    assert [call.arguments["text"] for call in executor.started] == ["mine"]
    assert executor.started[0].resumed


async def test_a_run_with_an_edited_call_replays_byte_for_byte() -> None:
    ports = Ports(
        Scripted(calls(("echo", {"text": "its"})), says("ok")),
        echo_table(),
        Asking(),
        Editing(text="mine"),
    )
    bus, state = Bus("r1"), new_run([user("go")], "r1")
    events = run_loop(state, ports, LoopSettings())
    records = [record async for record in recorded(events, bus)]
    assert (await verify_replay(records)).same


async def test_without_an_approver_a_call_that_needs_approval_is_denied() -> None:
    executor = echo_table()
    await run(Scripted(calls(("echo", {})), says("ok")), executor, policy=Asking())
    assert executor.started == []


async def test_a_pending_approval_parks_the_run_and_the_other_calls_still_run() -> None:
    executor = echo_table()
    asked = [("echo", {"text": "later"}), ("echo", {"text": "now"})]
    provider = Scripted(calls(*asked), says("ok"))
    waiting = await run(
        provider,
        executor,
        policy=Asking(),
        approver=Answering(Decision.PENDING, Decision.ONCE),
    )
    assert waiting.end.stop is StopReason.WAITING
    assert [call.arguments["text"] for call in executor.started] == ["now"]

    resumed = await run(
        provider,
        executor,
        policy=Asking(),
        approver=Answering(Decision.ONCE),
        state=waiting.state,
    )
    assert resumed.end.stop is StopReason.COMPLETED
    assert [call.arguments["text"] for call in executor.started] == ["now", "later"]
    texts = [m.text for m in resumed.state.history][2:4]  # type: ignore[union-attr]
    assert texts == ["echo(later)", "echo(now)"]


async def test_cancelling_during_calls_answers_them_and_leaves_no_task() -> None:
    deadline, gate = Deadline(), Gate(99)
    executor = Table((tool("slow"), gate))
    asked = calls(("slow", {"n": 1}), ("slow", {"n": 2}))
    state = new_run([user("go")])
    ports = Ports(Scripted(asked), executor, AllowAll())
    events: list[Event] = []
    before = asyncio.all_tasks()
    async with asyncio.timeout(30):
        async for event in run_loop(state, ports, LoopSettings(), deadline):
            events.append(event)
            if isinstance(event, CallStarted):
                deadline.cancel()
    last = events[-1]
    assert isinstance(last, RunFinished)
    assert last.stop is StopReason.CANCELLED
    assert [e.result.error for e in events if isinstance(e, CallFinished)] == [
        ErrorKind.CANCELLED
    ] * 2
    assert asyncio.all_tasks() == before
    assert gate.inside == 0


async def test_cancelling_during_a_reply_ends_the_run_and_closes_the_stream() -> None:
    closed = asyncio.Event()

    class Endless:
        model = "endless/test"
        profile = Profile()

        async def stream(self, request: Request):
            try:
                yield TextDelta("a")
                await asyncio.Event().wait()
            finally:
                closed.set()

    deadline = Deadline()
    state = new_run([user("go")])
    events: list[Event] = []
    ports = Ports(Endless(), echo_table(), AllowAll())
    async with asyncio.timeout(30):
        async for event in run_loop(state, ports, LoopSettings(), deadline):
            events.append(event)
            if isinstance(event, TextDelta):
                asyncio.get_running_loop().call_soon(deadline.cancel)
    assert isinstance(events[-1], RunFinished)
    assert events[-1].stop is StopReason.CANCELLED
    assert closed.is_set()


async def test_closing_the_run_early_leaves_no_task_and_no_call_running() -> None:
    gate = Gate(99)
    asked = calls(("slow", {"n": 1}), ("slow", {"n": 2}))
    executor = Table((tool("slow", effect="read", resources=()), gate))
    ports = Ports(Scripted(asked), executor, AllowAll())
    before = asyncio.all_tasks()
    events = run_loop(new_run([user("go")]), ports, LoopSettings())
    async with asyncio.timeout(30):
        started = 0
        async for event in events:
            started += isinstance(event, CallStarted)
            if started == 2:
                break
        await events.aclose()
    assert asyncio.all_tasks() == before
    assert gate.inside == 0


async def test_max_seconds_ends_a_running_call_and_the_run() -> None:
    gate = Gate(99)
    executor = Table((tool("slow", timeout=60), gate))
    ran = await run(
        Scripted(calls(("slow", {}))), executor, settings=LoopSettings(max_seconds=0.02)
    )
    assert ran.end.stop is StopReason.DURATION_EXCEEDED
    assert ran.results[0].error is ErrorKind.TIMEOUT
    assert gate.inside == 0


async def test_the_confirmation_checklist_is_sent_at_most_twice_after_continue() -> None:
    provider = Scripted(
        says("first"), says("CONTINUE: the tests"), says("second"), says("CONTINUE: docs"),
        says("third"),
    )  # fmt: skip
    ran = await run(provider, settings=LoopSettings(confirm=True))
    whys = [event.why for event in ran.events if isinstance(event, Prompted)]
    assert whys == ["confirm", "continue", "confirm", "continue"]
    assert ran.end.text == "third"


async def test_confirmation_can_be_disabled_for_runs_without_tool_use() -> None:
    settings = LoopSettings(confirm=True, confirm_without_tools=False)
    ran = await run(Scripted(says("hello")), settings=settings)
    assert ran.end.turns == 1


async def test_a_run_without_tools_takes_one_turn() -> None:
    ran = await run(Scripted(says("hi")), Table(), settings=LoopSettings(confirm=True))
    assert (ran.end.turns, ran.end.text) == (1, "hi")


async def test_a_model_that_cannot_call_tools_is_offered_none() -> None:
    provider = Scripted(says("hi"), profile=Profile(calls=CallStyle.NONE))
    await run(provider)
    assert provider.requests[0].tools == ()


async def test_fault_46_duplicate_and_empty_call_ids_are_replaced_deterministically() -> None:
    one = Reply("", (ToolCall("", "echo"), ToolCall("x", "echo"), ToolCall("x", "echo")))
    two = Reply("", (ToolCall("x", "echo", '{"text":"2"}'), ToolCall("call_2_0", "echo")))
    three = Reply("", (ToolCall("call_3_1", "echo", '{"text":"3"}'), ToolCall("", "echo")))
    ran = await run(Scripted(one, two, three, says("ok")))
    ids = [call.id for m in ran.state.history if isinstance(m, Reply) for call in m.calls]
    assert ids[:5] == ["call_1_0", "x", "call_1_2", "call_2_0", "call_2_1"]
    assert ids[5:] == ["call_3_1", "call_3_1_"]


async def test_changed_tools_are_offered_in_the_next_turn() -> None:
    class Changing(Table):
        def __init__(self, *entries: tuple[Tool, Body]) -> None:
            super().__init__(*entries)
            self._first = super().tools()[:1]

        def tools(self) -> Sequence[Tool]:
            return super().tools() if self.started else self._first

    executor = Changing((tool("one"), echo), (tool("two"), echo))
    ran = await run(Scripted(calls(("one", {})), says("ok")), executor)
    offered = [
        tuple(tool.name for tool in event.tools)
        for event in ran.events
        if isinstance(event, ToolsChanged)
    ]
    assert offered == [("one",), ("one", "two")]


async def test_output_of_a_streaming_tool_is_emitted_while_it_runs() -> None:
    go_on = asyncio.Event()

    async def talk(call: Call, progress: Progress) -> str:
        progress("line 1\n")
        await go_on.wait()
        return "done"

    ports = Ports(
        Scripted(calls(("talk", {})), says("ok")),
        Table((tool("talk", streams=True), talk)),
        AllowAll(),
    )
    kinds: list[str] = []
    async with asyncio.timeout(30):
        async for event in run_loop(new_run([user("go")]), ports, LoopSettings()):
            kinds.append(type(event).__name__)
            if kinds[-1] == "CallOutput":
                go_on.set()
    assert kinds.index("CallOutput") < kinds.index("CallFinished")


async def test_a_long_result_is_shown_as_head_and_tail() -> None:
    async def much(call: Call, progress: Progress) -> str:
        return "a" * 500 + "b" * 500

    executor = Table((tool("much"), much))
    settings = LoopSettings(max_result_chars=100)
    ran = await run(Scripted(calls(("much", {})), says("ok")), executor, settings=settings)
    text = ran.results[0].text
    assert text.startswith("a" * 50)
    assert text.endswith("b" * 50)
    assert "900 characters left out" in text


async def test_usage_and_cost_add_up_and_an_unknown_price_makes_the_sum_unknown() -> None:
    known = Reply("", (ToolCall("a", "echo"),), usage=Usage(10, 2, 4, 1), cost=0.5)
    final = Reply("ok", usage=Usage(20, 3), cost=0.25)
    ran = await run(Scripted(known, final))
    assert ran.end.usage == Usage(30, 5, 4, 1)
    assert ran.end.cost == 0.75
    unpriced = Reply("ok", usage=Usage(20, 3), cost=None)
    assert (await run(Scripted(known, unpriced))).end.cost is None


async def test_fault_48_a_context_too_long_for_the_provider_is_trimmed_and_retried() -> None:
    too_long = ProviderError(ProviderErrorKind.CONTEXT_TOO_LONG, "too long")
    script = [calls(("echo", {"text": str(i) * 400})) for i in range(3)]
    ran = await run(Scripted(*script, too_long, says("summary"), says("fits")))
    assert ran.end.text in ("fits", "summary")
    assert any(isinstance(event, ReplyRetried) for event in ran.events)
    assert "ContextTrimmed" in ran.kinds
