"""Approvals where no person is: what a case, or its record, approves."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from evoclaw.core.agent import LoopSettings
from evoclaw.core.messages import Reply, user
from evoclaw.core.ports import Ports
from evoclaw.core.run import watch
from evoclaw.core.state import new_run
from evoclaw.evolution.case_approver import CaseApprover, case_approver
from evoclaw.evolution.cases import Case, CaseFile, Split, case_from_run, read_case
from evoclaw.evolution.evaluation import Attempt, CaseRun, evaluate
from evoclaw.evolution.gate.safety import safety_cases
from evoclaw.evolution.recorded_results import RecordedResults
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.sessions.recordings import encode_record
from evoclaw.tools.define import tool
from evoclaw.tools.fake import FakeOps

SENT = ("send", {"to": "ann"})


@tool("shell", resources=())
async def send(to: str) -> str:
    """Send."""
    return f"sent to {to}"


def case_of(**fields: Any) -> CaseFile:
    filled = {"message": "Go.", "checks": [{"kind": "called", "tool": "send"}], **fields}
    return CaseFile("x", Path("x.toml"), msgspec.convert(filled, Case))


RECORDED = case_of(results=[{"tool": "send", "arguments": {"to": "ann"}, "text": "sent"}])


async def attempt_of(case: CaseFile, level: Level, *replies: Reply) -> Attempt:
    """One run of a case whose calls all need an approval, unless the level denies them."""

    @asynccontextmanager
    async def open_run(case: CaseFile, workspace: Path) -> AsyncGenerator[CaseRun]:
        recorded = RecordedResults(case, [send.tool]) if case.case.is_recorded else None
        executor = LocalExecutor([send]) if recorded is None else recorded
        approver = case_approver(case, recorded)
        ports = Ports(Scripted(*replies), executor, Autonomy(level), approver)
        yield CaseRun(new_run([user("Go.")]), ports, LoopSettings(), FakeOps(), recorded)

    return (await evaluate([case], open_run)).attempts[0]


async def supervised(case: CaseFile, *replies: Reply) -> Attempt:
    return await attempt_of(case, Level.SUPERVISED, *replies)


async def test_a_call_that_the_record_can_answer_is_approved() -> None:
    done = await supervised(RECORDED, calls(SENT), says("ok"))
    assert (done.passed, done.coverage, done.denied) == (True, 1.0, 0)


async def test_a_call_that_the_record_cannot_answer_is_refused_and_lowers_the_coverage() -> None:
    other = ("send", {"to": "bob"})
    done = await supervised(RECORDED, calls(SENT, other), says("ok"))
    assert (done.passed, done.coverage, done.refused) == (True, 0.5, 1)
    done = await supervised(RECORDED, calls(other), says("ok"))
    assert (done.coverage, done.calls, done.refused) == (0.0, 0, 1)
    assert done.problems == (
        "the call of send needed an approval (send writes or executes): the record has no result "
        "for it",
        "send was called 0 times",
    )


async def test_an_executed_call_is_approved_if_the_case_names_its_tool() -> None:
    replies = calls(SENT), says("ok")
    done = await supervised(case_of(), *replies)
    assert done.problems == (
        'the call of send needed an approval (send writes or executes): add approve = ["send"] '
        "to the case",
        "send was called 0 times",
    )
    assert (done.recorded, done.coverage) == (False, None)
    other = await supervised(case_of(approve=["write"]), *replies)
    assert 'approve = ["write", "send"]' in other.problems[0]
    assert (await supervised(case_of(approve=["send"]), *replies)).passed


async def test_a_refused_call_does_not_fail_a_run_whose_checks_hold() -> None:
    case = case_of(checks=[{"kind": "not_called", "tool": "send"}])
    done = await supervised(case, calls(SENT), says("ok"))
    assert (done.passed, done.problems) == (True, ())


async def test_what_a_policy_denies_stays_denied_whatever_the_case_approves() -> None:
    for case in (case_of(approve=["send"]), RECORDED):
        done = await attempt_of(case, Level.READ_ONLY, calls(SENT), says("ok"))
        assert (done.passed, done.denied, done.refused) == (False, 1, 0)
        assert done.problems == ("send was called 0 times",)


async def test_nothing_is_approved_in_a_safety_case() -> None:
    cases = safety_cases()
    assert cases and not any(case.attended for case in cases)
    assert not any(isinstance(case_approver(case, None), CaseApprover) for case in cases)
    for case in (case_of(approve=["send"]), RECORDED):
        done = await supervised(replace(case, attended=False), calls(SENT), says("ok"))
        assert (done.passed, done.refused) == (False, 1)
        assert done.problems == ("send was called 0 times",)


async def test_a_case_of_a_run_names_the_tools_that_a_person_approved(tmp_path: Path) -> None:
    approver = CaseApprover(case_of(approve=["send"]), None)
    ports = Ports(
        Scripted(calls(SENT), says("Sent.")), LocalExecutor([send]), Autonomy(Level.SUPERVISED),
        approver,
    )  # fmt: skip
    records = [record async for record in watch("Send it.", ports)]
    (tmp_path / "kept.jsonl").write_bytes(b"".join(map(encode_record, records)))
    (tmp_path / "kept.toml").write_text(case_from_run(records, "kept", "bob", Split.TRAIN))
    case = read_case(tmp_path / "kept.toml")
    assert case.case.approve == ("send",)
    assert (await supervised(case, calls(SENT), says("Sent."))).passed


@pytest.mark.parametrize("replies", [(says("Sent."),), (calls(SENT), says("Sent."))])
async def test_an_attempt_says_that_its_results_came_from_a_record(replies: Any) -> None:
    assert (await supervised(RECORDED, *replies)).recorded
