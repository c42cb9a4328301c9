"""The tests of the loop that the seed lists, by number."""

from __future__ import annotations

from evoclaw.core.agent import LoopSettings
from evoclaw.core.events import (
    CallFinished,
    CallStarted,
    Prompted,
    Record,
    Replied,
    StopReason,
    TurnStarted,
)
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import (
    ErrorKind,
    Reply,
    SystemMessage,
    ToolResult,
    UserMessage,
    user,
)
from evoclaw.core.ports import AllowAll, Ports
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import new_run
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.loop import DenyingPolicy, Table, echo, echo_table, fail, run, tool

CONFIRMING = LoopSettings(confirm=True)


async def test_01_a_text_only_reply_ends_the_run_after_one_turn() -> None:
    ran = await run(Scripted(says("42")))
    assert (ran.end.stop, ran.end.turns, ran.end.text) == (StopReason.COMPLETED, 1, "42")


async def test_02_calls_then_text_end_the_run_after_two_turns() -> None:
    ran = await run(Scripted(calls(("echo", {"text": "a"})), says("done")))
    assert (ran.end.stop, ran.end.turns, ran.end.text) == (StopReason.COMPLETED, 2, "done")
    assert ran.end.tools_used == ("echo",)


async def test_03_calls_without_end_stop_at_max_iterations() -> None:
    provider = Scripted(*(calls(("echo", {"text": str(i)})) for i in range(4)), says("so far"))
    ran = await run(provider, settings=LoopSettings(max_turns=4))
    assert ran.end.stop is StopReason.MAX_ITERATIONS
    assert ran.end.calls == 4
    assert ran.end.text == "so far"
    assert provider.requests[-1].offer_tools is False


async def test_04_three_failed_turns_in_a_row_end_the_run_as_error() -> None:
    script = [calls(("bad", {"n": i})) for i in range(5)]
    ran = await run(Scripted(*script), Table((tool("bad"), fail)))
    assert ran.end.stop is StopReason.ERROR
    assert ran.end.turns == 3
    assert "it did not work" in ran.end.text


async def test_05_a_budget_that_admits_no_more_turns_ends_the_run() -> None:
    script = [calls(("echo", {"text": str(i)})) for i in range(5)]
    ran = await run(Scripted(*script), policy=DenyingPolicy(turns=2))
    assert ran.end.stop is StopReason.BUDGET_EXCEEDED
    assert ran.end.turns == 2
    assert "no turns left in the budget" in ran.end.text


async def test_06_a_call_with_valid_parameters_runs_and_its_result_joins_the_history() -> None:
    executor = Table((tool("echo", "text"), echo))
    ran = await run(Scripted(calls(("echo", {"text": "hi"})), says("ok")), executor)
    assert executor.started[0].arguments == {"text": "hi"}
    result = ran.state.history[2]
    assert isinstance(result, ToolResult)
    assert result.text == "echo(hi)"


async def test_07_invalid_parameters_are_reported_to_the_model_and_the_run_continues() -> None:
    executor = Table((tool("read", "path"), echo))
    ran = await run(Scripted(calls(("read", {"offset": 1})), says("sorry")), executor)
    assert executor.started == []
    assert ran.results[0].error is ErrorKind.INVALID_PARAMS
    assert ran.results[0].text == (
        "Error: Invalid parameters for 'read': missing 'path'.\nRequired: [path]. Optional: []."
    )
    assert ran.end.text == "sorry"


async def test_08_a_denied_call_is_reported_to_the_model_and_the_run_continues() -> None:
    executor = echo_table()
    ran = await run(
        Scripted(calls(("echo", {})), says("I may not.")),
        executor,
        policy=DenyingPolicy(frozenset({"echo"})),
    )
    assert executor.started == []
    assert "not allowed here" in ran.results[0].text
    assert ran.end.text == "I may not."


async def test_09_all_calls_of_one_reply_run_and_are_answered_in_order() -> None:
    asked = [("echo", {"text": str(i)}) for i in range(5)]
    ran = await run(Scripted(calls(*asked), says("ok")))
    answers = [m.text for m in ran.state.history if isinstance(m, ToolResult)]
    assert answers == [f"echo({i})" for i in range(5)]


async def test_10_an_unknown_tool_is_answered_with_the_available_tools() -> None:
    ran = await run(Scripted(calls(("git_status", {})), says("ok")), echo_table("bash", "read"))
    assert ran.results[0].error is ErrorKind.NOT_FOUND
    assert ran.results[0].text == (
        "Error: Tool 'git_status' not found. Available tools: bash, read.\n"
        "Please choose an available tool or explain to the user."
    )


