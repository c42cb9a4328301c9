"""The call pipeline: declared order, one concern a step, and few frames around a call."""

from __future__ import annotations

import traceback
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.errors import ConfigError, DuplicateTool, ToolFailure
from evoclaw.core.messages import ErrorKind, TextBlock, ToolResult
from evoclaw.core.pipeline import (
    AroundStep,
    Execution,
    OfferStep,
    Pipeline,
    PipelineSpec,
    ResultStep,
)
from evoclaw.core.ports import ALLOW, Allow, Deny, Policy, Verdict
from evoclaw.core.routes import Place, Route
from evoclaw.core.tools import Call, Tool
from evoclaw.executors.local import LocalExecutor
from evoclaw.tools.define import tool
from evoclaw.wiring.pipelines import edge_pipeline, local_pipeline, service_pipeline

SEEN: list[str] = []


@tool("file_read")
async def look() -> str:
    """Look."""
    SEEN.extend(frame.name for frame in traceback.extract_stack())
    return "looked"


@tool("shell")
async def fail() -> str:
    """Fail."""
    raise ToolFailure(ErrorKind.NOT_FOUND, "nothing there")


class First(ResultStep):
    """Appends `first`."""

    async def finish(self, execution: Execution, result: ToolResult) -> ToolResult:
        return call_ok(execution.call, f"{result.text} first")


class Second(ResultStep):
    """Appends `second`."""

    async def finish(self, execution: Execution, result: ToolResult) -> ToolResult:
        return call_ok(execution.call, f"{result.text} second")


@dataclass
class Only(OfferStep):
    """Offers one tool."""

    name: str

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        return [tool for tool in tools if tool.name == self.name]

    def version(self) -> object:
        return self.name


