"""The service's metrics, parsed with Prometheus' own parser."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from evoclaw.core.agent import LoopSettings
from evoclaw.core.events import (
    CallFinished,
    CallStarted,
    Event,
    Record,
    Replied,
    ReplyFailed,
    RunFinished,
    RunStarted,
    StopReason,
    TextDelta,
    TurnStarted,
)
from evoclaw.core.messages import ErrorKind, Reply, TextBlock, ToolResult, Usage
from evoclaw.core.metrics import CallCounters
from evoclaw.core.profile import Profile
from evoclaw.observe.counters import Gauges
from evoclaw.observe.metrics import Metrics

STARTED = RunStarted("scripted/model", (), LoopSettings(), Profile())


def receive(metrics: Metrics, *events: tuple[float, Event], agent: str = "cook") -> None:
    sink = metrics.sink(agent)
    for seq, (at, event) in enumerate(events, 1):
        sink.receive(Record("run", seq, at, event))


def call(
    name: str,
    seconds: float,
    error: ErrorKind | None = None,
    *,
    text: str = "",
    at: float = 100.0,
    id_: str = "c1",
) -> Sequence[tuple[float, Event]]:
    result = ToolResult(id_, name, (TextBlock(text),), error)
    return (at, CallStarted(id_, name, {}, "r.1")), (at + seconds, CallFinished(result))


def samples(metrics: Metrics) -> dict[str, float]:
    """Everything that Prometheus reads, by its name and labels."""
    text = metrics.render().decode()
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def only(found: dict[str, CallCounters]) -> CallCounters:
    (counters,) = found.values()
    return counters


def test_calls_are_counted_by_tool_agent_and_outcome() -> None:
    metrics = Metrics()
    receive(metrics, *call("bash", 0.2), *call("bash", 0.3, ErrorKind.TIMEOUT))
    receive(metrics, *call("bash", 0.1), *call("read", 0.1), agent="baker")

    found = samples(metrics)
    assert found["evoclaw_tool_calls_total agent=cook outcome=success tool=bash"] == 1
    assert found["evoclaw_tool_calls_total agent=cook outcome=timeout tool=bash"] == 1
    assert found["evoclaw_tool_calls_total agent=baker outcome=success tool=bash"] == 1
    assert found["evoclaw_tool_call_seconds_count agent=cook tool=bash"] == 2
    assert found["evoclaw_tool_call_seconds_sum agent=cook tool=bash"] == pytest.approx(0.5)
    assert found["evoclaw_tool_call_seconds_bucket agent=cook le=0.25 tool=bash"] == 1
    assert found["evoclaw_tool_call_seconds_bucket agent=cook le=+Inf tool=bash"] == 2


def test_the_metrics_of_a_tool_are_of_one_agent_or_of_all() -> None:
    metrics = Metrics()
    for seconds in (0.1, 0.2, 0.3, 0.4):
        receive(metrics, *call("bash", seconds, text="é12"))
    receive(metrics, *call("bash", 10.0, ErrorKind.TIMEOUT, at=500.0), agent="baker")

    bash = only(metrics.tools())
    assert (bash.calls, bash.succeeded) == (5, 4)
    assert (bash.failed, bash.timeouts) == (1, 1)
    assert bash.latencies.mean_ms == pytest.approx(2200)
    assert bash.latencies.percentile_ms(0.5) == pytest.approx(300, rel=0.05)
    assert bash.latencies.percentile_ms(0.95) == pytest.approx(10_000)
    assert bash.latencies.high_ms == pytest.approx(10_000)
    assert (bash.last_error, bash.last_error_time) == ("timeout", 510.0)
    assert only(metrics.tools("cook")).calls == 4
    assert samples(metrics)["evoclaw_tool_result_bytes_total agent=cook tool=bash"] == 16


def test_a_call_that_never_ran_has_no_duration() -> None:
    metrics = Metrics()
    denied = ToolResult("c1", "bash", (), ErrorKind.PERMISSION_DENIED)
    receive(metrics, *call("bash", 0.2), (200.0, CallFinished(denied)))

    bash = only(metrics.tools())
    assert (bash.succeeded, bash.errors) == (1, {"permission_denied": 1})
    assert bash.latencies.count == 1
    assert bash.latencies.high_ms == pytest.approx(200)


def test_invented_tool_names_are_counted_as_other() -> None:
    metrics = Metrics()
    for number in range(50):
        unknown = ToolResult("c1", f"made-up-{number}", (), ErrorKind.NOT_FOUND)
        receive(metrics, (1.0, CallFinished(unknown)))

    assert {tool: counters.calls for tool, counters in metrics.tools().items()} == {"other": 50}


def test_names_beyond_the_limit_are_counted_as_other() -> None:
    metrics = Metrics(max_names=3)
    for number in range(10):
        receive(metrics, *call(f"tool-{number}", 0.1), agent=f"agent-{number}")

    found = {tool: counters.calls for tool, counters in metrics.tools().items()}
    assert found == {"tool-0": 1, "tool-1": 1, "tool-2": 1, "other": 7}
    assert "agent-9" not in metrics.render().decode()
    for number in range(10):
        metrics.http("GET", f"/v1/{number}", 200, 0.1)
    assert samples(metrics)["evoclaw_http_requests_total method=GET route=other status=200"] == 7


def test_a_run_that_waited_spends_its_tokens_once() -> None:
    metrics = Metrics()
    reply = Reply("hi", usage=Usage(10, 5), cost=0.25)
    receive(
        metrics,
        (0.0, STARTED),
        (0.0, TurnStarted(1)),
        (1.0, Replied(reply)),
        (2.0, RunFinished(StopReason.WAITING, "", usage=Usage(10, 5), cost=0.25)),
        (60.0, TurnStarted(2)),
        (61.0, Replied(reply)),
        (62.0, RunFinished(StopReason.COMPLETED, "hi", usage=Usage(20, 10), cost=0.5)),
    )

    found = samples(metrics)
    assert found["evoclaw_runs_total agent=cook stop=waiting"] == 1
    assert found["evoclaw_runs_total agent=cook stop=completed"] == 1
    assert found["evoclaw_turns_total agent=cook"] == 2
    assert found["evoclaw_tokens_total agent=cook way=in"] == 20
    assert found["evoclaw_tokens_total agent=cook way=out"] == 10
    assert found["evoclaw_cost_dollars_total agent=cook"] == 0.5
    assert found["evoclaw_run_seconds_sum agent=cook"] == 62
    assert found["evoclaw_run_seconds_count agent=cook"] == 1


def test_unpriced_and_failed_replies_are_counted() -> None:
    metrics = Metrics()
    receive(
        metrics,
        (0.0, Replied(Reply("hi", usage=Usage(10, 5)))),
        (1.0, ReplyFailed("timeout", "", Usage(3, 0))),
    )

    found = samples(metrics)
    assert found["evoclaw_unpriced_replies_total agent=cook"] == 2
    assert found["evoclaw_failed_replies_total agent=cook"] == 1
    assert found["evoclaw_tokens_total agent=cook way=in"] == 13


def test_gauges_are_read_when_the_metrics_are_rendered() -> None:
    live = [3]
    gauges = Gauges(
        live_runs=lambda: live[0],
        link_reconnects=lambda: 7,
        store_busy=lambda: 2.5,
        counts={"channels": lambda: {"refused: unknown_sender": 2}},
    )
    metrics = Metrics(gauges)

    assert samples(metrics)["evoclaw_runs_live"] == 3
    live[0] = 4
    found = samples(metrics)
    assert found["evoclaw_runs_live"] == 4
    assert found["evoclaw_link_reconnects_total"] == 7
    assert found["evoclaw_store_busy_seconds_total"] == 2.5
    assert "evoclaw_store_commits_total" not in found
    assert found["evoclaw_counted_total part=channels what=refused: unknown_sender"] == 2
    assert "evoclaw_runs_queued" not in found


def test_metrics_touch_no_global_registry_and_contain_no_text() -> None:
    before = {family.name for family in REGISTRY.collect()}
    metrics = Metrics()
    receive(
        metrics,
        (0.0, TextDelta("my password is hunter2")),
        *call("bash", 0.1, ErrorKind.EXECUTION_FAILED, text="hunter2"),
        (1.0, RunFinished(StopReason.ERROR, "hunter2", reason="hunter2")),
    )

    assert b"hunter2" not in metrics.render()
    assert "hunter2" not in str(metrics.tools())
    assert {family.name for family in REGISTRY.collect()} == before


def test_hostile_names_cannot_break_the_format() -> None:
    metrics = Metrics()
    receive(metrics, *call('a"} 1\nevil 2', 0.1), agent="x\\")
    assert samples(metrics)['evoclaw_tool_calls_total agent=x\\ outcome=success tool=a"} 1\nevil 2']


def test_a_clock_that_was_set_back_gives_no_negative_duration() -> None:
    metrics = Metrics()
    receive(metrics, *call("bash", -5.0))
    latencies = only(metrics.tools()).latencies
    assert (latencies.count, latencies.total_ms, latencies.low_ms) == (1, 0, 0)
    assert samples(metrics)["evoclaw_tool_call_seconds_sum agent=cook tool=bash"] == 0
