"""Schemas from strangers are bounded and local before a validator sees them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from evoclaw.core.errors import DuplicateTool, SchemaError
from evoclaw.core.schema import (
    MAX_RECURSION_DEPTH,
    MAX_SCHEMA_BYTES,
    RecursiveValidator,
    compile_schema,
    describe_problems,
)
from evoclaw.core.tools import Tool
from evoclaw.core.toolset import Toolset
from tests.support.loop import tool


def with_schema(**parts: Any) -> Tool:
    return Tool("t", "", {"type": "object", **parts})


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def doubled(times: int) -> dict[str, Any]:
    defs = {"d0": {"type": "string"}}
    for i in range(1, times + 1):
        defs[f"d{i}"] = {"allOf": [{"$ref": f"#/$defs/d{i - 1}"}] * 2}  # type: ignore[dict-item]
    return {"$defs": defs, "properties": {"x": {"$ref": f"#/$defs/d{times}"}}}


BOMBS = {
    "too deep": with_schema(properties={"x": nested(40)}),
    "far too deep": with_schema(properties={"x": nested(300)}),
    "too many parts": with_schema(properties={f"p{i}": {} for i in range(3_000)}),
    "too many bytes": with_schema(description="x" * MAX_SCHEMA_BYTES),
    "remote reference": with_schema(properties={"x": {"$ref": "https://example.com/s.json"}}),
    "file reference": with_schema(properties={"x": {"$ref": "file:///etc/passwd"}}),
    "relative reference": with_schema(properties={"x": {"$ref": "other.json"}}),
    "itself": with_schema(allOf=[{"$ref": "#"}]),
    "itself in disguise": with_schema(anyOf=[{"$dynamicRef": "#"}]),
    "itself too often": with_schema(allOf=[{"properties": {"x": {"$ref": "#"}}}] * 300),
    "cycle": with_schema(
        **{"$defs": {"a": {"$ref": "#/$defs/a"}}}, properties={"x": {"$ref": "#/$defs/a"}}
    ),
    "nowhere": with_schema(properties={"x": {"$ref": "#/$defs/missing"}}),
    "exponential": with_schema(**doubled(18)),
    "outside id": with_schema(**{"$id": "https://example.com/x"}),
    "not an object": Tool("t", "", {"type": "string"}),
    "bad type": with_schema(properties={"x": {"type": "strin"}}),
    "backtracking pattern": with_schema(properties={"x": {"pattern": r"(a)\1"}}),
    "not JSON": with_schema(default=object()),
}


@pytest.mark.parametrize("name", BOMBS)
def test_fault_60_a_schema_bomb_is_refused_at_registration(name: str) -> None:
    with pytest.raises(SchemaError, match="tool 't'"):
        Toolset([BOMBS[name]])


def test_a_backtracking_pattern_is_matched_in_linear_time() -> None:
    validator = compile_schema(with_schema(properties={"x": {"pattern": "^(a+)+$"}}))
    assert not validator.is_valid({"x": "a" * 5_000 + "!"})


def test_valid_schemas_with_local_references_are_accepted() -> None:
    schema = with_schema(
        **{"$defs": {"p": {"type": "integer"}}},
        properties={"x": {"$ref": "#/$defs/p"}, "y": {"$ref": "#/$defs/p"}},
    )
    assert compile_schema(schema).is_valid({"x": 1, "y": 2})


TREE = with_schema(
    properties={"name": {"type": "string"}, "left": {"$ref": "#"}, "right": {"$ref": "#"}},
    required=["name"],
)
TWICE = with_schema(allOf=[{"properties": {"a": {"$ref": "#"}}}] * 2)


def nested_value(key: str, depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"name": "x"}
    for _ in range(depth):
        value = {"name": "x", key: value}
    return value


def test_a_schema_that_refers_to_itself_is_accepted_up_to_a_depth() -> None:
    validator = compile_schema(TREE)
    assert validator.is_valid(nested_value("left", MAX_RECURSION_DEPTH - 1))
    assert not validator.is_valid({"name": "x", "left": {"right": {}}})
    deep = nested_value("left", MAX_RECURSION_DEPTH)
    assert not validator.is_valid(deep)
    assert describe_problems(validator, deep) == f"nested more than {MAX_RECURSION_DEPTH} deep"


def test_the_depth_is_smaller_where_each_level_doubles_the_work() -> None:
    validator = compile_schema(TWICE)
    assert isinstance(validator, RecursiveValidator)
    assert 8 <= validator.max_depth < 20
    assert not validator.is_valid(nested_value("a", 60))


def test_a_schema_may_only_refer_to_its_definition() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    validator = compile_schema(Tool("t", "", {"$ref": "#/$defs/node", "$defs": {"node": node}}))
    assert validator.is_valid({"next": {"next": {}}})
    assert not validator.is_valid({"next": 1})


def test_validation_problems_are_described_in_plain_words() -> None:
    validator = compile_schema(
        with_schema(
            properties={"path": {"type": "string"}, "limit": {"type": "integer"}},
            required=["path"],
            additionalProperties=False,
        )
    )
    assert describe_problems(validator, {}) == "missing 'path'"
    assert describe_problems(validator, {"path": 1}).startswith("'path': 1 is not of type")
    assert "'colour' was unexpected" in describe_problems(validator, {"path": "", "colour": 1})
    assert describe_problems(validator, {"path": ""}) == ""
    many = describe_problems(validator, {"path": 1, "limit": "x", "a": 1})
    assert many.count(";") == 2, "three things at most are told"


def test_two_tools_with_the_same_name_are_refused() -> None:
    with pytest.raises(DuplicateTool, match="'echo'"):
        Toolset([tool("echo"), tool("echo")])


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65, "é", "a\n"])
def test_tool_names_that_providers_reject_are_refused(name: str) -> None:
    with pytest.raises(SchemaError):
        Toolset([tool(name)])


def test_schemas_are_compiled_once_and_errors_name_the_tool() -> None:
    same = compile_schema(Tool("a", "", {"type": "object", "title": "once"}))
    assert compile_schema(Tool("b", "", {"type": "object", "title": "once"})) is same
    for name in ("one", "two"):
        with pytest.raises(SchemaError, match=f"tool '{name}'"):
            compile_schema(Tool(name, "", {"type": "string"}))


def test_the_size_of_a_toolset_is_its_size_in_a_request() -> None:
    some = [Tool("a", "does", {"type": "object"}), Tool("b", "", {"type": "object"})]
    assert Toolset(some).size == len("does") + 2 * len('{"type":"object"}')


def test_runs_with_the_same_tools_share_one_toolset_and_a_changed_tool_gets_its_own() -> None:
    read, write = with_schema(), Tool("write", "", {"type": "object"})
    first = Toolset.shared([read, write])

    assert Toolset.shared([read, write]) is first
    assert Toolset.shared([read]) is not first
    # An equal tool is another one: its validator may belong to other executors.
    changed = replace(write, description="changed")
    assert list(Toolset.shared([read, changed])) == [read, changed]


def test_an_invalid_set_of_tools_is_refused_each_time_although_toolsets_are_shared() -> None:
    twice, bomb = with_schema(), BOMBS["remote reference"]
    for _ in range(2):
        with pytest.raises(DuplicateTool):
            Toolset.shared([twice, twice])
        with pytest.raises(SchemaError):
            Toolset.shared([bomb])