class Held(AroundStep):
    """Notes when it was entered and left."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @asynccontextmanager
    async def around(self, execution: Execution) -> AsyncGenerator[None]:
        self.notes.append("entered")
        yield
        self.notes.append("left" if execution.result is not None else "nothing")


class SaysNo(Policy):
    """Denies everything."""

    async def judge(self, call: Call) -> Verdict:
        return Deny("no", "no")


class SaysYes(Policy):
    """Allows everything."""

    async def judge(self, call: Call) -> Verdict:
        return ALLOW


SPEC = PipelineSpec("test", offer=(Only,), before=(SaysNo,), around=(Held,), after=(First, Second))


def call_ok(call: Call, text: str) -> ToolResult:
    return ToolResult(call.id, call.name, (TextBlock(text),))


def call_of(tool: Tool) -> Call:
    return Call("c1", tool, {}, "run.1.0.1", tool.timeout)


def silent(_: str) -> None:
    pass


async def test_steps_run_in_declared_order_regardless_of_argument_order() -> None:
    pipeline = SPEC.build([LocalExecutor([look])], [Second(), First()])
    result = await pipeline.execute(call_of(look.tool), silent)
    assert result.text == "looked first second"


def test_a_step_that_is_not_declared_is_refused() -> None:
    with pytest.raises(ConfigError, match="'test' does not declare the step SaysYes"):
        SPEC.build([], [SaysYes()])


def test_two_steps_of_one_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="of one kind"):
        Pipeline([], [SaysNo(), SaysNo()])


async def test_policies_added_to_a_pipeline_are_combined() -> None:
    once = Pipeline.of(LocalExecutor([look]), SaysNo())
    twice = Pipeline.of(once, SaysYes())
    assert isinstance(await twice.policy.judge(call_of(look.tool)), Deny)


async def test_with_steps_replaces_the_step_of_the_same_kind() -> None:
    pipeline = SPEC.build([LocalExecutor([look, fail])], [Only("look")])
    assert [tool.name for tool in pipeline.tools()] == ["look"]
    assert [tool.name for tool in pipeline.with_steps(Only("fail")).tools()] == ["fail"]


async def test_a_tool_failure_passes_through_the_result_steps() -> None:
    held = Held()
    pipeline = SPEC.build([LocalExecutor([fail])], [First(), held])
    assert "first" in (await pipeline.execute(call_of(fail.tool), silent)).text
    assert held.notes == ["entered", "left"]


async def test_a_tool_that_is_not_offered_is_not_run() -> None:
    pipeline = SPEC.build([LocalExecutor([look, fail])], [Only("look")])
    with pytest.raises(ToolFailure) as refused:
        await pipeline.execute(call_of(fail.tool), silent)
    assert refused.value.kind is ErrorKind.NOT_FOUND


def test_the_tool_list_is_cached_until_a_step_or_an_executor_changes() -> None:
    only = Only("look")
    pipeline = SPEC.build([LocalExecutor([look, fail])], [only])
    before = pipeline.tools()
    assert pipeline.tools() is before
    only.name = "fail"
    assert [tool.name for tool in pipeline.tools()] == ["fail"]


async def test_a_route_with_its_own_policies_bypasses_filters_and_policies() -> None:
    own = Route(LocalExecutor([look]), Place.CALLER, before=(SaysYes(),))
    pipeline = SPEC.build([LocalExecutor([fail]), own], [Only("nothing"), SaysNo()])
    assert [tool.name for tool in pipeline.tools()] == ["look"]
    assert isinstance(await pipeline.policy.judge(call_of(look.tool)), Allow)
    assert isinstance(await pipeline.policy.judge(call_of(fail.tool)), Deny)


async def test_a_call_waits_until_its_route_is_ready() -> None:
    ready: list[str] = []

    async def settle() -> None:
        ready.append("on the disk")

    pipeline = Pipeline([Route(LocalExecutor([look]), ready=settle)])
    await pipeline.execute(call_of(look.tool), silent)
    assert ready == ["on the disk"]


@pytest.mark.parametrize(
    ("flags", "waits"),
    [
        ({"effect": "read"}, False),
        ({"effect": "read", "outside": True}, True),
        ({"effect": "read", "sends": True}, True),
        ({"effect": "read", "acts": True}, True),
        ({"effect": "write", "idempotent": True}, True),
    ],
)
async def test_a_call_that_only_reads_here_runs_before_its_start_is_stored(
    flags: dict[str, Any], waits: bool
) -> None:
    ready: list[str] = []

    async def settle() -> None:
        ready.append("on the disk")

    @tool("file_read", **flags)
    async def peek() -> str:
        """Peek."""
        return "seen"

    pipeline = Pipeline([Route(LocalExecutor([peek]), ready=settle)])
    await pipeline.execute(call_of(peek.tool), silent)
    assert bool(ready) == waits


async def test_executors_nest_at_most_three_deep() -> None:
    SEEN.clear()
    pipeline = SPEC.build([LocalExecutor([look])], [Only("look"), First(), Second()])
    await pipeline.execute(call_of(look.tool), silent)
    assert 1 <= SEEN.count("execute") <= 3


@pytest.mark.parametrize("spec", [local_pipeline(), service_pipeline(), edge_pipeline()])
def test_every_declared_step_is_documented_and_belongs_to_its_stage(
    spec: PipelineSpec,
) -> None:
    method = {"offer": "offer", "before": "judge", "around": "around", "after": "finish"}
    kinds = {kind.__name__: kind for kind in (*spec.offer, *spec.before, *spec.around, *spec.after)}
    for step in spec.describe():
        assert step.does.endswith("."), step
        assert hasattr(kinds[step.name], method[step.stage]), step
    assert len(set(spec.before)) == len(spec.before), "permission is judged once"


async def test_a_route_that_yields_leaves_a_taken_name_to_the_other_route() -> None:
    first, second = LocalExecutor([look]), LocalExecutor([named("look"), named("more")])
    late = LocalExecutor([named("more"), named("last")])
    pipeline = Pipeline([Route(second, yields=True), Route(late, yields=True), Route(first)])
    assert [tool.name for tool in pipeline.tools()] == ["more", "last", "look"]
    found = [pipeline.routes.find(name) for name in ("look", "more", "last")]
    assert [route and route.executor for route in found] == [first, second, late]
    with pytest.raises(DuplicateTool):
        Pipeline([Route(first), Route(second)]).tools()


def named(name: str) -> BoundTool:
    """A tool of this name."""
    return BoundTool(replace(look.tool, name=name), look.run)
