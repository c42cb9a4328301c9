from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pytest

from evoclaw.core.errors import ConfigError, DuplicateTool, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, TextBlock, ToolResult
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Executor, Progress
from evoclaw.core.tools import Call, Effect, Tool
from evoclaw.executors.call_steps import ToolTimeouts
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.permissions import PermittedTools
from evoclaw.tools.define import tool
from evoclaw.tools.fake import FakeOps
from evoclaw.tools.files import read, write
from evoclaw.tools.sets import coding
from evoclaw.tools.shell import bash

EMPTY: dict[str, JSON] = {"type": "object", "properties": {}}


class Scripted:
    """Answers each call and remembers the request ids."""

    def __init__(self, *tools: Tool) -> None:
        self.offered = tools
        self.asked: list[str] = []

    def tools(self) -> Sequence[Tool]:
        return self.offered

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        self.asked.append(f"{call.name} {call.request_id}")
        return call.ok("ran")


def simple(name: str, *permissions: str, effect: Effect = Effect.READ) -> Tool:
    return Tool(name, name, EMPTY, frozenset(permissions), effect=effect)


def asking(tool: Tool) -> Call:
    return Call("c1", tool, {}, "run.1.0.1", tool.timeout)


def silent(_: str) -> None:
    pass


async def outcome(executor: Executor, tool: Tool) -> str:
    try:
        return (await executor.execute(asking(tool), silent)).text
    except ToolFailure as failure:
        return failure.kind


def names(executor: Executor) -> list[str]:
    return [tool.name for tool in executor.tools()]


async def test_a_local_executor_runs_tools_on_the_injected_machine() -> None:
    machine = FakeOps({"a": "text"}, commands={"date": "Monday"})
    executor = LocalExecutor(coding(), files=machine, exec=machine)

    shown = await executor.execute(Call("c1", read.tool, {"path": "a"}, "r", 5), silent)

    assert shown == ToolResult(
        "c1", "read", (TextBlock("text"),), details={"path": "a", "size": 4, "lines": 1}
    )
    assert executor.tools() is executor.tools()
    assert names(executor) == [bound.name for bound in coding()]
    with pytest.raises(ToolFailure, match="not found. Available tools: read, write"):
        await executor.execute(asking(simple("dance")), silent)


def test_a_local_executor_refuses_duplicate_tools_and_missing_dependencies() -> None:
    machine = FakeOps()
    with pytest.raises(DuplicateTool):
        LocalExecutor([read, write, read], files=machine)
    with pytest.raises(ConfigError, match="needs FileOps; give `files=LocalFiles"):
        LocalExecutor([read])
    with pytest.raises(ConfigError, match="needs ExecOps; give `exec=LocalProcesses"):
        LocalExecutor([bash], files=machine)


class Bell(Protocol):
    """Something that a tool may be handed."""

    def ring(self, times: int) -> str: ...


class Doorbell:
    def ring(self, times: int) -> str:
        return "ding " * times


@tool("ui")
async def ring(bell: Bell, times: int) -> str:
    """Ring the bell."""
    return bell.ring(times).strip()


async def test_a_tool_gets_its_protocol_dependency_injected() -> None:
    assert list(ring.tool.parameters["properties"]) == ["times"]
    with pytest.raises(ConfigError, match=r"needs Bell; give `given=\{Bell: …\}`"):
        LocalExecutor([ring])
    executor = LocalExecutor([ring], given={Bell: Doorbell()})
    result = await executor.execute(Call("c", ring.tool, {"times": 2}, "r.1.0.1", 5), print)
    assert result.text == "ding ding"


async def test_wrong_arguments_fail_with_invalid_params() -> None:
    executor = LocalExecutor([read], files=FakeOps())

    for arguments in ({"path": 1}, {}, {"path": "a", "more": 1}):
        with pytest.raises(ToolFailure) as failure:
            await executor.execute(Call("c1", read.tool, arguments, "r", 5), silent)
        assert failure.value.kind is ErrorKind.INVALID_PARAMS


async def test_a_pipeline_sends_each_call_to_the_executor_that_has_the_tool() -> None:
    first, second = Scripted(simple("a")), Scripted(simple("b"), simple("c"))
    pipeline = Pipeline([first, second])

    assert names(pipeline) == ["a", "b", "c"]
    assert await outcome(pipeline, simple("c")) == "ran"
    assert (first.asked, second.asked) == ([], ["c run.1.0.1"])
    assert await outcome(pipeline, simple("d")) == ErrorKind.NOT_FOUND


async def test_a_pipeline_caches_its_tool_list_until_an_executor_changes() -> None:
    first, second = Scripted(simple("a")), Scripted(simple("b"))
    pipeline = Pipeline([first, second])

    before = pipeline.tools()
    assert pipeline.tools() is before
    second.offered = (simple("x"),)
    assert names(pipeline) == ["a", "x"]
    assert await outcome(pipeline, simple("b")) == ErrorKind.NOT_FOUND
    second.offered = (simple("a"),)
    with pytest.raises(DuplicateTool):
        pipeline.tools()


def test_a_pipeline_refuses_two_tools_with_one_name() -> None:
    with pytest.raises(DuplicateTool):
        Pipeline([Scripted(simple("a")), Scripted(simple("a"))])


@pytest.mark.parametrize(
    ("capabilities", "offered"),
    [
        ([], []),
        (["git"], ["free"]),
        (["git", "file_write"], ["commit", "free"]),
        (["shell"], ["bash", "free"]),
        (["*"], ["bash", "commit", "free"]),
    ],
)
async def test_only_permitted_tools_are_offered_and_run(
    capabilities: list[str], offered: list[str]
) -> None:
    tools = (simple("bash", "shell"), simple("commit", "git", "file_write"), simple("free"))
    filtered = Pipeline([Scripted(*tools)], [PermittedTools(frozenset(capabilities))])

    assert names(filtered) == offered
    for one in tools:
        # A forged call that claims to need nothing is judged by the real tool.
        forged = simple(one.name)
        expected = "ran" if one.name in offered else ErrorKind.NOT_FOUND
        assert await outcome(filtered, forged) == expected
    assert await outcome(filtered, simple("other")) == ErrorKind.NOT_FOUND
    assert filtered.tools() is filtered.tools()


def test_configured_timeouts_never_exceed_the_maximum() -> None:
    tool = Tool("a", "a", EMPTY, timeout=10, max_timeout=60)
    inner = Scripted(tool, simple("b"))
    changed = Pipeline([inner], [ToolTimeouts({"a": 500, "absent": 3})])

    assert [one.timeout for one in changed.tools()] == [60, 10]
    assert ToolTimeouts({"a": 2}).offer([tool])[0].timeout == 2
    with pytest.raises(ConfigError):
        ToolTimeouts({"a": 0})
