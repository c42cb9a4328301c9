from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

import pytest
from msgspec import Meta, Struct

from evoclaw.core.bound_tools import BoundTool, ToolOutput
from evoclaw.core.errors import SchemaError, ToolFailure
from evoclaw.core.messages import ErrorKind, ImageBlock, TextBlock, ToolResult
from evoclaw.core.ops import ExecOps, FileOps
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Effect
from evoclaw.tools.define import tool
from evoclaw.tools.fake import FakeOps
from tests.support.tool_calls import use


class Point(Struct):
    """A place."""

    x: int
    y: int = 0


@dataclass
class Trip:
    name: str
    stops: list[Point] = field(default_factory=list[Point])


class Knot(Struct):
    inner: Knot | None = None


NOWHERE = FakeOps()


async def answer(bound: BoundTool, **arguments: Any) -> ToolResult:
    return await use(bound, NOWHERE, exec=NOWHERE, **arguments)


POINT = {
    "type": "object",
    "description": "A place.",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
    "required": ["x"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"description": "Where it is, as you would write it.", "type": "string"},
        "count": {"description": "How often.", "type": "integer", "minimum": 1, "default": 3},
        "ratio": {"type": "number", "default": 0.5},
        "deep": {"type": "boolean", "default": False},
        "kind": {"type": "string", "enum": ["a", "b"], "default": "a"},
        "tags": {
            "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
            "default": None,
        },
        "weights": {
            "anyOf": [
                {"type": "object", "additionalProperties": {"type": "number"}},
                {"type": "null"},
            ],
            "default": None,
        },
        "trip": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "stops": {"type": "array", "items": POINT},
                    },
                    "required": ["name"],
                    "additionalProperties": False,
                },
                {"type": "null"},
            ],
            "default": None,
        },
    },
    "required": ["path"],
    "additionalProperties": False,
}


def test_a_signature_and_its_docstring_become_a_json_schema() -> None:
    @tool("file_read", timeout=5, max_timeout=30, effect="read", resources=("path",))
    def look(
        ops: FileOps,
        run: ExecOps,
        progress: Progress,
        path: str,
        count: Annotated[int, Meta(ge=1)] = 3,
        ratio: float = 0.5,
        deep: bool = False,
        kind: Literal["a", "b"] = "a",
        tags: list[str] | None = None,
        weights: dict[str, float] | None = None,
        trip: Trip | None = None,
    ) -> str:
        """Look at something.

        And say what it is.

        Args:
            path: Where it is,
                as you would write it.
            count: How often.

        Returns:
            What it saw.
        """
        return path

    made = look.tool
    assert made.name == "look"
    assert made.description == "Look at something.\n\nAnd say what it is."
    assert (made.timeout, made.max_timeout, made.effect) == (5, 30, Effect.READ)
    assert (made.permissions, made.resources) == (frozenset({"file_read"}), ("path",))
    assert look.dependencies == {FileOps, ExecOps}
    assert made.parameters == SCHEMA


def test_a_tool_without_parameters_has_an_empty_object_schema() -> None:
    @tool()
    def now() -> str:
        """Say what time it is."""
        return "now"

    assert now.tool.parameters == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


async def test_a_plain_function_runs_in_a_thread_and_gets_typed_arguments() -> None:
    @tool()
    def travel(trip: Trip, by: Literal["foot", "boat"] = "foot") -> dict[str, object]:
        """Travel."""
        return {
            "to": [point.x for point in trip.stops],
            "by": by,
            "main": threading.current_thread() is threading.main_thread(),
        }

    result = await answer(travel, trip={"name": "n", "stops": [{"x": 1}, {"x": 2.0}]})

    assert result.text == '{"to":[1,2],"by":"foot","main":false}'


