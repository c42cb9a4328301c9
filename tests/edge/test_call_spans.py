"""What a device does is a span below the call that asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from evoclaw.core.deadline import Deadline
from evoclaw.core.messages import ErrorKind, TextBlock, ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import failure
from evoclaw.core.tracing import current_trace, current_traceparent, trace_id_of
from evoclaw.edge.plans import CallPlan, Work, add_spans
from evoclaw.observe.tracing.tracing import Tracing
from evoclaw.transport.wire import Command, fingerprint
from tests.observe.test_tracing import tracing_to
from tests.support.otlp_collector import SERVER, Collector, Span, collector

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ASKED = Command("tool", {}, "run.1.0.1", run_id="run", traceparent=PARENT)
SANDBOXED = {"exit_code": 3, "isolation": "native"}


def done(error: ErrorKind | None = None) -> Work:
    async def work(deadline: Deadline, progress: Progress) -> ToolResult:
        return ToolResult("run.1.0.1", "bash", (TextBlock("words"),), error, dict(SANDBOXED))

    return work


async def perform(
    tracing: Tracing, work: Work, command: Command = ASKED, name: str = "bash"
) -> None:
    async def plan(command: Command) -> CallPlan | ToolResult:
        return CallPlan(name, work)

    made = await add_spans({"tool": plan}, tracing, "pi")["tool"](command)
    assert isinstance(made, CallPlan)
    await made.work(Deadline(), lambda text: None)


async def spans_of(
    patch: pytest.MonkeyPatch, doing: Callable[[Tracing], Awaitable[None]]
) -> tuple[list[Span], Collector]:
    async with collector() as traces:
        async with tracing_to(traces, patch) as tracing:
            await doing(tracing)
        return traces.sorted, traces


async def test_each_call_is_a_server_span_with_its_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def both(tracing: Tracing) -> None:
        await perform(tracing, done())
        await perform(tracing, done(ErrorKind.TIMEOUT))

    (good, bad), traces = await spans_of(monkeypatch, both)
    for span in (good, bad):
        assert (span.name, span.kind) == ("execute_tool bash", SERVER)
        assert f"00-{span.trace_id}-{span.parent_id}-01" == PARENT
        assert span.attributes["evoclaw.agent_id"] == "pi"
        assert span.attributes["evoclaw.isolation"] == "native"
        assert span.attributes["evoclaw.exit_code"] == 3
    assert good.attributes["evoclaw.outcome"] == "success"
    assert bad.attributes["evoclaw.outcome"] == bad.attributes["error.type"] == "timeout"
    assert (good.failed, bad.failed) == (False, True)
    assert b"words" not in traces.raw


async def test_work_inside_a_call_sees_the_calls_span(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    async def work(deadline: Deadline, progress: Progress) -> ToolResult:
        seen.append(current_traceparent())
        return await done()(deadline, progress)

    (span,), _ = await spans_of(monkeypatch, lambda tracing: perform(tracing, work))
    assert seen == [f"00-{span.trace_id}-{span.span_id}-01"]
    assert current_trace() is None


@pytest.mark.parametrize("parent", ["", "rubbish", "00-0-0-0", "\x00" * 55])
async def test_a_call_without_a_valid_traceparent_joins_the_trace_of_its_run(
    monkeypatch: pytest.MonkeyPatch, parent: str
) -> None:
    asked = Command("tool", {}, "run.1.0.1", run_id="run", traceparent=parent)
    (span,), _ = await spans_of(monkeypatch, lambda tracing: perform(tracing, done(), asked))
    assert span.parent_id == ""
    assert span.trace_id == f"{trace_id_of('run'):032x}"


async def test_the_span_of_a_cancelled_call_ends_as_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def for_ever(deadline: Deadline, progress: Progress) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError

    async def cut(tracing: Tracing) -> None:
        task = asyncio.create_task(perform(tracing, for_ever))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    (span,), _ = await spans_of(monkeypatch, cut)
    assert span.attributes["error.type"] == span.attributes["evoclaw.outcome"] == "cut_off"


async def test_a_prompt_is_an_invoke_agent_span(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (span,), _ = await spans_of(monkeypatch, lambda one: perform(one, done(), name="prompt"))
    assert span.name == "invoke_agent pi"
    assert span.attributes["gen_ai.operation.name"] == "invoke_agent"


async def test_refused_commands_make_no_span_and_disabled_tracing_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(command: Command) -> CallPlan | ToolResult:
        return failure(command.request_id, "bash", ErrorKind.PERMISSION_DENIED, "no")

    async def ask(tracing: Tracing) -> None:
        assert isinstance(
            await add_spans({"tool": refuse}, tracing, "pi")["tool"](ASKED), ToolResult
        )

    assert (await spans_of(monkeypatch, ask))[0] == []
    planners = {"tool": refuse}
    assert add_spans(planners, None, "pi") is planners


def test_the_traceparent_is_not_part_of_the_command_fingerprint() -> None:
    assert fingerprint(ASKED) == fingerprint(Command("tool", {}, "run.1.0.1", run_id="run"))
