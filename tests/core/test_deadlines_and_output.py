"""Small pieces: output parsing, confirmation, deadlines, the bus, the meter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.deadline import Deadline
from evoclaw.core.events import Record, StopReason, TurnStarted
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import TextBlock, user
from evoclaw.core.output import parse_output
from evoclaw.core.ports import AllowAll, Ports
from evoclaw.core.replies import Confirmation, read_confirmation
from evoclaw.core.run import Bus, collect_result, recorded
from evoclaw.core.state import new_run
from evoclaw.core.tools import Effect
from evoclaw.core.truncate import truncate_middle
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.loop import Gate, Table, tool


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ('{"a": 1}', (), {"a": 1}),
        ('```json\n{"a": 1}\n```', (), {"a": 1}),
        ('```\n{"a": 1}```', (), {"a": 1}),
        ("hello", (), {"result": "hello"}),
        ("hello", ("summary", "score"), {"summary": "hello"}),
        ("[1, 2]", (), {"result": "[1, 2]"}),
        ("", (), {"result": ""}),
        ("```python\nprint(1)\n```", (), {"result": "```python\nprint(1)\n```"}),
        ("\ud800", (), {"result": "\ud800"}),
    ],
)
def test_parsed_output_is_always_an_object(
    text: str, fields: tuple[str, ...], expected: dict[str, object]
) -> None:
    assert parse_output(text, fields) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("COMPLETED: 42", (Confirmation.COMPLETED, "42")),
        ("**COMPLETED:** 42", (Confirmation.COMPLETED, "42")),
        ("completed:\n42", (Confirmation.COMPLETED, "42")),
        ("CONTINUE: tests", (Confirmation.CONTINUE, "tests")),
        ("I have COMPLETED: it", (Confirmation.PLAIN, "I have COMPLETED: it")),
        ("COMPLETED", (Confirmation.PLAIN, "COMPLETED")),
    ],
)
def test_confirmation_is_read_from_the_first_word(
    text: str, expected: tuple[Confirmation, str]
) -> None:
    assert read_confirmation(text) == expected


def test_a_text_within_the_limit_is_not_cut() -> None:
    assert truncate_middle("abc", 3) == "abc"
    cut = truncate_middle("a" * 50 + "b" * 50, 4)
    assert cut.replace("\n", "") == "aa[… 96 characters left out …]bb"
    barely = "x" * 30
    assert truncate_middle(barely, 20) == barely, "a cut that saves nothing is not made"


async def test_a_deadline_interrupts_with_timeout_error() -> None:
    deadline = Deadline(0.01)
    deadline.start()
    with pytest.raises(TimeoutError):
        await deadline.bound(asyncio.Event().wait())
    assert deadline.over
    assert deadline.left == 0


async def test_a_deadline_that_passed_while_released_is_expired_when_restarted() -> None:
    deadline = Deadline(0)
    deadline.start()
    assert deadline.over
    deadline.cancel()
    deadline.start()
    assert deadline.left == 0


async def test_a_deadline_interrupts_only_once() -> None:
    deadline = Deadline()

    async def stubborn() -> int:
        for _ in range(3):
            try:
                await asyncio.sleep(0)
                deadline.cancel()
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                deadline.cancel()
        return 1

    assert await deadline.bound(stubborn()) == 1


async def test_no_work_starts_under_an_expired_deadline() -> None:
    deadline = Deadline()
    deadline.cancel()
    with pytest.raises(TimeoutError):
        await deadline.bound(asyncio.Event().wait())


async def test_an_outside_cancellation_is_not_reported_as_a_timeout() -> None:
    deadline = Deadline(60)

    async def work() -> None:
        await deadline.bound(asyncio.Event().wait(), 30)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_nested_deadline_ends_only_the_inner_work() -> None:
    deadline = Deadline(60)

    async def outer() -> str:
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await deadline.bound(asyncio.Event().wait(), 0.01)
        await asyncio.sleep(0)
        return "went on"

    assert await deadline.bound(outer()) == "went on"
    assert not deadline.over


async def test_interrupted_work_can_await_during_cleanup() -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            cleaned.append("up")

    with pytest.raises(TimeoutError):
        await Deadline(60).bound(work(), 0.01)
    assert cleaned == ["up"]


async def test_work_that_ignores_the_interruption_keeps_its_result() -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "stubborn"
        return ""

    assert await Deadline(60).bound(work(), 0.01) == "stubborn"
    await asyncio.sleep(0)  # and nothing is left to hit the next await


async def test_bound_work_propagates_its_exceptions() -> None:
    async def at_once() -> None:
        raise KeyError("now")

    async def later() -> None:
        await asyncio.sleep(0)
        raise KeyError("later")

    for work in (at_once(), later()):
        with pytest.raises(KeyError):
            await Deadline(60).bound(work, 10)


async def test_a_released_deadline_can_restart_and_keeps_its_end() -> None:
    deadline = Deadline(30)
    deadline.start()
    left = deadline.left
    deadline.release()
    deadline.start()
    assert deadline.left <= left


async def test_a_failing_sink_is_recorded_and_does_not_stop_the_others() -> None:
    class Broken:
        def receive(self, record: Record) -> None:
            raise OSError("disk full")

    class Counting:
        seen = 0

        def receive(self, record: Record) -> None:
            self.seen += 1

    broken, counting = Broken(), Counting()
    bus = Bus("r", [broken, counting])
    bus.publish(TurnStarted(1))
    assert counting.seen == 1
    assert [sink for sink, _ in bus.failures] == [broken]


async def test_the_result_of_a_run_reports_its_concurrency() -> None:
    clock = iter(float(second) for second in range(100))
    executor = Table((tool("t", effect=Effect.READ, resources=()), Gate(3)))
    state = new_run([user("go")])
    ports = Ports(
        Scripted(calls(*[("t", {"n": i}) for i in range(3)]), says('{"a": 1}')),
        executor,
        AllowAll(),
    )
    bus = Bus(state.run_id, clock=lambda: next(clock))
    result = await collect_result(recorded(run_loop(state, ports, LoopSettings()), bus))
    assert (result.stop, result.output) == (StopReason.COMPLETED, {"a": 1})
    assert result.metrics.max_concurrency == 3
    assert result.metrics.parallel_batches == 1
    assert result.metrics.succeeded == 3
    assert result.metrics.wall_time_saved_ms == 4_000
    assert result.trace_id == state.run_id


def test_text_of_blocks_is_joined() -> None:
    assert user("a").text == "a"
    assert TextBlock("a").text == "a"


async def test_records_without_run_finished_have_no_answer() -> None:
    async def cut() -> AsyncGenerator[Record, None]:
        yield Record("r", 1, 0.0, TurnStarted(1))

    with pytest.raises(RuntimeError, match="ends with RunFinished"):
        await collect_result(cut())
