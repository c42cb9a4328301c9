"""The skill that comes with the package, and its programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from evoclaw.cli.dt import parser_of
from evoclaw.cli.skills import copy_and_approve
from evoclaw.core.bound_tools import BoundTool, ToolEnvironment
from evoclaw.core.messages import JSON
from evoclaw.core.ops import ExecOps
from evoclaw.core.tools import Call, Tool
from evoclaw.executors.processes import LocalProcesses
from evoclaw.skills.approvals import SkillApprovalFile
from evoclaw.skills.arguments import build_command_line
from evoclaw.skills.desktop_tools import (
    DESKTOP_TOOLS,
    PROGRAM,
    bundled_skills_folder,
    skill_markdown,
    skill_toml,
    stdin_parameter,
    without_nulls,
    write_desktop_tools,
    write_programs,
)
from evoclaw.skills.manifest import read_manifest
from evoclaw.skills.programs import bind_program
from evoclaw.skills.registry import SkillRegistry
from evoclaw.tools.sets import everything
from tests.support.skills import load

FOLDER = bundled_skills_folder() / DESKTOP_TOOLS


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The skill as `evoclaw skills add desktop-tools` puts it beside the others."""
    place = tmp_path_factory.mktemp("skills")
    copy_and_approve(Path(DESKTOP_TOOLS), place, SkillApprovalFile(place / "approved.json"))
    return place / DESKTOP_TOOLS


class Programs:
    """Runs the programs in the skill's own `bin/`."""

    def __init__(self, bin: Path, place: Path) -> None:
        self._bin, self.place = bin, place

    def __call__(
        self, tool: str, *words: str, stdin: str = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._bin / f"dt-{tool}", *words],
            cwd=self.place,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={
                **os.environ,
                "PATH": "/usr/bin:/bin",
                "EVOCLAW_WORKSPACE": str(self.place),
                **(env or {}),
            },
        )


@pytest.fixture
def dt(installed: Path, tmp_path: Path) -> Programs:
    return Programs(installed / "bin", tmp_path)


@pytest.mark.process
def test_the_programs_take_their_arguments_as_other_edges_pass_them(dt: Programs) -> None:
    """`--key value` as two words, `-c` for a command, the content of a file as the last word."""
    assert dt("write", "--path", "note.txt", "buy milk").returncode == 0
    assert "buy milk" in dt("read", "--path", "note.txt", "--offset", "1", "--limit", "5").stdout
    ran = dt("bash", "-c", "cat note.txt", env={"EVOCLAW_SANDBOX_ENGINE": "none"})
    assert ran.stdout.strip() == "buy milk", ran.stderr


