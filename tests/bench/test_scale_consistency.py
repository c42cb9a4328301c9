"""The checks of `make scalebench` find each violated guarantee, and none in a correct history."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.scale.collect import summarize
from bench.scale.consistency import (
    FENCING_GRACE_S,
    BudgetLimits,
    Findings,
    History,
    Mark,
    ModelRequest,
    Outage,
    RecordSummary,
    RequestedRun,
    StartedCall,
    StoredRunSummary,
    WatchedRun,
    check_history,
    takeovers,
)

A, B = "k0000000001", "k0000000002"


def records_from(first: float, *kinds: str) -> tuple[RecordSummary, ...]:
    """Records a second apart; replies are counted."""
    records: list[RecordSummary] = []
    for number, kind in enumerate(kinds):
        turn = 1 + sum(record.kind == kind for record in records)
        records.append(RecordSummary(number + 1, first + number, kind, turn))
    return tuple(records)


WHOLE = ("run_started", "turn_started", "replied", "call_started", "call_finished", "run_finished")
GOOD = History(
    requested=[
        RequestedRun(A, "s", 0, "ann", frozenset({"r1"})),
        RequestedRun(B, "s", 1, "ann", frozenset({"r2"})),
    ],
    stored=[
        StoredRunSummary(
            "r1",
            A,
            "ended",
            "completed",
            records_from(100, *WHOLE),
            (StartedCall(f"{A}.1.1", "ok"),),
        ),
        StoredRunSummary(
            "r2",
            B,
            "ended",
            "completed",
            records_from(110, *WHOLE),
            (StartedCall(f"{B}.1.1", "ok"),),
        ),
    ],
    watched=[WatchedRun("r1", (1, 2, 3, 4, 5, 6)), WatchedRun("r2", (1, 2, 3, 4, 5, 6))],
    marks=[Mark("pi", f"{A}.1.1", 103.5), Mark("pi", f"{B}.1.1", 113.5)],
    model_requests=[ModelRequest(101.5, "one", A, 1), ModelRequest(111.5, "two", B, 1)],
    limits=BudgetLimits(2, 10, 3),
)


def with_run(**changes: object) -> History:
    """The correct history with a changed first run."""
    first, second = GOOD.stored
    return replace(GOOD, stored=[replace(first, **changes), second])  # pyright: ignore[reportArgumentType]


def only(history: History) -> tuple[str, str]:
    """The only violated guarantee, and its message."""
    found = vars(check_history(history))
    ((name, lines),) = [(name, lines) for name, lines in found.items() if lines]
    assert len(lines) == 1, lines
    return name, lines[0]


def test_a_correct_history_has_no_findings() -> None:
    assert check_history(GOOD) == Findings()
    assert check_history(History()) == Findings()


def test_an_accepted_run_that_has_not_ended_is_lost() -> None:
    name, line = only(with_run(state="running"))
    assert name == "lost"
    assert "still running" in line


def test_an_accepted_run_that_is_not_stored_is_lost() -> None:
    requested = [*GOOD.requested, RequestedRun("k0000000003", "t", 0, "ann", frozenset({"r3"}))]
    assert only(replace(GOOD, requested=requested))[0] == "lost"


def test_a_run_that_was_never_acknowledged_may_be_missing() -> None:
    requested = [*GOOD.requested, RequestedRun("k0000000003", "t", 0, "ann")]
    assert check_history(replace(GOOD, requested=requested)) == Findings()


def test_a_run_that_ended_with_an_error_is_lost() -> None:
    name, line = only(with_run(stop="error"))
    assert name == "lost"
    assert "with an error" in line


def test_a_call_reported_as_done_without_an_effect_is_lost() -> None:
    assert only(replace(GOOD, marks=GOOD.marks[1:]))[0] == "lost"


@pytest.mark.parametrize("outcome", ["unknown", "timeout", "agent_offline", ""])
def test_a_call_not_reported_as_done_may_have_no_effect(outcome: str) -> None:
    history = replace(with_run(calls=(StartedCall(f"{A}.1.1", outcome),)), marks=GOOD.marks[1:])
    assert check_history(history) == Findings()


def test_a_call_reported_as_never_started_with_an_effect_is_wrong() -> None:
    name, _ = only(with_run(calls=(StartedCall(f"{A}.1.1", "agent_offline"),)))
    assert name == "wrong"


def test_a_call_with_unknown_outcome_may_have_an_effect() -> None:
    assert check_history(with_run(calls=(StartedCall(f"{A}.1.1", "unknown"),))) == Findings()


def test_a_record_that_a_watcher_missed_is_lost() -> None:
    watched = [WatchedRun("r1", (1, 2, 3, 5, 6)), GOOD.watched[1]]
    name, line = only(replace(GOOD, watched=watched))
    assert name == "lost"
    assert "[4]" in line


def test_a_watcher_that_left_before_the_end_missed_nothing() -> None:
    watched = [WatchedRun("r1", (1, 2), ended=False), GOOD.watched[1]]
    assert check_history(replace(GOOD, watched=watched)) == Findings()


def test_a_delta_seen_by_a_watcher_and_lost_in_a_crash_is_accepted() -> None:
    watched = [WatchedRun("r1", (1, 2, 3, 4, 5, 6, 7)), GOOD.watched[1]]
    assert check_history(replace(GOOD, watched=watched)) == Findings()


def test_a_result_never_collected_from_an_edge_is_lost() -> None:
    assert only(replace(GOOD, uncollected=["pi r1.1.0.1"]))[0] == "lost"


def test_an_effect_that_happened_twice_is_duplicated() -> None:
    name, line = only(replace(GOOD, marks=[GOOD.marks[0], *GOOD.marks]))
    assert name == "duplicated"
    assert "2 times" in line


def test_an_effect_that_happened_on_two_edges_is_duplicated() -> None:
    twin = replace(GOOD.marks[0], edge="attic")
    assert only(replace(GOOD, marks=[twin, *GOOD.marks]))[0] == "duplicated"


def test_an_idempotency_key_with_two_acknowledged_runs_is_duplicated() -> None:
    both = replace(GOOD.requested[0], runs=frozenset({"r1", "r9"}))
    found = check_history(replace(GOOD, requested=[both, GOOD.requested[1]]))
    assert len(found.duplicated) == 1


def test_an_idempotency_key_with_two_stored_runs_is_duplicated() -> None:
    twin = replace(GOOD.stored[0], run="r9", records=(), calls=())
    assert only(replace(GOOD, stored=[*GOOD.stored, twin]))[0] == "duplicated"


def test_a_record_sent_twice_to_a_watcher_is_duplicated() -> None:
    watched = [WatchedRun("r1", (1, 2, 2, 3, 4, 5, 6)), GOOD.watched[1]]
    assert only(replace(GOOD, watched=watched))[0] == "duplicated"


def test_a_record_stored_twice_is_duplicated() -> None:
    first = GOOD.stored[0].records
    assert only(with_run(records=(*first[:2], first[1], *first[2:])))[0] == "duplicated"


def test_a_stored_reply_that_is_requested_again_is_duplicated() -> None:
    model_requests = [*GOOD.model_requests, ModelRequest(104.0, "two", A, 1)]
    assert only(replace(GOOD, model_requests=model_requests))[0] == "duplicated"


def test_an_interrupted_reply_may_be_requested_again() -> None:
    model_requests = [*GOOD.model_requests, ModelRequest(101.8, "two", A, 1)]
    assert check_history(replace(GOOD, model_requests=model_requests)) == Findings()


def test_only_a_paused_orchestrator_may_repeat_one_model_request() -> None:
    outages = [Outage("one", 90, 103.5, "stop")]
    late = replace(
        GOOD,
        model_requests=[*GOOD.model_requests, ModelRequest(104.0, "one", A, 1)],
        outages=outages,
    )
    assert check_history(late) == Findings()
    other = replace(
        GOOD,
        model_requests=[*GOOD.model_requests, ModelRequest(104.0, "two", A, 1)],
        outages=outages,
    )
    assert only(other)[0] == "duplicated"
    much = replace(
        late,
        model_requests=[
            *GOOD.model_requests,
            ModelRequest(103.5 + FENCING_GRACE_S + 1, "one", A, 1),
        ],
    )
    assert only(much)[0] == "duplicated"


def test_records_seen_by_a_watcher_in_another_order_are_out_of_order() -> None:
    watched = [WatchedRun("r1", (1, 2, 4, 3, 5, 6)), GOOD.watched[1]]
    name, line = only(replace(GOOD, watched=watched))
    assert name == "out_of_order"
    assert "4 before 3" in line


def test_turns_that_go_backwards_are_out_of_order() -> None:
    first = list(GOOD.stored[0].records)
    first[1:3] = [replace(first[1], turn=2), replace(first[1], seq=3, turn=1)]
    assert only(with_run(records=tuple(first)))[0] == "out_of_order"


def test_records_after_the_end_of_a_run_are_out_of_order() -> None:
    kinds = ("run_started", "turn_started", "replied", "call_started", "run_finished", "text_delta")
    assert only(with_run(records=records_from(100, *kinds)))[0] == "out_of_order"


def test_a_run_started_before_its_predecessor_ended_is_out_of_order() -> None:
    second = replace(GOOD.stored[1], records=records_from(104.5, *WHOLE))
    name, line = only(replace(GOOD, stored=[GOOD.stored[0], second], model_requests=()))
    assert name == "out_of_order"
    assert "r2 of s started 0.500 s before r1 ended" in line


def test_runs_of_two_sessions_may_overlap() -> None:
    second = replace(GOOD.stored[1], records=records_from(101, *WHOLE))
    requested = [GOOD.requested[0], replace(GOOD.requested[1], session="t")]
    history = replace(GOOD, requested=requested, stored=[GOOD.stored[0], second], model_requests=())
    assert check_history(history) == Findings()


def test_effects_in_the_wrong_order_on_one_edge_are_out_of_order() -> None:
    marks = [replace(GOOD.marks[1], at=0), replace(GOOD.marks[0], at=0)]
    assert only(replace(GOOD, marks=marks))[0] == "out_of_order"


def test_effects_in_the_wrong_order_across_edges_are_out_of_order() -> None:
    marks = [replace(GOOD.marks[0], at=120), replace(GOOD.marks[1], edge="attic")]
    name, line = only(replace(GOOD, marks=marks))
    assert name == "out_of_order"
    assert "came after" in line


def test_an_effect_with_unknown_outcome_may_be_late() -> None:
    history = with_run(calls=(StartedCall(f"{A}.1.1", "unknown"),))
    assert check_history(replace(history, marks=[GOOD.marks[1], GOOD.marks[0]])) == Findings()
    assert (
        check_history(replace(history, marks=[replace(GOOD.marks[0], at=120)])).out_of_order == []
    )


def test_a_run_with_more_calls_than_its_budget_is_overspent() -> None:
    more = [Mark("pi", f"{A}.1.{n}", 103.5) for n in range(2, 4)]
    history = replace(
        GOOD, marks=[GOOD.marks[0], *more, GOOD.marks[1]], limits=BudgetLimits(2, 10, 99)
    )
    name, line = only(history)
    assert (name, line) == ("overspent", f"calls of run {A}: 3 of 2")


def test_calls_of_a_sub_run_count_for_its_parent_run() -> None:
    more = [Mark("pi", f"{A}s{n}.1.1", 103.5) for n in (2, 3)]
    history = replace(
        GOOD, marks=[GOOD.marks[0], *more, GOOD.marks[1]], limits=BudgetLimits(2, 10, 99)
    )
    assert only(history)[0] == "overspent"


def test_a_user_with_more_calls_than_the_user_budget_is_overspent() -> None:
    assert only(replace(GOOD, limits=BudgetLimits(1, 10, 1))) == (
        "overspent",
        "calls of user ann: 2 of 1",
    )


def test_a_run_with_more_replies_than_its_limit_is_overspent() -> None:
    kinds = ("run_started", *("replied",) * 4, "run_finished")
    history = replace(
        with_run(records=records_from(100, *kinds)), limits=BudgetLimits(2, 3, 3), model_requests=()
    )
    assert only(history) == ("overspent", f"turns of run {A}: 4 of 3")


KILL = Outage("one", 102.2, 115.0, "kill")


def test_a_takeover_lasts_from_the_crash_to_the_next_record() -> None:
    (found,) = takeovers(GOOD.stored, GOOD.model_requests, [KILL], [])
    assert (found.run, found.orchestrator, found.kind) == ("r1", "one", "kill")
    assert found.seconds == pytest.approx(0.8)


def test_a_crash_of_an_orchestrator_that_drives_no_run_is_no_takeover() -> None:
    assert takeovers(GOOD.stored, GOOD.model_requests, [replace(KILL, name="two")], []) == []
    assert takeovers(GOOD.stored, GOOD.model_requests, [replace(KILL, since=120.0)], []) == []
    resumed = records_from(
        100, "run_started", "run_resumed", "text_delta", "replied", "run_finished"
    )
    model_requests = [ModelRequest(100.5, "one", A, 1)]
    assert takeovers([replace(GOOD.stored[0], records=resumed)], model_requests, [KILL], []) == []


def test_a_takeover_during_a_store_outage_is_not_measured() -> None:
    store_outages = [Outage("store", 102.5, 102.6, "crash_store")]
    assert takeovers(GOOD.stored, GOOD.model_requests, [KILL], store_outages) == []
    assert takeovers(GOOD.stored, GOOD.model_requests, [KILL], [Outage("store", 200, 201)]) != []


def test_a_disconnected_orchestrator_may_resume_its_own_run() -> None:
    assert takeovers(GOOD.stored, GOOD.model_requests, [replace(KILL, kind="cut_store")], []) == []


def test_stored_records_are_summarized() -> None:
    arguments = {"agent_id": "pi", "params": {"command": f"echo {A}.2.1 $EPOCHREALTIME >> marks"}}
    events = [
        {"type": "turn_started", "turn": 1},
        {"type": "replied"},
        {"type": "call_started", "call_id": "c", "name": "edge_call", "arguments": arguments},
        {"type": "call_finished", "result": {"call_id": "c", "error": "unknown"}},
        {"type": "replied"},
        {"type": "call_started", "call_id": "c", "name": "edge_call", "arguments": arguments},
        {"type": "call_started", "call_id": "t", "name": "task", "arguments": arguments},
    ]
    records = [{"seq": n, "at": float(n), "event": event} for n, event in enumerate(events, 1)]
    kept, calls = summarize([*records, {"after": 3}])
    assert [(one.seq, one.kind, one.turn) for one in kept[:2]] == [
        (1, "turn_started", 1),
        (2, "replied", 1),
    ]
    assert [one.turn for one in kept if one.kind == "replied"] == [1, 2]
    assert calls == (
        StartedCall(f"{A}.2.1", "unknown", "pi", started_at=3.0, ended_at=4.0),
        StartedCall(f"{A}.2.1", "", "pi", started_at=6.0),
    )
