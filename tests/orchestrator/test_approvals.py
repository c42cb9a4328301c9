"""Approvals as a run meets them: waited for, given elsewhere, used once, and after a restart."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Approval, Approver, Ask, Decision
from evoclaw.core.tools import Call, Context, Tool
from evoclaw.governance.approvals import (
    HUMAN_SCOPE,
    Answerer,
    ApprovalSettings,
    WorkflowStepRef,
)
from evoclaw.orchestrator.people.approvals import ApprovalCase, CallApprovals
from evoclaw.store.governance.approvals import ApprovalStatus, ApprovalStore
from tests.support.programs.approval_run import approval_store, start_or_resume

BASH = Tool("bash", "Runs a command.", {"type": "object"}, frozenset({"shell"}))
ASK = Ask("supervised", "bash writes or executes")
ANN = Answerer("person", "ann", scopes=frozenset({HUMAN_SCOPE}))
WAIT = ApprovalSettings(nobody="wait")
ROOT = Path(__file__).parents[2]


def call(number: int = 1, tool: Tool = BASH, tenant: str = "local", **arguments: JSON) -> Call:
    context = Context(principal=Principal(tenant))
    given = arguments or {"command": f"echo {number}"}
    return Call(str(number), tool, given, f"run.{number}.0.1", 1.0, context=context)


class Keyboard:
    """Somebody who answers when told to."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Call] = asyncio.Queue()
        self.answers: asyncio.Queue[Approval] = asyncio.Queue()
        self.gone = 0

    async def approve(self, call: Call, ask: Ask) -> Approval:
        self.asked.put_nowait(call)
        try:
            return await self.answers.get()
        except asyncio.CancelledError:
            self.gone += 1
            raise


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def desk(
    folder: Path,
    settings: ApprovalSettings = WAIT,
    face: Approver | None = None,
    clock: Clock | None = None,
) -> AsyncGenerator[CallApprovals]:
    path = folder / "approvals.db"
    async with await ApprovalStore.open(path, clock=clock or Clock()) as store, asyncio.timeout(30):
        yield CallApprovals(store, settings, local_approver=face)


async def waiting_for(approvals: CallApprovals, count: int) -> Sequence[ApprovalCase]:
    """So many that wait, as soon as there are."""
    for _ in range(3_000):
        if len(found := await approvals.waiting()) == count:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"there were never {count}")


async def one_waiting(approvals: CallApprovals, tenant: str = "local") -> str:
    (case,) = await approvals.waiting(tenant)
    return case.request.id


async def test_a_call_is_denied_by_default_when_no_approver_is_available(tmp_path: Path) -> None:
    async with desk(tmp_path, ApprovalSettings()) as approvals:
        said = await approvals.approver().approve(call(), ASK)
        assert said == Approval(Decision.DENY, "no one is available to approve it")
        assert await approvals.waiting() == []


