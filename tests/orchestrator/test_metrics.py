"""Metrics of stored records: rates, percentiles, requests and intervals."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.core.events import (
    CallFinished,
    CallStarted,
    Event,
    Record,
    Replied,
    RunFinished,
    StopReason,
    TurnStarted,
)
from evoclaw.core.messages import ErrorBlock, ErrorKind, Reply, TextBlock, ToolResult, Usage
from evoclaw.orchestrator.overview.aggregation import Intervals
from evoclaw.orchestrator.overview.metrics import (
    Delegation,
    InvalidWindow,
    MetricsReader,
    default_step,
)
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.metrics import tables as metrics_tables
from evoclaw.store.metrics.store import MetricsStore
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore

NOW = 1_000_000.0


class Past:
    """Runs that were."""

    def __init__(self, store: SessionStore, clock: list[float]) -> None:
        self._store, self._clock = store, clock

    async def run(
        self, run_id: str, *events: tuple[float, Event], turns: int = 1, agent: str = "helper",
        owner: str = "ann", parent: str = "",
    ) -> None:  # fmt: skip
        """Have one, asked for when its first event happened."""
        self._clock[0] = events[0][0]
        await self._store.create(Session(f"s-{run_id}", agent, owner))
        run = await self._store.create_run(run_id, f"s-{run_id}", "hi", parent_run=parent)
        records = [Record(run_id, seq, at, event) for seq, (at, event) in enumerate(events, 1)]
        self._clock[0], last = events[-1]
        stop = last.stop if isinstance(last, RunFinished) else None
        await self._store.append(run, records, [], RunUsage(turns=turns), stop)


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[tuple[MetricsReader, Past]]:
    schemas = (session_tables.SCHEMA, metrics_tables.SCHEMA)
    database = await open_database(folder / "evoclaw.db", schemas, durable=False)
    clock = [0.0]
    try:
        yield (
            MetricsReader(MetricsStore(database), lambda: NOW),
            Past(SessionStore(database, lambda: clock[0]), clock),
        )
    finally:
        await database.close()


def call(
    at: float, seconds: float, tool: str = "read", error: ErrorKind | None = None
) -> tuple[tuple[float, Event], tuple[float, Event]]:
    """A call that had its answer at a time, after so many seconds."""
    block = TextBlock("ok") if error is None else ErrorBlock(error, f"Error: {error}.")
    id_ = f"{tool}@{at}"
    result = ToolResult(id_, tool, (block,), error)
    return (at - seconds, CallStarted(id_, tool, {}, "x")), (at, CallFinished(result))


def done(stop: StopReason = StopReason.COMPLETED) -> RunFinished:
    return RunFinished(stop, "done")


async def test_a_tool_has_success_rate_latencies_and_last_error(tmp_path: Path) -> None:
    async with opened(tmp_path) as (metrics, past):
        events: list[tuple[float, Event]] = []
        for number in range(1, 21):
            error = ErrorKind.TIMEOUT if number in (3, 20) else None
            events += call(NOW - 100 + number, number / 1000, error=error)
        denied = ToolResult("d", "read", (), ErrorKind.PERMISSION_DENIED)
        events.append((NOW - 70, CallFinished(denied)))
        events += call(NOW - 60, 0.5, "bash")
        await past.run("r1", *events, (NOW - 50, done()))
        found = await metrics.read("local")
    read, bash = found.tools
    assert (read.tool, read.calls, read.succeeded, read.failed) == ("read", 21, 18, 3)
    assert (read.denied, read.timeouts, read.success_rate) == (1, 2, 18 / 21)
    assert read.errors == {"timeout": 2, "permission_denied": 1}
    times = (read.avg_ms, read.p50_ms, read.p95_ms, read.max_ms)
    assert times == pytest.approx((10.5, 10, 19, 20)), "of the twenty that ran"
    assert (read.result_bytes, read.last_error_at) == (18 * 2 + 2 * 15, NOW - 70)
    assert read.last_error == "permission_denied", "its kind, where nothing was said"
    assert (bash.calls, bash.last_error, bash.last_error_at) == (1, "", None)
    assert (found.since, found.until, found.requests.error_types) == (
        NOW - 86_400,
        NOW,
        {"timeout": 2, "permission_denied": 1},
    )


async def test_requests_include_the_cost_of_the_runs_started_for_them(tmp_path: Path) -> None:
    def paid(tokens: int, cost: float | None) -> Replied:
        return Replied(Reply("", usage=Usage(tokens, 1), cost=cost))

    async with opened(tmp_path) as (metrics, past):
        await past.run(
            "r1",
            (NOW - 100, TurnStarted(1)),
            (NOW - 99, paid(10, 0.25)),
            *call(NOW - 98, 1, error=ErrorKind.NOT_FOUND),
            (NOW - 97, TurnStarted(2)),
            *call(NOW - 96, 1),
            (NOW - 90, done()),
            turns=3,
        )
        await past.run(
            "sub", (NOW - 95, paid(5, None)), (NOW - 91, done()), turns=9, agent="coder",
            parent="r1",
        )  # fmt: skip
        lost = call(NOW - 75, 1, error=ErrorKind.INTERNAL)
        await past.run("r2", (NOW - 80, TurnStarted(1)), *lost, (NOW - 60, done(StopReason.ERROR)))
        await past.run("r3", (NOW - 10, TurnStarted(1)), (NOW - 5, paid(1, 0.5)), turns=7)
        await past.run("old", (NOW - 90_000, TurnStarted(1)), (NOW - 89_000, done()))
        all_ = (await metrics.read("local")).requests
        coder = (await metrics.read("local", agent="coder")).requests
        nobody = (await metrics.read("local", owner="bob")).requests
        other = (await metrics.read("acme")).requests
    assert (all_.count, all_.stops) == (3, {"completed": 1, "error": 1, "running": 1})
    assert (all_.iterations.avg, all_.iterations.max) == (2, 3), "of the two that ended"
    assert (all_.seconds.p50, all_.seconds.p95) == (10, 20)
    assert (all_.tokens_in, all_.tokens_out, all_.cost, all_.unpriced) == (16, 3, 0.75, 1)
    assert (all_.failed_calls, all_.recovered_calls, all_.recovery_rate) == (2, 1, 0.5)
    assert (coder.count, coder.iterations.avg, coder.tokens_in) == (1, 9, 5)
    for nothing in (nobody, other):
        assert (nothing.count, nothing.recovery_rate, nothing.seconds.avg) == (0, None, None)


async def test_a_metric_series_includes_empty_intervals(tmp_path: Path) -> None:
    async with opened(tmp_path) as (metrics, past):
        side = [*call(NOW - 3_590, 10), *call(NOW - 3_590, 10, "bash")]
        await past.run("r1", *sorted(side, key=lambda one: one[0]), (NOW - 3_580, done()), turns=4)
        await past.run("r2", *call(NOW - 10, 2, error=ErrorKind.TIMEOUT), (NOW - 5, done()))
        found = await metrics.read("local", since=NOW - 3_600, until=NOW, step=600)
    starts = [point.at for point in found.series]
    assert starts == [NOW - 4_000 + 600 * n for n in range(7)], "whole multiples of the step"
    first, last = found.series[0], found.series[-1]
    assert (first.runs, first.calls, first.iterations, first.p50_ms) == (1, 2, 4, 10_000)
    assert first.saved_seconds == pytest.approx(10)
    assert (last.runs, last.calls, last.errors, last.p95_ms) == (1, 1, 1, 2_000)
    quiet = found.series[2]
    assert (quiet.runs, quiet.calls, quiet.iterations, quiet.p50_ms) == (0, 0, None, None)
    assert list(found.tool_series) == ["read", "bash"]
    assert [point.calls for point in found.tool_series["read"]] == [1, 0, 0, 0, 0, 0, 1]
    assert [point.errors for point in found.tool_series["bash"]] == [0] * 7


async def test_only_the_twelve_most_used_tools_have_a_series(tmp_path: Path) -> None:
    async with opened(tmp_path) as (metrics, past):
        events: list[tuple[float, Event]] = []
        for number in range(15):
            for again in range(number + 1):
                events += call(NOW - 50 + again, 0.1, f"tool{number:02}")
        await past.run("r1", *sorted(events, key=lambda one: one[0]), (NOW - 5, done()))
        found = await metrics.read("local")
    assert list(found.tool_series) == [f"tool{number:02}" for number in range(14, 2, -1)]
    assert len(found.tools) == 15


async def test_delegations_are_counted_by_source_and_target(tmp_path: Path) -> None:
    async with opened(tmp_path) as (metrics, past):
        for number, error in enumerate((None, ErrorKind.TIMEOUT)):
            result = ToolResult("c", "temperature", (), error, {"agent": "pi"})
            await past.run(
                f"r{number}",
                (NOW - 30, CallStarted("c", "temperature", {}, "x")),
                (NOW - 20 + number, CallFinished(result)),
                (NOW - 10, done()),
            )
        await past.run("sub", (NOW - 9, done()), agent="coder", parent="r0")
        await past.run("mine", (NOW - 9, done()), agent="coder", parent="r0", owner="bob")
        found = await metrics.delegations("local", owner="ann")
        assert await metrics.delegations("acme") == ()
    assert found == (
        Delegation("helper", "coder", "agent", 1, 0, NOW - 9),
        Delegation("helper", "pi", "edge", 2, 1, NOW - 19),
    )


async def test_an_invalid_time_window_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with opened(tmp_path) as (metrics, _):
        with pytest.raises(InvalidWindow, match="`since` must be before"):
            await metrics.read("local", since=50, until=20)
        with pytest.raises(InvalidWindow, match="longer step"):
            await metrics.read("local", step=0.01)
        assert (await metrics.read("local", until=20)).since == 0, "not before all time"


@pytest.mark.parametrize(
    ("seconds", "step"), [(10, 1), (3_600, 300), (86_400, 1_800), (7 * 86_400, 21_600)]
)
def test_the_default_step_is_a_round_number(seconds: float, step: float) -> None:
    assert default_step(seconds) == step
    assert len(Intervals(NOW - seconds, NOW, default_step(seconds)).numbers) <= 60


def test_any_time_window_has_at_most_sixty_points() -> None:
    for seconds in (0.5, 59, 61, 4e4, 1e6, 3e7, 1e9, 1e11):
        intervals = Intervals(12_345.6, 12_345.6 + seconds, default_step(seconds))
        assert 1 <= len(intervals.numbers) <= 60
        assert intervals.number_of(intervals.since) in intervals.numbers
        assert intervals.number_of(intervals.since + seconds * 0.999) in intervals.numbers
