"""The outcome of a run is what its records say."""

from __future__ import annotations

from evoclaw.core.agent import LoopSettings
from evoclaw.core.events import (
    ApprovalAnswered,
    CallFinished,
    CallJudged,
    CallStarted,
    Event,
    Prompted,
    Record,
    Replied,
    ReplyFailed,
    ReplyRetried,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
)
from evoclaw.core.messages import ErrorKind, Reply, TextBlock, ToolResult, UserMessage
from evoclaw.core.profile import Profile
from evoclaw.evolution.outcomes import Correction, OutcomeFold, RunOutcome

EMPTY = RunOutcome(
    genome="", stop=None, turns=0, calls=0, cost=None, errors={}, model_errors={}, denied=0,
    retries=0, corrections=(),
)  # fmt: skip


def outcome_of(*events: Event) -> RunOutcome:
    fold = OutcomeFold()
    for seq, event in enumerate(events, 1):
        fold.receive(Record("r", seq, 0.0, event))
    return fold.outcome()


def user(text: str) -> UserMessage:
    return UserMessage((TextBlock(text),))


def test_a_run_without_records_has_an_empty_outcome() -> None:
    assert outcome_of() == EMPTY


def test_errors_denials_retries_and_corrections_are_counted() -> None:
    settings = LoopSettings(genome="abc")
    found = outcome_of(
        RunStarted("m", (user("go"),), settings, Profile()),
        ReplyRetried("rate_limited", "busy", 1, 0.5),
        Replied(Reply("")),
        CallJudged("1", "deny", "rule", "no"),
        CallFinished(ToolResult("1", "bash", (), ErrorKind.PERMISSION_DENIED)),
        CallJudged("2", "ask"),
        ApprovalAnswered("2", "deny", "not that folder"),
        CallFinished(ToolResult("2", "bash", (), ErrorKind.PERMISSION_DENIED)),
        CallJudged("3", "ask"),
        ApprovalAnswered("3", "once", arguments={"command": "ls"}),
        CallStarted("3", "bash", {"command": "ls"}, "r.1.2.1"),
        CallFinished(ToolResult("3", "bash", (), ErrorKind.TIMEOUT)),
        Prompted(user("shorter, please"), "steer"),
        Prompted(user("continue"), "continue"),
        ReplyFailed("server_error", "down"),
        RunFinished(StopReason.ERROR, "", cost=0.25),
    )
    assert found == RunOutcome(
        genome="abc", stop=StopReason.ERROR, turns=1, calls=1, cost=0.25,
        errors={"permission_denied": 2, "timeout": 1}, model_errors={"server_error": 1}, denied=2,
        retries=1,
        corrections=(
            Correction("deny", "not that folder"),
            Correction("edit", ""),
            Correction("steer", "shorter, please"),
        ),
    )  # fmt: skip


def test_a_run_that_continues_after_it_waited_has_no_end_yet() -> None:
    waiting = RunFinished(StopReason.WAITING, "")
    assert outcome_of(waiting).stop is StopReason.WAITING
    resumed = RunResumed("m", LoopSettings(), Profile())
    assert outcome_of(waiting, resumed).stop is None
