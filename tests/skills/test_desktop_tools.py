"""The skill that comes with the package, and its programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evoclaw.cli.dt import parser_of
from evoclaw.core.bound import BoundTool
from evoclaw.core.messages import JSON
from evoclaw.core.tools import Tool
from evoclaw.skills.arguments import command_line
from evoclaw.skills.generated import (
    NAME,
    guide_of,
    manifest_of,
    shipped,
    stdin_parameter,
    without_nulls,
    write_desktop_tools,
)
from evoclaw.skills.manifest import read_manifest
from evoclaw.tools.sets import everything
from tests.support.skills import load

FOLDER = shipped() / NAME


def dt(place: Path, tool: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    code = f"import sys; from evoclaw.__main__ import dt; sys.argv[0] = 'dt-{tool}'; sys.exit(dt())"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=place,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "EVOCLAW_WORKSPACE": str(place)},
    )


def test_the_shipped_files_are_what_the_built_in_tools_say() -> None:
    tools = [bound.tool for bound in everything()]
    assert (FOLDER / "skill.toml").read_text() == manifest_of(tools), "run `make docs`"
    assert (FOLDER / "SKILL.md").read_text() == guide_of(tools), "run `make docs`"


def test_the_manifests_tools_are_the_built_in_tools() -> None:
    programs = {program.tool.name: program for program in load(FOLDER).programs}
    for bound in everything():
        tool, program = bound.tool, programs.pop(bound.name)
        declared = program.tool
        assert declared.parameters == without_nulls(tool.name, tool.parameters)
        for field in Tool.__struct_fields__:
            if field not in ("parameters", "description", "slack", "aliases"):
                assert getattr(declared, field) == getattr(tool, field), (tool.name, field)
        assert declared.description == tool.description.strip()
        assert program.binary == f"dt-{tool.name}"
    assert not programs


def test_the_public_validator_likes_it() -> None:
    validator: Any = pytest.importorskip("skills_ref.validator")
    assert validator.validate(FOLDER) == []


def test_a_tool_that_is_added_only_needs_its_files_written_again(tmp_path: Path) -> None:
    schema: dict[str, JSON] = {
        "type": "object",
        "properties": {
            "odd.key": {"type": "string", "default": None, "description": 'a "b"\n\x7fé\\'},
            "pair": {"type": "array", "default": ()},
            "list": {"anyOf": [{"type": "array", "items": {"type": "integer"}}], "default": []},
            "number": {"type": "number", "default": 0.5, "minimum": -1e30},
        },
        "additionalProperties": False,
    }
    tool = Tool("fresh", "Does\nthings.", schema, timeout=1.5, resources=())
    write_desktop_tools([tool], tmp_path / NAME)
    text = (tmp_path / NAME / "skill.toml").read_text()
    text = text.replace("[tools.parameters]", 'args = "json"\n[tools.parameters]', 1)
    (program,) = read_manifest(tmp_path, text, platform="linux").programs
    assert program.tool.parameters == without_nulls("fresh", schema)
    assert (program.tool.timeout, program.tool.resources) == (1.5, ())


@pytest.mark.process
def test_a_tool_can_be_called_by_hand(tmp_path: Path) -> None:
    assert dt(tmp_path, "write", "--path=a.txt", stdin="one\ntwo\n").returncode == 0
    assert (tmp_path / "a.txt").read_text() == "one\ntwo\n"

    done = dt(tmp_path, "read", "--path", "a.txt", "--offset=2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "two" in done.stdout
    assert "one" not in done.stdout


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--path=none.txt",), 1, "none.txt"),
        (("--path=/etc/passwd",), 1, "passwd"),
        ((), 2, "missing 'path'"),
        (("--path=a", "--offset=0"), 2, "offset"),
        (("--path=a", "--offset=x"), 2, "expected integer"),
        (("--path=a", "--strange=1"), 2, "unrecognized"),
    ],
)
def test_what_does_not_work_by_hand_is_told(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    done = dt(tmp_path, "read", *words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert not done.stdout


@pytest.mark.process
def test_a_program_of_another_name_says_which_there_are(tmp_path: Path) -> None:
    done = dt(tmp_path, "nothing")
    assert done.returncode == 2
    assert "there are: " in done.stderr


@pytest.mark.process
def test_what_the_manifest_makes_of_a_call_is_what_the_program_reads(tmp_path: Path) -> None:
    (program,) = [one for one in load(FOLDER).programs if one.tool.name == "write"]
    assert stdin_parameter(program.tool) == "content"
    line = command_line(program.ways, {"path": "-x", "content": "hello"})
    assert line.stdin == b"hello"
    done = dt(tmp_path, "write", *line.arguments, stdin="hello")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "-x").read_text() == "hello"


@pytest.mark.process
def test_a_tool_that_needs_a_run_says_so(tmp_path: Path) -> None:
    done = dt(tmp_path, "sessions_list")
    assert done.returncode == 2
    assert "evoclaw run" in done.stderr


@pytest.mark.parametrize("bound", everything(), ids=lambda bound: bound.name)
def test_every_tool_has_a_program_that_can_be_asked_for_help(bound: BoundTool) -> None:
    text = parser_of(f"dt-{bound.name}", bound.tool).format_help()
    for name in bound.tool.parameters["properties"]:
        assert f"--{name}" in text