async def test_return_values_become_content_blocks() -> None:
    picture = ImageBlock("image/png", "AA==")
    for returned, blocks in (
        ("text", (TextBlock("text"),)),
        (None, (TextBlock("done"),)),
        (0, (TextBlock("0"),)),
        ([1, "é"], (TextBlock('[1,"é"]'),)),
        (Point(1), (TextBlock('{"x":1,"y":0}'),)),
        (picture, (picture,)),
        ([TextBlock("a"), picture], (TextBlock("a"), picture)),
        (ToolOutput((TextBlock("a"),)), (TextBlock("a"),)),
        (ToolResult("other", "name", (TextBlock("a"),)), (TextBlock("a"),)),
        ("odd \udcff name", (TextBlock("odd \ufffd name"),)),
    ):

        @tool()
        async def give() -> object:
            """Give."""
            return returned  # noqa: B023

        result = await answer(give)
        assert (result.blocks, result.call_id, result.name) == (blocks, "c1", "give")


async def test_an_unserializable_return_value_is_a_tool_failure() -> None:
    @tool()
    def give() -> object:
        """Give."""
        return object()

    with pytest.raises(ToolFailure) as failure:
        await answer(give)
    assert failure.value.kind is ErrorKind.INTERNAL


async def test_file_and_exec_ops_and_progress_are_injected() -> None:
    @tool("shell")
    async def both(files: FileOps, progress: Progress, run: ExecOps) -> str:
        """Use everything."""
        progress("working")
        await files.write("out", (await run.run(["date"])).stdout)
        return "ok"

    machine, heard = FakeOps(commands={"date": "Monday"}), list[str]()
    await use(both, machine, exec=machine, progress=heard.append)

    assert (machine.files, heard) == ({"out": b"Monday"}, ["working"])


async def test_a_call_parameter_is_injected_and_hidden_from_the_model() -> None:
    @tool()
    async def whoami(call: Call, loud: bool = False) -> str:
        """Say which call this is."""
        return f"{call.request_id} {call.arguments}"

    assert whoami.dependencies == frozenset()
    assert list(whoami.tool.parameters["properties"]) == ["loud"]
    assert (await answer(whoami, loud=True)).text == "r.1.0.1 {'loud': True}"


def undocumented(x: int) -> int:
    return x


def unannotated(x: int) -> int:
    """Do."""
    return 1


unannotated.__annotations__.clear()


def starred(*x: int) -> int:
    """Do."""
    return 1


def unsupported(x: complex) -> int:
    """Do."""
    return 1


def endless(x: Knot) -> int:
    """Do."""
    return 1


def unresolved(x: int) -> int:
    """Do."""
    return 1


unresolved.__annotations__["x"] = "Nowhere"


def strange_default(x: Any = object()) -> int:  # noqa: B008
    """Do."""
    return 1


def misdescribed(x: int) -> int:
    """Do.

    Args:
        x: Good.
        y: There is none.
    """
    return 1


def sound(x: int) -> int:
    """Do."""
    return 1


@pytest.mark.parametrize(
    ("function", "settings", "problem"),
    [
        (undocumented, {}, "docstring"),
        (unannotated, {}, "'x' has no annotation"),
        (starred, {}, "'x' must be a keyword parameter"),
        (unsupported, {}, "complex"),
        (endless, {}, "contains itself"),
        (unresolved, {}, "Nowhere"),
        (strange_default, {}, "default of 'x'"),
        (misdescribed, {}, "'y'"),
        (sound, {"name": "two words"}, "invalid name"),
        (sound, {"effect": "maybe"}, "'maybe'"),
        (sound, {"timeout": 90}, "max_timeout"),
        (sound, {"timeout": 0}, "greater than 0"),
        (sound, {"resources": ("path",)}, "path"),
    ],
)
def test_an_invalid_tool_definition_is_refused_with_the_reason(
    function: Any, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SchemaError, match=problem):
        tool(**settings)(function)


def test_a_tool_decorator_without_parentheses_is_refused() -> None:
    with pytest.raises(SchemaError, match="brackets"):
        tool(cast("str", sound))
