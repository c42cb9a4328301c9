"""Calls run side by side unless their resources overlap and one of them writes."""

from __future__ import annotations

import asyncio

import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.conflicts import conflict
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Effect, Tool
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.loop import Gate, Table, run, tool

READ = tool("read", effect=Effect.READ, resources=("path",))
WRITE = tool("write", effect=Effect.WRITE, resources=("path",))
BASH = tool("bash")
SEARCH = tool("search", effect=Effect.READ, resources=())


def call(of: Tool, **arguments: JSON) -> Call:
    return Call("id", of, arguments, "r", 1.0)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (call(READ, path="a"), call(READ, path="a"), False),
        (call(READ, path="a"), call(WRITE, path="a"), True),
        (call(WRITE, path="a"), call(READ, path="./a"), True),
        (call(WRITE, path="a"), call(WRITE, path="b"), False),
        (call(WRITE, path="a"), call(WRITE, path="x/../a"), True),
        (call(WRITE, path="a/b"), call(READ, path="a"), True),
        (call(WRITE, path="ab"), call(READ, path="a"), False),
        (call(WRITE, path="a"), call(READ, path="."), True),
        (call(WRITE, path="a"), call(READ), True),
        (call(WRITE, path="a"), call(READ, path=["a"]), True),
        (call(WRITE, path="/w/a"), call(READ, path="a"), True),
        (call(WRITE, path="/w/a"), call(READ, path="/w/b"), False),
        (call(WRITE, path="../a"), call(READ, path="b"), True),
        (call(BASH), call(READ, path="a"), True),
        (call(BASH), call(BASH), True),
        (call(BASH), call(SEARCH), False),
    ],
)
def test_calls_conflict_if_resources_overlap_and_one_writes(
    first: Call, second: Call, expected: bool
) -> None:
    assert conflict(first, second) is expected
    assert conflict(second, first) is expected


async def test_calls_without_conflict_run_in_parallel() -> None:
    gate = Gate(5)
    asked = [("read", {"path": str(i)}) for i in range(5)]
    ran = await run(Scripted(calls(*asked), says("ok")), Table((READ, gate)))
    assert gate.peak == 5
    assert all(result.text == "through" for result in ran.results)


async def test_at_most_max_parallel_calls_run_at_the_same_time() -> None:
    gate = Gate(2)
    asked = [("read", {"path": str(i)}) for i in range(4)]
    settings = LoopSettings(max_parallel=2)
    await run(Scripted(calls(*asked), says("ok")), Table((READ, gate)), settings=settings)
    assert gate.peak == 2


async def test_conflicting_calls_run_in_the_requested_order() -> None:
    order: list[str] = []

    async def body(call: Call, progress: Progress) -> str:
        order.append(f"+{call.name}")
        await asyncio.sleep(0)
        order.append(f"-{call.name}")
        return ""

    asked: list[tuple[str, dict[str, JSON]]] = [
        ("write", {"path": "a"}),
        ("read", {"path": "a"}),
        ("bash", {}),
    ]
    executor = Table((READ, body), (WRITE, body), (BASH, body))
    await run(Scripted(calls(*asked), says("ok")), executor)
    assert order == ["+write", "-write", "+read", "-read", "+bash", "-bash"]
