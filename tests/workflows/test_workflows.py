"""What workflows do, from being started to their end."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from evoclaw.core.labels import Label, Principal
from evoclaw.core.messages import ErrorKind, TextBlock, ToolResult
from evoclaw.core.tools import failure
from evoclaw.governance.approvals import HUMAN_SCOPE, Answerer, ApprovalScope
from evoclaw.store.databases.database import add_checksum
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.workflows.workflows import SCHEMA
from evoclaw.workflows.definition import (
    AgentStep,
    ApprovalStep,
    ConditionStep,
    Input,
    ParallelStep,
    Retry,
    SequenceStep,
    ToolStep,
    WaitStep,
    Workflow,
    WorkflowStep,
)
from evoclaw.workflows.errors import (
    BadInputs,
    CannotAnswer,
    NotAPerson,
    UnknownWorkflow,
    WorkflowKeyReused,
    WorkflowRunNotFound,
)
from evoclaw.workflows.events import StepDecision, StepFailed, WorkflowFinished
from evoclaw.workflows.ports import (
    AgentCall,
    AgentRunOutcome,
    AgentRunResult,
    StepWaiting,
    ToolOutcome,
    ToolRequest,
)
from evoclaw.workflows.scripted import ScriptedAgents, ScriptedTools, never_finishes, text_result
from tests.support.workflows import (
    ANNE,
    PERSON,
    Clock,
    ended,
    house,
    run,
    states,
    step_of,
    wait_parked,
    waiting,
    workflow_when,
)

REPORT = Workflow(
    "report",
    (
        ToolStep("disk", tool="df", arguments={"host": "{{ inputs.host }}"}),
        AgentStep("summary", agent="writer", message="Sum up: {{ steps.disk.output.text }}"),
    ),
    inputs={"host": Input(), "limit": Input(type="integer", default=80)},
    output={"text": "{{ steps.summary.output.text }}", "limit": "{{ inputs.limit }}"},
)


async def test_steps_run_in_order_and_pass_their_outputs_on(tmp_path: Path) -> None:
    agents, tools = ScriptedAgents({"writer": "all is well"}), ScriptedTools({"df": "42% used"})
    async with house(tmp_path, REPORT, agents=agents, tools=tools) as made:
        view = await run(made, "report", {"host": "pi"})

    assert view.state == "succeeded" and view.output == {"text": "all is well", "limit": 80}
    assert states(view) == {"disk": "succeeded", "summary": "succeeded"}
    assert tools.calls[0].arguments == {"host": "pi"}
    assert agents.calls[0].message == "Sum up: 42% used" and agents.calls[0].iterative
    assert step_of(view, "summary").run_ids == (agents.calls[0].run_id,)
    assert agents.calls[0].run_id == f"{view.id}-summary-1"


async def test_an_agent_step_can_be_a_single_reply_without_tools(tmp_path: Path) -> None:
    agents = ScriptedAgents({"writer": "ok"})
    single = Workflow(
        "single", (AgentStep("ask", agent="writer", inputs={"n": 1}, iterative=False),)
    )
    async with house(tmp_path, single, agents=agents) as made:
        view = await run(made, "single")

    assert not agents.calls[0].iterative and agents.calls[0].message == '{"n":1}'
    assert view.output == {"result": "ok", "text": "ok"}


async def test_fields_of_a_json_result_can_be_referenced(tmp_path: Path) -> None:
    flow = Workflow(
        "data",
        (ToolStep("get", tool="get"),),
        output="{{ steps.get.output.data.hosts[1] }}",
    )
    tools = ScriptedTools({"get": '{"hosts": ["a", {"name": "b"}]}'})
    async with house(tmp_path, flow, tools=tools) as made:
        assert (await run(made, "data")).output == {"name": "b"}


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({}, "inputs are missing: host"),
        ({"host": 3}, "input 'host' must be of type string"),
        ({"host": "a", "limit": True}, "'limit' must be of type integer"),
        ({"host": "a", "limt": 3}, "did you mean 'limit'"),
        ({"host": "x" * 1_000_001}, "more than 1000000 bytes"),
    ],
)
async def test_invalid_inputs_are_refused(
    tmp_path: Path, inputs: dict[str, object], problem: str
) -> None:
    async with house(tmp_path, REPORT, serving=False) as made:
        with pytest.raises(BadInputs, match=problem):
            await made.start(ANNE, "report", inputs)
        assert await made.list("local") == []


async def test_an_unknown_workflow_is_reported_with_a_suggestion(tmp_path: Path) -> None:
    async with house(tmp_path, REPORT, serving=False) as made:
        with pytest.raises(UnknownWorkflow, match="did you mean 'report'"):
            await made.start(ANNE, "reprot", {})


async def test_an_idempotency_key_used_twice_gives_one_workflow(tmp_path: Path) -> None:
    async with house(tmp_path, REPORT, serving=False) as made:
        starts = [made.start(ANNE, "report", {"host": "pi"}, key="k") for _ in range(5)]
        views = await asyncio.gather(*starts)
        assert len({view.id for view in views}) == 1 == len(await made.list("local"))
        with pytest.raises(WorkflowKeyReused):
            await made.start(ANNE, "report", {"host": "nas"}, key="k")
    async with house(tmp_path, REPORT, serving=False) as made:
        again = await made.start(ANNE, "report", {"host": "pi"}, key="k")
        assert again.id == views[0].id
        other = await made.start(Principal("other"), "report", {"host": "pi"}, key="k")
        assert other.id != again.id


async def test_workflows_of_another_tenant_are_not_visible(tmp_path: Path) -> None:
    ask = Workflow("ask", (ApprovalStep("ok", message="?"),))
    stranger = Answerer("person", "eve", "other", frozenset({HUMAN_SCOPE}))
    async with house(tmp_path, ask) as made:
        id_ = (await made.start(ANNE, "ask", {})).id
        await waiting(made, id_)

        assert await made.get("other", id_) is None
        assert await made.list("other") == [] and len(await made.list("local")) == 1
        assert not await made.cancel("other", id_)
        with pytest.raises(WorkflowRunNotFound):
            await made.records("other", id_)
        with pytest.raises(WorkflowRunNotFound):
            await made.answer(stranger, id_, "ok", StepDecision.APPROVE)


async def test_a_condition_takes_one_branch_and_its_output(tmp_path: Path) -> None:
    flow = Workflow(
        "cond",
        (
            ConditionStep(
                "check",
                when="inputs.n > 3",
                then=(ToolStep("big", tool="big"),),
                otherwise=(ToolStep("small", tool="small"),),
            ),
        ),
        inputs={"n": Input(type="integer")},
        output="{{ steps.check.output.text }} {{ steps.big.state }} {{ steps.small.state }}",
    )
    tools = ScriptedTools({"big": "B", "small": "S"})
    async with house(tmp_path, flow, tools=tools) as made:
        assert (await run(made, "cond", {"n": 4})).output == "B succeeded skipped"
        view = await run(made, "cond", {"n": 3})

    assert view.output == "S skipped succeeded"
    assert states(view) == {"check": "succeeded", "big": "skipped", "small": "succeeded"}
    assert [call.tool for call in tools.calls] == ["big", "small"]


async def test_parallel_steps_run_concurrently_up_to_their_limit(tmp_path: Path) -> None:
    live = most = 0
    room = asyncio.Event()

    async def work(asked: ToolRequest) -> ToolOutcome:
        nonlocal live, most
        live += 1
        most = max(most, live)
        if live == 2:
            room.set()
        await room.wait()
        live -= 1
        return text_result(asked, asked.request_id)

    steps = tuple(ToolStep(f"s{n}", tool="work") for n in range(5))
    flow = Workflow("par", (ParallelStep("all", steps, limit=2),))
    async with house(tmp_path, flow, tools=ScriptedTools({"work": work})) as made:
        view = await run(made, "par")

    assert most == 2
    assert list(view.output) == ["s0", "s1", "s2", "s3", "s4"]


async def test_a_failed_parallel_step_lets_running_steps_end_and_starts_no_more(
    tmp_path: Path,
) -> None:
    failed = asyncio.Event()

    async def slow(asked: ToolRequest) -> ToolOutcome:
        await failed.wait()
        return text_result(asked, "done")

    async def broken(asked: ToolRequest) -> ToolOutcome:
        failed.set()
        return failure(asked.request_id, "broken", ErrorKind.EXECUTION_FAILED, "it broke")

    steps = (
        ToolStep("slow", tool="slow"), ToolStep("broken", tool="broken"),
        ToolStep("third", tool="slow"),
    )  # fmt: skip
    flow = Workflow("par", (ParallelStep("all", steps, limit=2),))
    tools = ScriptedTools({"slow": slow, "broken": broken})
    async with house(tmp_path, flow, tools=tools) as made:
        view = await run(made, "par")

    assert view.state == "failed" and "execution_failed: it broke" in view.error
    assert states(view) == {
        "all": "failed", "slow": "succeeded", "broken": "failed", "third": "skipped",
    }  # fmt: skip


async def test_on_error_can_continue_or_jump_to_a_later_step(tmp_path: Path) -> None:
    flow = Workflow(
        "errors",
        (
            ToolStep("one", tool="missing", on_error="continue"),
            ToolStep("two", tool="missing", on_error="rescue"),
            ToolStep("three", tool="fine"),
            ToolStep("rescue", tool="fine", arguments={"why": "{{ steps.two.error }}"}),
        ),
    )
    tools = ScriptedTools({"fine": "ok"})
    async with house(tmp_path, flow, tools=tools) as made:
        view = await run(made, "errors")

    assert view.state == "succeeded"
    assert states(view) == {
        "one": "failed", "two": "failed", "three": "skipped", "rescue": "succeeded",
    }  # fmt: skip
    assert tools.calls[-1].arguments == {"why": "not_found: no such tool"}


async def test_a_wait_step_keeps_its_due_time_across_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    flow = Workflow("wait", (WaitStep("nap", seconds=3600), ToolStep("then", tool="t")))
    tools = ScriptedTools({"t": "ok"})
    async with house(tmp_path, flow, tools=tools, clock=clock) as made:
        id_ = (await made.start(ANNE, "wait", {})).id
        view = await wait_parked(made, id_)
        assert step_of(view, "nap").due == clock.now + 3600
    clock.now += 3000
    async with house(tmp_path, flow, tools=tools, clock=clock) as made:
        view = await waiting(made, id_)
        assert step_of(view, "nap").state == "waiting" and not tools.calls
        clock.now += 600
        view = await ended(made, id_)

    assert view.state == "succeeded" and len(tools.calls) == 1


async def test_a_wait_step_can_wait_until_a_time_given_as_input(tmp_path: Path) -> None:
    flow = Workflow(
        "until", (WaitStep("nap", until="{{ inputs.when }}"),), inputs={"when": Input()}
    )
    async with house(tmp_path, flow, clock=Clock(0.0)) as made:
        id_ = (await made.start(ANNE, "until", {"when": "1970-01-02T01:00:00+01:00"})).id
        assert step_of(await waiting(made, id_), "nap").due == 86_400
        assert (await run(made, "until", {"when": "1969-01-01"})).state == "succeeded"
        view = await run(made, "until", {"when": "tomorrow"})

    assert view.state == "failed" and "'tomorrow' is not a time" in view.error


async def test_only_a_human_can_approve_a_step_and_the_first_answer_counts(tmp_path: Path) -> None:
    flow = Workflow(
        "ask",
        (ApprovalStep("ok", message="Stop {{ inputs.host }}?"), ToolStep("stop", tool="stop")),
        inputs={"host": Input()},
        output="{{ steps.ok.output.reason }}",
    )
    agent = Answerer("agent", "bot", "local", frozenset({HUMAN_SCOPE}))
    async with house(tmp_path, flow, tools=ScriptedTools({"stop": "ok"})) as made:
        id_ = (await made.start(ANNE, "ask", {"host": "pi"})).id
        asked = step_of(await waiting(made, id_), "ok")
        assert asked.asked == "Stop pi?" and asked.answers == ("approve", "deny")
        with pytest.raises(NotAPerson):
            await made.answer(agent, id_, "ok", StepDecision.APPROVE)
        with pytest.raises(CannotAnswer, match="approve or deny"):
            await made.answer(PERSON, id_, "ok", StepDecision.RETRY)
        with pytest.raises(CannotAnswer, match="does not wait for an answer"):
            await made.answer(PERSON, id_, "stop", StepDecision.APPROVE)
        answers = [made.answer(PERSON, id_, "ok", StepDecision.APPROVE, "fine") for _ in range(3)]
        came = await asyncio.gather(*answers, return_exceptions=True)
        view = await ended(made, id_)

    assert sum(isinstance(one, CannotAnswer) for one in came) == 2
    assert view.state == "succeeded" and view.output == "fine"


async def test_an_approval_from_now_on_reaches_a_workflow_that_is_just_about_to_wait(
    tmp_path: Path,
) -> None:
    approvers = [""]

    async def approved_by(_: ApprovalScope) -> str:
        found = approvers[-1]
        if not found:  # the person answers after this was read, and before the workflow waits
            approvers.append("anne")
            await made.wake_all("local", "ask")
        return found

    flow = Workflow("ask", (ApprovalStep("sure", message="Shall I?"),))
    async with house(tmp_path, flow, approved_by=approved_by) as made:
        assert (await run(made, "ask")).state == "succeeded"


async def test_a_denied_approval_fails_the_workflow_with_its_reason(tmp_path: Path) -> None:
    flow = Workflow("ask", (ApprovalStep("ok", message="?"), ToolStep("stop", tool="stop")))
    tools = ScriptedTools({"stop": "ok"})
    async with house(tmp_path, flow, tools=tools) as made:
        id_ = (await made.start(ANNE, "ask", {})).id
        await waiting(made, id_)
        await made.answer(PERSON, id_, "ok", StepDecision.DENY, "not today")
        view = await ended(made, id_)

    assert view.state == "failed" and view.error == "ok: denied by anne: not today"
    assert not tools.calls


async def test_an_approval_that_times_out_is_denied(tmp_path: Path) -> None:
    clock = Clock()
    flow = Workflow("ask", (ApprovalStep("ok", message="?", timeout_s=60),))
    async with house(tmp_path, flow, clock=clock) as made:
        id_ = (await made.start(ANNE, "ask", {})).id
        await waiting(made, id_)
        clock.now += 60
        view = await ended(made, id_)

    assert view.state == "failed" and "no person answered in time" in view.error


async def test_a_workflow_can_be_a_step_of_another(tmp_path: Path) -> None:
    inner = Workflow(
        "inner",
        (ToolStep("t", tool="t", arguments={"n": "{{ inputs.n }}"}),),
        inputs={"n": Input(type="integer")},
        output={"said": "{{ steps.t.output.text }}"},
    )
    outer = Workflow(
        "outer",
        (WorkflowStep("sub", workflow="inner", inputs={"n": 7}),),
        output="{{ steps.sub.output.said }}",
    )
    tools = ScriptedTools({"t": "hello"})
    async with house(tmp_path, inner, outer, tools=tools) as made:
        view = await run(made, "outer")
        child = await made.get("local", step_of(view, "sub").workflow_id)

    assert view.output == "hello" and tools.calls[0].arguments == {"n": 7}
    assert child is not None and child.parent == view.id and child.state == "succeeded"


async def test_a_failed_child_workflow_fails_its_step(tmp_path: Path) -> None:
    inner = Workflow("inner", (ToolStep("t", tool="missing"),))
    outer = Workflow("outer", (WorkflowStep("sub", workflow="inner"),))
    async with house(tmp_path, inner, outer) as made:
        view = await run(made, "outer")

    assert view.state == "failed" and "no such tool" in view.error


async def test_cancelling_a_workflow_cancels_its_runs_and_child_workflows(tmp_path: Path) -> None:
    inner = Workflow("inner", (AgentStep("deep", agent="slow", message="go"),))
    outer = Workflow(
        "outer",
        (
            ParallelStep(
                "both",
                (
                    AgentStep("ask", agent="slow", message="go"),
                    WorkflowStep("sub", workflow="inner"),
                ),
            ),
        ),
    )
    agents = ScriptedAgents({"slow": never_finishes})
    async with house(tmp_path, inner, outer, agents=agents) as made:
        id_ = (await made.start(ANNE, "outer", {})).id
        await workflow_when(made, id_, lambda _: len(agents.calls) == 2)
        assert await made.cancel("local", id_, by="anne", reason="enough")
        view = await ended(made, id_)
        child = await ended(made, step_of(view, "sub").workflow_id)
        assert not await made.cancel("local", id_)

    assert view.state == child.state == "cancelled" and view.error == "enough"
    assert sorted(agents.cancelled) == sorted(call.run_id for call in agents.calls)


async def test_stopping_the_process_does_not_cancel_agent_runs_and_tool_calls(
    tmp_path: Path,
) -> None:
    agents, tools = ScriptedAgents({"slow": never_finishes}), ScriptedTools({"slow": never_ends})
    steps = (AgentStep("a", agent="slow", message="x"), ToolStep("t", tool="slow"))
    flow = Workflow("w", (ParallelStep("both", steps),))
    async with house(tmp_path, flow, agents=agents, tools=tools) as made:
        id_ = (await made.start(ANNE, "w", {})).id
        await workflow_when(made, id_, lambda _: bool(agents.calls and tools.calls))
    assert not agents.cancelled and not tools.cancelled
    async with house(tmp_path, flow, agents=agents, tools=tools) as made:
        view = await workflow_when(made, id_, lambda view: view.steps[2].state == "unknown")
        assert view.steps[1].state == "running"
        await made.cancel("local", id_)
        await ended(made, id_)

    assert agents.cancelled == [f"{id_}-a-1"] and tools.cancelled == [f"{id_}-t.1.0.1"]
    assert len(agents.calls) == len(tools.calls) == 1


async def never_ends(asked: ToolRequest) -> ToolOutcome:
    await asyncio.Event().wait()
    return text_result(asked, "")


async def test_a_retryable_failure_is_retried_with_backoff(tmp_path: Path) -> None:
    clock, tries = Clock(), 0

    async def flaky(asked: ToolRequest) -> ToolOutcome:
        nonlocal tries
        tries += 1
        if tries < 3:
            return failure(asked.request_id, "t", ErrorKind.AGENT_OFFLINE, "not there")
        return text_result(asked, "ok")

    retry = Retry(attempts=3, backoff_s=10)
    flow = Workflow("flaky", (ToolStep("t", tool="t", retry=retry),))
    tools = ScriptedTools({"t": flaky})
    async with house(tmp_path, flow, tools=tools, clock=clock) as made:
        id_ = (await made.start(ANNE, "flaky", {})).id
        pauses: list[float] = []
        for attempt in (1, 2):
            view = await workflow_when(
                made, id_,
                lambda v, n=attempt: v.state == "waiting" and v.steps[0].attempts == n,
            )  # fmt: skip
            pauses.append((view.steps[0].due or 0) - clock.now)
            clock.now += pauses[-1]
        view = await ended(made, id_)

    assert pauses == [10, 20] and view.state == "succeeded" and view.steps[0].attempts == 3
    ids = [call.request_id for call in tools.calls]
    assert ids == [f"{id_}-t.1.0.{attempt}" for attempt in (1, 2, 3)]


async def test_a_failure_with_possible_effects_is_not_retried(tmp_path: Path) -> None:
    async def broken(asked: ToolRequest) -> ToolOutcome:
        return failure(asked.request_id, "t", ErrorKind.EXECUTION_FAILED, "half done")

    async def failing(call: AgentCall) -> AgentRunOutcome:
        return AgentRunResult(ok=False, reason="gave up after two calls")

    retry = Retry(attempts=5, backoff_s=0)
    flows = (
        Workflow("tool", (ToolStep("t", tool="t", retry=retry),)),
        Workflow("agent", (AgentStep("a", agent="a", message="x", retry=retry),)),
    )
    agents, tools = ScriptedAgents({"a": failing}), ScriptedTools({"t": broken})
    async with house(tmp_path, *flows, agents=agents, tools=tools) as made:
        first, second = await run(made, "tool"), await run(made, "agent")

    assert (first.state, second.state) == ("failed", "failed")
    assert (len(tools.calls), len(agents.calls)) == (1, 1)


async def test_an_agent_step_that_times_out_is_cancelled(tmp_path: Path) -> None:
    agents = ScriptedAgents({"slow": never_finishes})
    step = AgentStep("a", agent="slow", message="x", timeout_s=0.05)
    async with house(tmp_path, Workflow("slow", (step,)), agents=agents) as made:
        view = await run(made, "slow")

    assert view.state == "failed" and "longer than 0.05 s" in view.error
    assert agents.cancelled == [f"{view.id}-a-1"]


@pytest.mark.parametrize(
    ("decision", "state", "asked"),
    [
        (StepDecision.RETRY, "succeeded", 2),
        (StepDecision.SKIP, "succeeded", 1),
        (StepDecision.FAIL, "failed", 1),
    ],
)
async def test_an_unknown_outcome_waits_for_a_human_decision(
    tmp_path: Path, decision: StepDecision, state: str, asked: int
) -> None:
    async def hung(call: ToolRequest) -> ToolOutcome:
        if call.request_id.endswith(".1"):
            await asyncio.Event().wait()
        return text_result(call, "ok")

    step = ToolStep("t", tool="t", timeout_s=0.05, on_error="fail")
    tools = ScriptedTools({"t": hung})
    async with house(tmp_path, Workflow("w", (step,)), tools=tools) as made:
        id_ = (await made.start(ANNE, "w", {})).id
        view = await waiting(made, id_)
        assert (
            view.steps[0].state == "unknown" and "may not have taken effect" in view.steps[0].error
        )
        assert view.steps[0].answers == ("retry", "skip", "fail")
        assert tools.cancelled == [f"{id_}-t.1.0.1"]
        await made.answer(PERSON, id_, "t", decision)
        view = await ended(made, id_)

    assert view.state == state and len(tools.calls) == asked


async def test_a_run_waiting_for_approval_parks_the_workflow(tmp_path: Path) -> None:
    ready = False

    async def asks(call: AgentCall) -> AgentRunOutcome:
        return AgentRunResult(ok=True, text="done") if ready else StepWaiting("asks for approval")

    agents = ScriptedAgents({"a": asks})
    flow = Workflow("w", (AgentStep("a", agent="a", message="x"),))
    async with house(tmp_path, flow, agents=agents) as made:
        id_ = (await made.start(ANNE, "w", {})).id
        view = await wait_parked(made, id_)
        assert view.steps[0].state == "waiting" and view.steps[0].error == "asks for approval"
        await made.wake("local", agents.calls[0].run_id)
        await waiting(made, id_)
        ready = True
        await made.wake("local", agents.calls[0].run_id)
        view = await ended(made, id_)

    assert view.state == "succeeded" and len(agents.calls) == 1


@pytest.mark.parametrize("kind", ["agent", "tool"])
async def test_the_time_that_a_person_takes_does_not_count_against_a_timeout(
    tmp_path: Path, kind: str
) -> None:
    clock, approved, hangs = Clock(), False, False

    async def asks(_: object) -> AgentRunOutcome:
        if hangs:
            await asyncio.Event().wait()
        waiting = StepWaiting("asks for approval", for_person=True)
        return AgentRunResult(ok=True, text="done") if approved else waiting

    async def calls(asked: ToolRequest) -> ToolOutcome:
        outcome = await asks(asked)
        return outcome if isinstance(outcome, StepWaiting) else text_result(asked, "done")

    agents, tools = ScriptedAgents({"a": asks}), ScriptedTools({"t": calls})
    steps = {
        "agent": AgentStep("s", agent="a", message="x", timeout_s=0.5),
        "tool": ToolStep("s", tool="t", timeout_s=0.5),
    }
    flow = Workflow("w", (steps[kind],))
    async with house(tmp_path, flow, agents=agents, tools=tools, clock=clock) as made:
        first, second = [(await made.start(ANNE, "w", {})).id for _ in range(2)]
        for id_ in (first, second):
            await wait_parked(made, id_)
        clock.now += 200
        approved = True
        await made.wake("local", first)
        view = await ended(made, first)
        assert view.state == "succeeded" and view.steps[0].attempts == 1

        hangs = True  # what the step itself does after the approval counts again
        await made.wake("local", second)
        view = await workflow_when(
            made, second, lambda view: view.steps[0].state in ("failed", "unknown")
        )
        assert "longer than 0.5 s" in view.steps[0].error


async def test_a_person_in_a_child_workflow_does_not_count_against_the_timeout_of_its_step(
    tmp_path: Path,
) -> None:
    clock = Clock()
    child = Workflow("child", (ApprovalStep("sure", message="sure?"), WaitStep("w", seconds=40)))
    step = WorkflowStep("inner", workflow="child", timeout_s=60)
    parent, slow = Workflow("parent", (step,)), Workflow("slow", (WaitStep("w", seconds=3_600),))
    late = Workflow("late", (WorkflowStep("inner", workflow="slow", timeout_s=60),))
    async with house(tmp_path, child, parent, slow, late, clock=clock) as made:
        id_ = (await made.start(ANNE, "parent", {})).id
        inner = (await wait_parked(made, id_)).steps[0].workflow_id
        await workflow_when(made, inner, lambda view: bool(view.steps[0].answers))
        clock.now += 3_600
        await made.answer(PERSON, inner, "sure", StepDecision.APPROVE)
        await workflow_when(made, inner, lambda view: view.steps[1].state == "waiting")
        clock.now += 41
        assert (await ended(made, id_)).state == "succeeded"

        id_ = (await made.start(ANNE, "late", {})).id
        await wait_parked(made, id_)
        clock.now += 61
        view = await ended(made, id_)
        assert view.state == "failed" and "longer than 60 s" in view.error


async def test_a_tool_waiting_for_approval_is_called_again_with_the_same_request_id(
    tmp_path: Path,
) -> None:
    async def asks(asked: ToolRequest) -> ToolOutcome:
        return (
            text_result(asked, "ok")
            if len(tools.calls) > 1
            else StepWaiting("a person must approve")
        )

    tools = ScriptedTools({"t": asks})
    async with house(tmp_path, Workflow("w", (ToolStep("t", tool="t"),)), tools=tools) as made:
        id_ = (await made.start(ANNE, "w", {})).id
        await waiting(made, id_)
        await made.wake("local", tools.calls[0].request_id)
        view = await ended(made, id_)

    assert view.state == "succeeded"
    assert {call.request_id for call in tools.calls} == {f"{id_}-t.1.0.1"}
    assert [call.resumed for call in tools.calls] == [False, False]


async def test_values_keep_their_labels_between_steps(tmp_path: Path) -> None:
    page = Label(untrusted=True, sources=("webfetch",))

    async def fetch(asked: ToolRequest) -> ToolOutcome:
        return ToolResult(asked.request_id, "fetch", (TextBlock("evil", page),))

    flow = Workflow(
        "labels",
        (
            ToolStep("page", tool="fetch"),
            ToolStep("clean", tool="t", arguments={"n": 1}),
            ToolStep("dirty", tool="t", arguments={"text": "{{ steps.page.output.text }}"}),
            AgentStep("ask", agent="a", message="{{ steps.dirty.output.text }}"),
        ),
    )
    agents, tools = ScriptedAgents({"a": "ok"}), ScriptedTools({"fetch": fetch, "t": "ok"})
    async with house(tmp_path, flow, agents=agents, tools=tools) as made:
        await run(made, "labels")

    assert [call.label.untrusted for call in tools.calls] == [False, False, True]
    assert agents.calls[0].label.untrusted


async def test_a_reference_without_a_value_fails_its_step(tmp_path: Path) -> None:
    flow = Workflow(
        "w",
        (
            ToolStep("a", tool="a"),
            ToolStep("b", tool="a", arguments={"x": "{{ steps.a.output.nope }}"}),
        ),
    )
    async with house(tmp_path, flow, tools=ScriptedTools({"a": "ok"})) as made:
        view = await run(made, "w")

    assert view.state == "failed" and "steps.a.output.nope does not exist" in view.error


async def test_an_oversized_output_fails_its_step(tmp_path: Path) -> None:
    tools = ScriptedTools({"big": "x" * 1_100_000, "deep": "[" * 200 + "]" * 200})
    flows = [Workflow(name, (ToolStep("t", tool=name),)) for name in ("big", "deep")]
    async with house(tmp_path, *flows, tools=tools) as made:
        assert "more than 1000000 bytes" in (await run(made, "big")).error
        assert "more than 64 deep" in (await run(made, "deep")).error


async def test_an_exception_in_a_tool_port_makes_the_outcome_unknown(tmp_path: Path) -> None:
    async def faulty(asked: ToolRequest) -> ToolOutcome:
        raise KeyError("oops")

    flow = Workflow("w", (ToolStep("t", tool="t"),))
    async with house(tmp_path, flow, tools=ScriptedTools({"t": faulty})) as made:
        id_ = (await made.start(ANNE, "w", {})).id
        view = await waiting(made, id_)

    assert view.steps[0].state == "unknown" and "KeyError" in view.steps[0].error


async def test_watching_a_workflow_yields_every_record_once(tmp_path: Path) -> None:
    flow = Workflow(
        "w", (SequenceStep("both", (ToolStep("a", tool="a"), ToolStep("b", tool="missing"))),)
    )
    async with house(tmp_path, flow, tools=ScriptedTools({"a": "ok"})) as made:
        id_ = (await made.start(ANNE, "w", {})).id
        async with asyncio.timeout(20), aclosing(made.watch("local", id_)) as records:
            seen = [record async for record in records]
        assert list(await made.records("local", id_)) == seen
        async with asyncio.timeout(20), aclosing(made.watch("local", id_, 3)) as records:
            assert [record async for record in records] == seen[3:]

    assert [record.seq for record in seen] == list(range(1, len(seen) + 1))
    assert isinstance(seen[-1].event, WorkflowFinished)
    assert any(isinstance(record.event, StepFailed) for record in seen)


async def test_workflow_lists_are_paged_newest_first(tmp_path: Path) -> None:
    async with house(tmp_path, REPORT, serving=False) as made:
        ids = [(await made.start(ANNE, "report", {"host": str(n)})).id for n in range(5)]
        first = await made.list("local", limit=3)
        rest = await made.list("local", before=first[-1].id)
        queued = await made.list("local", name="report", state=first[0].state)

    assert [view.id for view in (*first, *rest)] == ids[::-1] == [view.id for view in queued]
    assert first[0].state == "queued" and first[0].inputs == {"host": "4", "limit": 80}


async def test_an_unreadable_workflow_does_not_block_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agents = ScriptedAgents({"writer": "all is well"})
    hello = Workflow("hello", (AgentStep("say", agent="writer", message="Hello."),))
    async with house(tmp_path, hello, agents=agents, serving=False) as made:
        broken = await made.start(ANNE, "hello", {})
    async with await SqliteDatabase.open(tmp_path / "workflows.db", SCHEMA) as database:
        later = "UPDATE workflow_runs SET plan = ? WHERE id = ?"
        values = (add_checksum(b'{"of": "a later version"}'), broken.id)
        await database.write(lambda c: c.execute(later, values))
    async with house(tmp_path, hello, agents=agents) as made:
        assert (await run(made, "hello")).state == "succeeded"
    assert f"workflow {broken.id} cannot be decoded" in caplog.text