async def test_11_the_first_text_only_reply_is_answered_with_the_checklist() -> None:
    provider = Scripted(says("done"), says("COMPLETED: done"))
    ran = await run(provider, settings=CONFIRMING)
    prompt = provider.requests[1].messages[-1]
    assert isinstance(prompt, UserMessage)
    assert "Have you completed all parts of the task?" in prompt.text
    assert ran.end.text == "done"


async def test_12_calls_in_answer_to_the_checklist_run_normally() -> None:
    provider = Scripted(
        says("done"), calls(("echo", {})), says("now done"), says("COMPLETED: really done")
    )
    ran = await run(provider, settings=CONFIRMING)
    assert ran.end.stop is StopReason.COMPLETED
    assert ran.end.text == "really done"
    assert ran.end.calls == 1


async def test_13_text_in_answer_to_the_checklist_ends_the_run() -> None:
    ran = await run(Scripted(says("done"), says("Yes, it is done.")), settings=CONFIRMING)
    assert (ran.end.stop, ran.end.text) == (StopReason.COMPLETED, "Yes, it is done.")


async def test_14_without_double_confirmation_the_first_text_is_accepted() -> None:
    ran = await run(Scripted(says("done")))
    assert not [event for event in ran.events if isinstance(event, Prompted)]


async def test_15_messages_accumulate_in_order() -> None:
    provider = Scripted(calls(("echo", {"text": "a"})), calls(("echo", {"text": "b"})), says("ok"))
    ran = await run(provider, messages=[SystemMessage("be good"), user("do it")])
    roles = [type(message) for message in ran.state.history]
    assert roles == [SystemMessage, UserMessage, Reply, ToolResult, Reply, ToolResult, Reply]
    assert provider.requests[2].messages == ran.state.history.to_tuple()[:6]


async def test_16_a_result_carries_its_call_id_and_tool_name() -> None:
    ran = await run(Scripted(calls(("echo", {})), says("ok")))
    reply, result = ran.state.history[1], ran.state.history[2]
    assert isinstance(reply, Reply)
    assert isinstance(result, ToolResult)
    assert (result.call_id, result.name) == (reply.calls[0].id, "echo")


class Remembering:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def receive(self, record: Record) -> None:
        self.records.append(record)


async def _record_two_calls() -> list[Record]:
    sink = Remembering()
    state = new_run([user("go")])
    provider = Scripted(calls(("echo", {"text": "a"}), ("echo", {"text": "b"})), says("ok"))
    ports = Ports(provider, echo_table(), AllowAll())
    bus = Bus(state.run_id, [sink])
    async for _ in recorded(run_loop(state, ports, LoopSettings()), bus):
        pass
    return sink.records


async def test_17_every_reply_and_every_call_is_recorded() -> None:
    records = await _record_two_calls()
    assert sum(isinstance(r.event, Replied) for r in records) == 2
    assert sum(isinstance(r.event, CallFinished) for r in records) == 2
    assert [r.seq for r in records] == list(range(1, len(records) + 1))


async def test_18_a_trace_has_a_step_per_turn_and_an_action_per_call() -> None:
    records = await _record_two_calls()
    assert [r.event.turn for r in records if isinstance(r.event, TurnStarted)] == [1, 2]
    assert sum(isinstance(r.event, CallStarted) for r in records) == 2


async def test_19_the_policy_judges_every_call_with_its_arguments_before_it_runs() -> None:
    policy = DenyingPolicy()
    asked = [("bash", {"command": "ls"}), ("read", {"path": "a"}), ("webfetch", {"url": "u"})]
    executor = echo_table("bash", "read", "webfetch")
    await run(Scripted(calls(*asked), says("ok")), executor, policy=policy)
    assert [(call.name, call.arguments) for call in policy.judged] == asked


async def test_20_an_empty_list_of_calls_is_a_text_only_reply() -> None:
    ran = await run(Scripted(Reply("fine", ())))
    assert (ran.end.stop, ran.end.text) == (StopReason.COMPLETED, "fine")


async def test_21_malformed_json_arguments_are_reported_to_the_model() -> None:
    ran = await run(Scripted(calls(("echo", '{"text": ')), says("ok")))
    assert ran.results[0].error is ErrorKind.INVALID_PARAMS
    assert "not valid JSON" in ran.results[0].text
    assert ran.end.stop is StopReason.COMPLETED


async def test_22_text_next_to_calls_is_stored_and_the_calls_run() -> None:
    ran = await run(Scripted(calls(("echo", {}), text="Let me look."), says("ok")))
    reply = ran.state.history[1]
    assert isinstance(reply, Reply)
    assert reply.text == "Let me look."
    assert ran.end.calls == 1