async def test_a_pending_approval_names_the_approve_command_and_is_used_once(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as approvals:
        said = await approvals.approver().approve(call(), ASK)
        id_ = await one_waiting(approvals)
        assert said.decision is Decision.PENDING
        assert f"evoclaw approvals approve {id_}" in said.reason
        assert "24 h" in said.reason
        assert await approvals.answer(id_, Decision.ONCE, ANN, "fine") == ""
        assert await approvals.approver().approve(call(), ASK) == Approval(Decision.ONCE, "fine")
        case = await approvals.get(id_)
        assert case is not None
        assert case.status is ApprovalStatus.USED
        assert case.answer is not None
        assert case.answer.by == ANN


async def test_an_edited_call_is_approved_once_and_only_with_that_decision(tmp_path: Path) -> None:
    async with desk(tmp_path) as approvals:
        approver = approvals.approver("s1")
        await approver.approve(call(), ASK)
        (case,) = await approvals.waiting()
        edited: dict[str, JSON] = {"command": "echo mine"}
        for decision in (Decision.SESSION, Decision.DENY):
            assert "once" in await approvals.answer(case.request.id, decision, ANN, "", edited)
        assert await approvals.answer(case.request.id, Decision.ONCE, ANN, "", edited) == ""
        assert await approver.approve(call(), ASK) == Approval(Decision.ONCE, "", edited)


async def test_a_denial_and_its_reason_reach_the_model(tmp_path: Path) -> None:
    async with desk(tmp_path) as approvals:
        await approvals.approver().approve(call(), ASK)
        await approvals.answer(await one_waiting(approvals), Decision.DENY, ANN, "not on Friday")
        said = await approvals.approver().approve(call(), ASK)
        assert said == Approval(Decision.DENY, "not on Friday")


async def test_fault_54_an_approval_does_not_cover_other_arguments_or_another_tool(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as approvals:
        for number, tool, arguments in (
            (1, BASH, {"command": "rm -rf /"}),
            (2, replace(BASH, version="2"), {"command": "echo 2"}),
            (3, replace(BASH, parameters={}), {"command": "echo 3"}),
        ):
            await approvals.approver().approve(call(number), ASK)
            id_ = await one_waiting(approvals)
            assert await approvals.answer(id_, Decision.ONCE, ANN) == ""
            said = await approvals.approver().approve(call(number, tool, **arguments), ASK)
            assert said.decision is Decision.PENDING
            await approvals.withdraw(await one_waiting(approvals), ANN)
            # Nor does it come back when the call is what it was.
            said = await approvals.approver().approve(call(number), ASK)
            assert said == Approval(Decision.DENY, "its approval was withdrawn")


async def test_fault_54_an_expired_approval_request_cannot_be_approved(tmp_path: Path) -> None:
    clock = Clock()
    async with desk(tmp_path, ApprovalSettings(nobody="wait", expires_s=60), clock=clock) as there:
        await there.approver().approve(call(), ASK)
        id_ = await one_waiting(there)
        clock.now += 60
        assert "expired" in await there.answer(id_, Decision.ONCE, ANN)
        said = await there.approver().approve(call(), ASK)
        assert said == Approval(Decision.DENY, "it was not approved and started within 1 min")


async def test_fault_54_the_agents_own_token_cannot_approve(tmp_path: Path) -> None:
    human = frozenset({HUMAN_SCOPE})
    async with desk(tmp_path) as approvals:
        await approvals.approver().approve(call(), ASK)
        id_ = await one_waiting(approvals)
        for by, why in (
            (Answerer("agent", "bot", scopes=human), "only a person"),
            (Answerer("person", "token of the agent"), "only a person"),
            (Answerer("person", "eve", "other", human), "there is no such approval"),
        ):
            assert why in await approvals.answer(id_, Decision.ONCE, by)
            assert await approvals.withdraw(id_, by)
        said = await approvals.approver().approve(call(), ASK)
        assert said.decision is Decision.PENDING


async def test_tenants_do_not_see_each_others_approvals(tmp_path: Path) -> None:
    async with desk(tmp_path) as approvals:
        await approvals.approver().approve(call(tenant="a"), ASK)
        await approvals.approver().approve(call(tenant="b"), ASK)
        theirs = await one_waiting(approvals, "a")
        assert theirs != await one_waiting(approvals, "b")
        assert await approvals.get(theirs, "b") is None
        assert await approvals.waiting() == []


async def test_a_session_approval_covers_the_same_command_and_reason_until_withdrawn(
    tmp_path: Path,
) -> None:
    def status(number: int, options: str = "") -> Call:
        return call(number, command=f"git status {options}")

    async with desk(tmp_path) as approvals:
        mine, other = approvals.approver("mine"), approvals.approver("other")
        await mine.approve(status(1), ASK)
        id_ = await one_waiting(approvals)
        await approvals.answer(id_, Decision.SESSION, ANN)
        for number, options in ((1, ""), (2, "-s"), (3, "src")):
            assert (await mine.approve(status(number, options), ASK)).decision is Decision.SESSION
        flow = Ask("flow", "a web page was read")
        assert (await mine.approve(status(4), flow)).decision is Decision.PENDING
        assert (await other.approve(status(5), ASK)).decision is Decision.PENDING
        assert (await mine.approve(call(6), ASK)).decision is Decision.PENDING
        (case,) = await approvals.session_approvals()
        assert case.uses == 3
        assert await approvals.withdraw(id_, ANN) == ""
        assert (await mine.approve(status(7), ASK)).decision is Decision.PENDING


async def test_an_approval_for_a_step_covers_only_that_step_of_that_definition(
    tmp_path: Path,
) -> None:
    tool_step = WorkflowStepRef("daily", "mark", "a" * 64, fixed=True)
    agent_step = WorkflowStepRef("daily", "advice", "a" * 64)

    def of(step: WorkflowStepRef | None, run: str) -> Approver:
        return approvals.approver(f"session {run}", step)

    async with desk(tmp_path) as approvals:
        await of(tool_step, "1").approve(call(1), ASK)
        assert "approve it once" in await approvals.approve_step("nonsense", ANN)
        first = await one_waiting(approvals)
        agent = Answerer("agent", "bot", "local")
        assert "only a person" in await approvals.approve_step(first, agent)
        assert await approvals.approve_step(first, ANN) == ""
        assert (await of(tool_step, "1").approve(call(1), ASK)).decision is Decision.ONCE
        # The definition says which call it is: templates may fill it in another way each day.
        approval = await of(tool_step, "2").approve(call(2), ASK)
        assert approval == Approval(Decision.SESSION, "step 'mark' of workflow 'daily' is approved")
        untrusted = Ask("untrusted", "a web page was read")
        changed = replace(tool_step, sha256="b" * 64)
        for step, ask in (
            (tool_step, untrusted),
            (changed, ASK),
            (replace(tool_step, step="other"), ASK),
            (replace(tool_step, workflow="other"), ASK),
            (None, ASK),
        ):
            decided = await of(step, "3").approve(call(3), ask)
            assert decided.decision is Decision.PENDING, (step, ask)
        other = await of(tool_step, "4").approve(call(4, tenant="other"), ASK)
        assert other.decision is Decision.PENDING

        # An agent chooses its calls: only those like the approved one are covered.
        await of(agent_step, "5").approve(call(5, command="git status"), ASK)
        waiting = {case.request.request_id: case.request.id for case in await approvals.waiting()}
        assert await approvals.approve_step(waiting["run.5.0.1"], ANN) == ""
        like = await of(agent_step, "6").approve(call(6, command="git status -s"), ASK)
        unlike = await of(agent_step, "6").approve(call(7, command="git push"), ASK)
        assert (like.decision, unlike.decision) == (Decision.SESSION, Decision.PENDING)


async def test_fifty_concurrent_approvals_are_never_mixed_up(tmp_path: Path) -> None:
    settings = ApprovalSettings(nobody="wait", patience_s=20)
    async with desk(tmp_path, settings) as approvals, asyncio.TaskGroup() as group:
        asked = [
            group.create_task(approvals.approver().approve(call(number), ASK))
            for number in range(50)
        ]
        for case in reversed(await waiting_for(approvals, 50)):
            number = int(case.request.request_id.split(".")[1])
            assert case.request.arguments == {"command": f"echo {number}"}
            said = Decision.ONCE if number % 3 else Decision.DENY
            assert await approvals.answer(case.request.id, said, ANN, f"number {number}") == ""
    for number, task in enumerate(asked):
        wanted = Decision.ONCE if number % 3 else Decision.DENY
        assert task.result() == Approval(wanted, f"number {number}")


async def test_terminal_and_store_are_asked_for_approval_and_the_first_answer_wins(
    tmp_path: Path,
) -> None:
    keyboard = Keyboard()
    async with desk(tmp_path, ApprovalSettings(), keyboard) as approvals:
        asked = asyncio.create_task(approvals.approver().approve(call(1), ASK))
        assert await keyboard.asked.get() == call(1)
        await approvals.answer(await one_waiting(approvals), Decision.ONCE, ANN, "by hand")
        assert await asked == Approval(Decision.ONCE, "by hand")
        assert keyboard.gone == 1
        asked = asyncio.create_task(approvals.approver().approve(call(2), ASK))
        await keyboard.asked.get()
        id_ = await one_waiting(approvals)
        keyboard.answers.put_nowait(Approval(Decision.DENY, "the user said no"))
        assert await asked == Approval(Decision.DENY, "the user said no")
        assert "already denied" in await approvals.answer(id_, Decision.ONCE, ANN)


async def test_the_terminal_prompts_for_one_approval_at_a_time(tmp_path: Path) -> None:
    keyboard = Keyboard()
    settings = ApprovalSettings()
    async with desk(tmp_path, settings, keyboard) as approvals, asyncio.TaskGroup() as group:
        for number in (1, 2):
            group.create_task(approvals.approver().approve(call(number), ASK))
        for _ in range(2):
            await keyboard.asked.get()
            assert keyboard.asked.empty()
            keyboard.answers.put_nowait(Approval(Decision.ONCE))


async def test_an_approval_answered_in_another_process_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evoclaw.orchestrator.people.approvals.ANSWER_POLL_INTERVAL_S", 0.01)
    clock = Clock()
    settings = ApprovalSettings(patience_s=20)
    async with desk(tmp_path, settings, clock=clock) as here, desk(tmp_path, clock=clock) as there:
        asked = asyncio.create_task(here.approver().approve(call(), ASK))
        (case,) = await waiting_for(there, 1)
        assert await there.answer(case.request.id, Decision.ONCE, ANN, "from there") == ""
        assert await asked == Approval(Decision.ONCE, "from there")


async def test_an_approval_request_that_timed_out_cannot_be_answered_any_more(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, ApprovalSettings(patience_s=0.01)) as approvals:
        assert (await approvals.approver().approve(call(), ASK)).decision is Decision.DENY
        assert await approvals.waiting() == []
    keyboard = Keyboard()
    async with desk(tmp_path, ApprovalSettings(), keyboard) as approvals:
        asked = asyncio.create_task(approvals.approver().approve(call(2), ASK))
        await keyboard.asked.get()
        id_ = await one_waiting(approvals)
        keyboard.answers.put_nowait(Approval(Decision.PENDING))
        assert await asked == Approval(Decision.DENY, "no one is available to approve it")
        problem = await approvals.answer(id_, Decision.ONCE, ANN)
        assert problem == "its run no longer waits for the answer"


async def test_a_cancelled_approval_wait_leaves_no_task_and_stays_pending(tmp_path: Path) -> None:
    keyboard = Keyboard()
    async with desk(tmp_path, WAIT, keyboard) as approvals:
        before = asyncio.all_tasks()
        asked = asyncio.create_task(approvals.approver().approve(call(), ASK))
        await keyboard.asked.get()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert asyncio.all_tasks() == before
        assert len(await approvals.waiting()) == 1  # the run may be taken up again


async def test_a_run_waits_for_approval_and_resumes_once_approved(tmp_path: Path) -> None:
    records = await start_or_resume(tmp_path, WAIT)
    assert "waiting" in str(records[-1].event)
    records = await start_or_resume(tmp_path, WAIT)
    assert "waiting" in str(records[-1].event)
    assert not (tmp_path / "marker").exists()
    async with approval_store(tmp_path) as store:
        approvals = CallApprovals(store)
        assert await approvals.answer(await one_waiting(approvals), Decision.ONCE, ANN) == ""
    records = await start_or_resume(tmp_path, WAIT)
    assert "completed" in str(records[-1].event)
    assert (tmp_path / "marker").read_text() == "once\n"


@pytest.mark.process
async def test_a_killed_run_approved_from_the_cli_executes_the_call_once(
    tmp_path: Path,
) -> None:
    async def start(*arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )

    async def run(*arguments: str) -> tuple[int | None, str]:
        process = await start(*arguments)
        out, _ = await process.communicate()
        return process.returncode, out.decode()

    home, command = (
        str(tmp_path),
        ("tests.support.programs.governed_commands", str(tmp_path), "approvals"),
    )
    async with asyncio.timeout(60):
        running = await start("tests.support.programs.approval_run", home, "50")
        async with approval_store(tmp_path) as store:
            (case,) = await waiting_for(CallApprovals(store), 1)
        os.kill(running.pid, signal.SIGKILL)
        await running.wait()
        assert not (tmp_path / "marker").exists()
        id_ = case.request.id
        code, said = await run(*command)
        assert code == 0
        assert id_ in said
        assert await run(*command, "approve", id_) == (0, f"{id_}: approved, once\n")
        code, said = await run("tests.support.programs.approval_run", home, "0")
        assert (code, said) == (0, "completed: done\n")
        assert (tmp_path / "marker").read_text() == "once\n"
        assert (await run(*command, "approve", id_))[0] == 2