@pytest.mark.process
def test_a_program_reads_the_host_name_and_what_its_owner_names_but_nothing_else(
    dt: Programs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    host_name = Path("/etc/hostname")
    if host_name.is_file():
        assert host_name.read_text().strip() in dt("read", "--path", "/etc/hostname").stdout
    assert "outside the workspace" in dt("read", "--path", "/etc/passwd").stderr
    log = tmp_path_factory.mktemp("logs") / "sensors.log"
    log.write_text("21.5 degrees")
    assert "outside the workspace" in dt("read", "--path", str(log)).stderr
    named = {"EVOCLAW_READ_ROOTS": str(log.parent)}
    assert "21.5 degrees" in dt("read", "--path", str(log), env=named).stdout
    assert dt("write", "--path", str(log), "30", env=named).returncode != 0


def test_the_shipped_skill_files_match_the_built_in_tools() -> None:
    tools = [bound.tool for bound in everything()]
    assert (FOLDER / "skill.toml").read_text() == skill_toml(tools), "run `make docs`"
    assert (FOLDER / "SKILL.md").read_text() == skill_markdown(tools), "run `make docs`"
    programs = {path.name: path for path in (FOLDER / "bin").iterdir()}
    assert programs.keys() == {f"dt-{tool.name}" for tool in tools}, "run `make docs`"
    assert {path.read_text() for path in programs.values()} == {
        f"#!/usr/bin/env python3\n{PROGRAM}"
    }
    assert all(os.access(path, os.X_OK) for path in programs.values())


def test_the_manifest_declares_the_built_in_tools() -> None:
    programs = {program.tool.name: program for program in load(FOLDER).programs}
    for bound in everything():
        tool, program = bound.tool, programs.pop(bound.name)
        declared = program.tool
        assert declared.parameters == without_nulls(tool.name, tool.parameters)
        for field in Tool.__struct_fields__:
            if field not in ("parameters", "description", "slack", "aliases"):
                assert getattr(declared, field) == getattr(tool, field), (tool.name, field)
        assert declared.description == tool.description.strip()
        assert (program.binary, program.on_path) == (f"bin/dt-{tool.name}", False)
    assert not programs


def test_the_public_validator_accepts_the_skill() -> None:
    validator: Any = pytest.importorskip("skills_ref.validator")
    assert validator.validate(FOLDER) == []


def test_a_generated_manifest_reads_back_as_the_same_tool(tmp_path: Path) -> None:
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
    write_desktop_tools([tool], tmp_path / DESKTOP_TOOLS)
    text = (tmp_path / DESKTOP_TOOLS / "skill.toml").read_text()
    text = text.replace("[tools.parameters]", 'args = "json"\n[tools.parameters]', 1)
    (program,) = read_manifest(tmp_path, text, platform="linux").programs
    assert program.tool.parameters == without_nulls("fresh", schema)
    assert (program.tool.timeout, program.tool.resources) == (1.5, ())


@pytest.mark.process
def test_a_tool_program_can_be_run_from_the_command_line(dt: Programs, tmp_path: Path) -> None:
    assert dt("write", "--path=a.txt", stdin="one\ntwo\n").returncode == 0
    assert (tmp_path / "a.txt").read_text() == "one\ntwo\n"

    done = dt("read", "--path", "a.txt", "--offset=2")
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
def test_command_line_errors_are_reported_on_stderr(
    dt: Programs, words: tuple[str, ...], code: int, said: str
) -> None:
    done = dt("read", *words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert not done.stdout


@pytest.mark.process
def test_an_unknown_tool_program_lists_the_known_ones(tmp_path: Path) -> None:
    write_programs(tmp_path, ["nothing"], sys.executable)
    dt = Programs(tmp_path / "bin", tmp_path)
    done = dt("nothing")
    assert done.returncode == 2
    assert "available tools: " in done.stderr


@pytest.mark.process
def test_the_command_line_of_the_manifest_is_understood_by_the_program(
    dt: Programs, tmp_path: Path
) -> None:
    (program,) = [one for one in load(FOLDER).programs if one.tool.name == "write"]
    assert stdin_parameter(program.tool) == "content"
    line = build_command_line(program.bindings, {"path": "-x", "content": "hello"})
    assert line.stdin == b"hello"
    done = dt("write", *line.arguments, stdin="hello")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "-x").read_text() == "hello"


@pytest.mark.process
def test_a_tool_that_needs_a_run_is_refused_on_the_command_line(dt: Programs) -> None:
    done = dt("sessions_list")
    assert done.returncode == 2
    assert "evoclaw run" in done.stderr


@pytest.mark.process
async def test_skill_tools_run_the_shipped_programs(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (program,) = [one for one in load(installed).programs if one.tool.name == "read"]
    bound = bind_program(load(installed), program, pinned=True)
    machine = ToolEnvironment({ExecOps: LocalProcesses(tmp_path)}, lambda text: None)
    call = Call("c", bound.tool, {"path": "a.txt", "offset": 2}, "r.1.0.1", 30)

    result = await bound.run(call, machine)

    assert "two" in result.text and "one" not in result.text


def test_the_installed_skill_does_not_replace_built_in_tools(installed: Path) -> None:
    shelf = SkillRegistry(
        [installed.parent], reserved={bound.name: "built in" for bound in everything()}
    )
    assert shelf.tools() == ()
    (problem,) = shelf.problems()
    assert not problem.refused and "from a shell" in problem.reason


@pytest.mark.process
def test_an_interpreter_with_a_long_path_or_spaces_is_found(tmp_path: Path) -> None:
    deep = tmp_path / "a place with spaces" / ("x" * 130)
    deep.mkdir(parents=True)
    python = deep / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    write_programs(tmp_path, ["read"], str(python))
    done = Programs(tmp_path / "bin", tmp_path)("read", "--path=none.txt")
    assert done.returncode == 1 and "none.txt" in done.stderr


def test_the_only_command_that_the_wheel_installs_is_evoclaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = pytest.importorskip("flit_core.buildapi")
    monkeypatch.chdir(Path(__file__).parents[2])
    with ZipFile(tmp_path / backend.build_wheel(str(tmp_path))) as wheel:
        (entries,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
        assert wheel.read(entries).decode().split() == [
            *("[console_scripts]", "evoclaw=evoclaw.__main__:main")
        ]
        programs = [
            one
            for one in wheel.infolist()
            if one.filename.startswith(f"evoclaw/skills/{DESKTOP_TOOLS}/bin")
        ]
        assert len(programs) == len(everything())
        assert all(one.external_attr >> 16 & 0o111 for one in programs)


@pytest.mark.parametrize("bound", everything(), ids=lambda bound: bound.name)
def test_every_tool_program_has_a_help_text(bound: BoundTool) -> None:
    text = parser_of(f"dt-{bound.name}", bound.tool).format_help()
    for name in bound.tool.parameters["properties"]:
        assert f"--{name}" in text
