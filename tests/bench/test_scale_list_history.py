"""The history of `make scalebench` as lists: what foreign checkers judge."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.scale.consistency import (
    History,
    Mark,
    RecordSummary,
    RequestedRun,
    StartedCall,
    StoredRunSummary,
)
from bench.scale.foreign_checker import CHECKER, judge, lines
from bench.scale.list_history import ListOperation, elle_lines, list_operations

A, B = "k0000000001", "k0000000002"


def stored(key: str, at: float, *calls: StartedCall) -> StoredRunSummary:
    first = RecordSummary(1, at, "run_started")
    return StoredRunSummary(f"r-{key}", key, "ended", "completed", (first,), calls, session="s")


HISTORY = History(
    requested=[
        RequestedRun(A, "s", 0, "ann", frozenset({"r1"}), 1.0, 2.0),
        RequestedRun(B, "", 1, "ann", asked_at=3.0),
    ],
    stored=[
        stored(B, 4.0, StartedCall(f"{B}.1.1", "unknown", "pi", 4.5, 6.0)),
        stored(A, 2.0, StartedCall(f"{A}.1.1", "ok", "pi", 2.5, 3.5)),
        stored(f"{A}s2", 3.0, StartedCall(f"{A}s2.1.1", "agent_offline", "pi", 3.0, 3.1)),
    ],
    marks=[Mark("pi", f"{A}.1.1", 3.0)],
)


def test_runs_are_appended_to_their_session_and_marks_to_their_edge() -> None:
    assert list_operations(HISTORY) == [
        ListOperation("session s", 1.0, 2.0, A),
        # Without an answer it is unknown whether the run was started.
        ListOperation("session s", 3.0, None, B),
        # What is reported as not run is no append: a mark of it would be nobody's.
        ListOperation("edge pi", 4.5, None, f"{B}.1.1"),
        ListOperation("edge pi", 2.5, 3.5, f"{A}.1.1"),
        ListOperation("edge pi", 5.5, 6.5, read=(f"{A}.1.1",)),
        ListOperation("session s", 5.5, 6.5, read=(A, B)),
    ]


def test_a_list_whose_appends_were_all_lost_is_read_as_empty() -> None:
    reads = [op for op in list_operations(replace(HISTORY, marks=[])) if op.read is not None]
    assert reads[0] == ListOperation("edge pi", 5.5, 6.5, read=())


def test_elle_gets_an_invocation_and_an_outcome_of_each_operation() -> None:
    operations = [
        ListOperation("edge pi", 1.0, 3.0, "x"),
        ListOperation("edge pi", 2.0, None, "y"),
        ListOperation("edge pi", 4.0, 5.0, read=("x",)),
    ]
    named = ', :list "edge pi", :element '
    assert list(elle_lines(operations)) == [
        "{:index 0, :process 0, :time 1000000000, :f :txn, :type :invoke,"
        f' :value [[:append 1 1]]{named}"x"}}',
        "{:index 1, :process 1, :time 2000000000, :f :txn, :type :invoke,"
        f' :value [[:append 1 2]]{named}"y"}}',
        "{:index 2, :process 0, :time 3000000000, :f :txn, :type :ok,"
        f' :value [[:append 1 1]]{named}"x"}}',
        "{:index 3, :process 2, :time 4000000000, :f :txn, :type :invoke,"
        f' :value [[:r 1 nil]]{named}""}}',
        "{:index 4, :process 2, :time 5000000000, :f :txn, :type :ok,"
        f' :value [[:r 1 [1]]]{named}""}}',
        "{:index 5, :process 1, :time 5000000000, :f :txn, :type :info,"
        f' :value [[:append 1 2]]{named}"y"}}',
    ]


def test_an_append_with_an_unknown_outcome_may_happen_after_the_read() -> None:
    unknown, read = lines(
        [ListOperation("a", 1.0, None, "x"), ListOperation("a", 2.0, 3.0, read=())]
    )
    assert unknown == '{"list": "a", "started": 1000000000, "ended": 4000000000, "appended": "x"}'
    assert read.endswith('"appended": "", "read": []}')


@pytest.mark.process
@pytest.mark.skipif(not CHECKER.exists(), reason="porcupine is not built: run make scalebench")
def test_porcupine_accepts_a_correct_history_and_names_the_list_of_a_broken_one() -> None:
    assert judge(list_operations(HISTORY)) == {
        "lists": 2,
        "operations": 6,
        "illegal": [],
        "undecided": [],
    }
    for marks in ([], [*HISTORY.marks, *HISTORY.marks], [Mark("pi", f"{A}s2.1.1")]):
        assert judge(list_operations(replace(HISTORY, marks=marks)))["illegal"] == ["edge pi"]
    late = replace(HISTORY.requested[1], asked_at=3.0, acknowledged_at=3.5, runs=frozenset({"r2"}))
    swapped = [stored(A, 9.0), stored(B, 8.0)]
    overtaken = replace(HISTORY, requested=[HISTORY.requested[0], late], stored=swapped, marks=[])
    assert judge(list_operations(overtaken))["illegal"] == ["session s"]
