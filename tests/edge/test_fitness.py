"""Fitness: from what happened alone, tools and model apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.errors import RecordingError
from evoclaw.core.events import StopReason
from evoclaw.core.messages import ErrorKind
from evoclaw.edge.fitness import (
    FAULT_KINDS,
    MAX_TOOLS,
    OTHER_TOOLS,
    Outcomes,
)


def test_fitness_is_none_without_recorded_outcomes() -> None:
    outcomes = Outcomes()
    fitness = outcomes.fitness()
    assert (fitness["tools"], fitness["model"], fitness["by_tool"]) == (None, None, {})
    assert outcomes.metrics()["tools"] == {}
    assert outcomes.metrics()["runs"]["by_stop"] == {}


def test_tool_metrics_use_the_documented_names() -> None:
    outcomes = Outcomes(now=lambda: 1234.5)
    for elapsed in (10, 20, 30):
        outcomes.record_call("bash", elapsed_ms=elapsed)
    outcomes.record_call("bash", error=ErrorKind.TIMEOUT, message="too slow", elapsed_ms=100)
    outcomes.record_call("bash", error=ErrorKind.PERMISSION_DENIED)
    figures = outcomes.metrics()["tools"]["bash"]
    assert figures["p50_latency_ms"] == pytest.approx(20, rel=0.05)
    assert figures["p95_latency_ms"] == 100
    del figures["p50_latency_ms"], figures["p95_latency_ms"]
    assert figures == {
        "total_calls": 5,
        "success_count": 3,
        "error_count": 2,
        "timeout_count": 1,
        "avg_latency_ms": 40,
        "errors": {"permission_denied": 1, "timeout": 1},
        "last_error": "permission_denied",
        "last_error_time": 1234.5,
    }


@pytest.mark.parametrize("error", list(ErrorKind))
def test_only_a_tools_own_errors_lower_its_fitness(error: ErrorKind) -> None:
    outcomes = Outcomes()
    outcomes.record_call("bash", elapsed_ms=1)
    outcomes.record_call("bash", error=error, elapsed_ms=1)
    assert outcomes.fitness()["tools"] == (0.5 if error in FAULT_KINDS else 1.0)
    assert outcomes.fitness()["by_tool"]["bash"] == outcomes.fitness()["tools"]
    assert outcomes.fitness()["model"] is None


@pytest.mark.parametrize(
    "error",
    [
        ErrorKind.PERMISSION_DENIED,
        ErrorKind.CANCELLED,
        ErrorKind.EXPIRED,
        ErrorKind.INVALID_PARAMS,
        ErrorKind.QUEUE_FULL,
    ],
)
def test_inconclusive_errors_leave_a_tools_fitness_unset(error: ErrorKind) -> None:
    outcomes = Outcomes()
    outcomes.record_call("bash", error=error, elapsed_ms=1)
    assert outcomes.fitness()["by_tool"] == {"bash": None}
    assert outcomes.fitness()["tools"] is None


def test_tool_fitness_is_weighted_by_calls() -> None:
    outcomes = Outcomes()
    for _ in range(9):
        outcomes.record_call("read", elapsed_ms=1)
    outcomes.record_call("bash", error=ErrorKind.EXECUTION_FAILED, elapsed_ms=1)
    fitness = outcomes.fitness()
    assert fitness["by_tool"] == {"bash": 0.0, "read": 1.0}
    assert (fitness["tools"], fitness["calls_judged"]) == (0.9, 10)


@pytest.mark.parametrize(
    ("stop", "model"),
    [
        (StopReason.COMPLETED, 1.0),
        (StopReason.ERROR, 0.5),
        (StopReason.LOOP_DETECTED, 0.5),
        (StopReason.MAX_ITERATIONS, 0.75),
        (StopReason.BUDGET_EXCEEDED, 0.75),
        (StopReason.DURATION_EXCEEDED, 0.75),
        (StopReason.CANCELLED, 1.0),
        (StopReason.WAITING, 1.0),
    ],
)
def test_a_runs_stop_reason_affects_only_model_fitness(stop: StopReason, model: float) -> None:
    outcomes = Outcomes()
    outcomes.record_run(StopReason.COMPLETED)
    outcomes.record_run(stop)
    assert outcomes.fitness()["model"] == model
    assert outcomes.fitness()["tools"] is None


def test_a_run_that_failed_because_of_tools_does_not_lower_model_fitness() -> None:
    outcomes = Outcomes()
    outcomes.record_run(StopReason.ERROR, by_tools=True)
    outcomes.record_run(StopReason.COMPLETED, by_tools=True)
    assert outcomes.fitness()["model"] == 1.0
    assert outcomes.metrics()["runs"] == {
        "completed": 1,
        "model_errors": 0,
        "limits": 0,
        "tool_errors": 1,
        "by_stop": {"completed": 1},
    }


def test_unknown_tool_names_are_bounded_and_do_not_hide_real_tools() -> None:
    outcomes = Outcomes()
    for number in range(10_000):
        outcomes.record_call(f"made-up-{number}", error=ErrorKind.NOT_FOUND)
    outcomes.record_call("bash", elapsed_ms=1)
    assert set(outcomes.metrics()["tools"]) == {OTHER_TOOLS, "bash"}
    for number in range(10_000):
        outcomes.record_call(f"real-{number}", error=ErrorKind.TIMEOUT, elapsed_ms=1)
    assert len(outcomes.metrics()["tools"]) == MAX_TOOLS
    assert outcomes.metrics()["tools"]["bash"]["total_calls"] == 1
    outcomes.record_call("bash", error=ErrorKind.TIMEOUT, message="x" * 10_000, elapsed_ms=1)
    assert len(outcomes.metrics()["tools"]["bash"]["last_error"]) == 500


CALLS = st.tuples(
    st.sampled_from(["read", "bash", "ünï"]),
    st.none() | st.sampled_from(list(ErrorKind)),
    st.none() | st.floats(0, 1e6),
)


@given(st.lists(CALLS), st.lists(st.tuples(st.sampled_from(list(StopReason)), st.booleans())))
def test_outcomes_survive_dump_and_load(
    calls: list[tuple[str, ErrorKind | None, float | None]], runs: list[tuple[StopReason, bool]]
) -> None:
    before = Outcomes()
    for tool, error, elapsed in calls:
        before.record_call(tool, error=error, elapsed_ms=elapsed)
    for stop, by_tools in runs:
        before.record_run(stop, by_tools=by_tools)
    after = Outcomes()
    after.load(before.dump())
    assert after.metrics() == before.metrics()
    assert after.fitness() == before.fitness()
    for share in (after.fitness()["tools"], after.fitness()["model"]):
        assert share is None or 0 <= share <= 1
    for outcomes in (before, after):
        outcomes.record_call("read", elapsed_ms=1)
    assert after.dump() == before.dump()


@given(st.binary() | st.integers(0, 200).map(lambda n: KEPT[:n] + b"\xff" + KEPT[n + 1 :]))
def test_fault_27_unreadable_outcomes_are_refused_and_change_nothing(data: bytes) -> None:
    outcomes = Outcomes()
    outcomes.record_call("read", elapsed_ms=1)
    before = outcomes.dump()
    with pytest.raises(RecordingError, match="cannot be read"):
        outcomes.load(data)
    assert outcomes.dump() == before


def _kept() -> bytes:
    outcomes = Outcomes(now=lambda: 1.0)
    outcomes.record_call("read", elapsed_ms=1)
    outcomes.record_call("bash", error=ErrorKind.TIMEOUT, elapsed_ms=2)
    outcomes.record_run(StopReason.COMPLETED)
    return outcomes.dump()


KEPT = _kept()


def test_negative_counts_are_rejected() -> None:
    with pytest.raises(RecordingError):
        Outcomes().load(KEPT.replace(b'"calls":1', b'"calls":-1', 1))
