"""The thirty tools: their names, what they need, how long they may take."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.ops import ExecOps, FileOps
from evoclaw.core.tools import Effect
from evoclaw.core.toolset import Toolset
from evoclaw.tools.catalogue import load
from evoclaw.tools.sets import coding, everything, read_only, usable

THIRTY = """read write edit glob grep apply_patch websearch webfetch codesearch bash question
todowrite todoread task skill sessions_list sessions_history sessions_send sessions_spawn
session_status agents_list git_status git_diff git_commit git_log git_branch browser canvas nodes
image"""
PERMISSIONS = {
    "read glob grep todoread skill image": {"file_read"},
    "write edit apply_patch todowrite": {"file_write"},
    "bash": {"shell"},
    "websearch webfetch codesearch browser": {"network"},
    "git_status git_diff git_log git_branch": {"git"},
    "git_commit": {"git", "file_write"},
    "sessions_list sessions_history sessions_send sessions_spawn session_status agents_list task": {
        "session"
    },
    "question": {"interact"},
    "canvas": {"ui"},
    "nodes": {"device"},
}
TIMES = {
    "read write edit glob grep apply_patch": (5, 30),
    "websearch webfetch codesearch browser": (30, 120),
    "bash": (30, 300),
    "git_status git_diff git_log git_branch git_commit": (60, 300),
}
READS = """read glob grep websearch webfetch codesearch todoread skill image question sessions_list
sessions_history session_status agents_list git_status git_diff git_log"""


def by_name() -> dict[str, BoundTool]:
    return {bound.name: bound for bound in everything()}


def test_all_thirty_tools_exist() -> None:
    assert sorted(by_name()) == sorted(THIRTY.split())
    assert len(by_name()) == 30


def test_each_tool_needs_its_documented_permissions() -> None:
    expected = {name: held for names, held in PERMISSIONS.items() for name in names.split()}
    assert {name: set(bound.tool.permissions) for name, bound in by_name().items()} == expected


def test_each_tool_has_its_documented_timeouts() -> None:
    found = {name: (one.tool.timeout, one.tool.max_timeout) for name, one in by_name().items()}
    for names, times in TIMES.items():
        for name in names.split():
            assert found[name] == times, name


@pytest.mark.parametrize("name", sorted(THIRTY.split()))
def test_each_tool_and_parameter_has_a_description(name: str) -> None:
    tool = by_name()[name].tool
    assert len(tool.description) > 20
    assert tool.parameters["additionalProperties"] is False
    assert msgspec.json.decode(msgspec.json.encode(tool.parameters)) == tool.parameters
    for parameter, schema in tool.parameters["properties"].items():
        assert schema.get("description"), f"{parameter} is not described"
    assert (tool.effect is Effect.READ) == (name in READS.split())


def test_tool_sets_contain_the_documented_tools() -> None:
    assert [bound.name for bound in read_only()] == ["read", "glob", "grep"]
    here = usable(everything(), {FileOps: None, ExecOps: None})
    assert {bound.name for bound in here} == {bound.name for bound in coding()}
    assert all(bound.tool.effect is Effect.READ for bound in read_only())


def test_tool_aliases_are_resolved_but_not_offered() -> None:
    tools = Toolset(bound.tool for bound in everything())
    assert not {"shell", "web_fetch"} & set(tools.names)
    for alias, name in (("shell", "bash"), ("web_fetch", "webfetch")):
        found = tools.find(alias)
        assert found is not None and found[0].name == name


def test_a_tool_name_takes_precedence_over_an_alias() -> None:
    (bash,) = load(["bash"])
    shell = replace(bash.tool, name="shell", aliases=())
    tools = Toolset([bash.tool, shell])
    found = tools.find("shell")
    assert found is not None and found[0] is shell
