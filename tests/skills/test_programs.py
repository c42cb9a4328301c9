"""Tools of skills, run as real programs."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ToolResult
from evoclaw.core.ops import ExecOps
from evoclaw.core.tools import Call
from evoclaw.core.toolset import Toolset
from evoclaw.executors.processes import LocalProcesses
from evoclaw.skills.approvals import SkillApprovalFile
from evoclaw.skills.programs import Sandboxes
from evoclaw.skills.registry import SkillRegistry
from evoclaw.skills.skill_executor import SkillExecutor
from evoclaw.wiring.toolbox import open_toolbox, toolbox_routes
from tests.support.skills import HELLO, manifest, write_skill, write_tool_skill

pytestmark = pytest.mark.process

ECHO = """\
#!/bin/sh
for word in "$@"; do printf '[%s]' "$word"; done
echo
cat
echo aside >&2
"""
PROPERTIES = """
[tools.parameters.properties]
path = { type = "string" }
deep = { type = "boolean" }
words = { type = "array" }
content = { type = "string" }
"""


async def call(executor: SkillExecutor, name: str, **arguments: JSON) -> ToolResult:
    tools = executor.tools()
    assert isinstance(tools, Toolset)
    found = tools.find(name)
    assert found is not None, tools.names
    assert found[1].is_valid(arguments)
    async with asyncio.timeout(20):
        return await executor.execute(Call("c", found[0], arguments, "r.1.0.1", 10), lambda _: None)


def shop(tmp_path: Path) -> tuple[SkillRegistry, SkillExecutor]:
    root, workspace = tmp_path / "skills", tmp_path / "work"
    root.mkdir(exist_ok=True)
    workspace.mkdir(exist_ok=True)
    shelf = SkillRegistry([root], poll_interval=0)
    return shelf, SkillExecutor(shelf, LocalProcesses(workspace))


async def test_arguments_reach_the_program_without_shell_interpretation(tmp_path: Path) -> None:
    text = manifest("echo", extra='args = { content = "stdin" }' + PROPERTIES)
    write_skill(tmp_path / "skills", "echoes", skill_toml=text, run=ECHO)
    _, executor = shop(tmp_path)

    result = await call(
        executor, "echo", path="-rf; $(id) `id`\n--x", deep=True, words=["a"], content="in\n"
    )

    assert result.text == '[--path=-rf; $(id) `id`\n--x][--deep][--words=["a"]]\nin'
    assert result.details["stderr"] == "aside"
    assert result.details["exit_code"] == 0


async def test_a_failing_program_is_reported_to_the_model(tmp_path: Path) -> None:
    write_tool_skill(
        tmp_path / "skills", "bad", "fail", run="#!/bin/sh\necho no such city >&2\nexit 3\n"
    )
    _, executor = shop(tmp_path)
    with pytest.raises(ToolFailure, match="no such city") as caught:
        await call(executor, "fail")
    assert caught.value.kind is ErrorKind.EXECUTION_FAILED
    assert caught.value.details["exit_code"] == 3


async def test_a_program_runs_in_the_workspace_and_gets_its_skill_folder(tmp_path: Path) -> None:
    write_tool_skill(
        tmp_path / "skills", "where", "where", run='#!/bin/sh\npwd; echo "$EVOCLAW_SKILL"\n'
    )
    _, executor = shop(tmp_path)
    result = await call(executor, "where")
    assert result.text.split() == [str(tmp_path / "work"), str(tmp_path / "skills" / "where")]


async def test_an_added_tool_can_be_called_without_a_restart(tmp_path: Path) -> None:
    _, executor = shop(tmp_path)
    assert not executor.tools()
    write_tool_skill(tmp_path / "skills", "greeting", "greet")
    assert (await call(executor, "greet")).text == "hello"
    assert executor.tools() is executor.tools()


async def test_fault_59_a_program_changed_after_loading_is_not_run(
    tmp_path: Path,
) -> None:
    folder = write_tool_skill(tmp_path / "skills", "greeting", "greet")
    shelf = SkillRegistry([tmp_path / "skills"], poll_interval=1e9)
    executor = SkillExecutor(shelf, LocalProcesses(tmp_path))
    assert (await call(executor, "greet")).text == "hello"

    (folder / "notes.md").write_text("harmless")
    assert (await call(executor, "greet")).text == "hello"
    (folder / "bin" / "run").write_text("#!/bin/sh\necho evil\n")
    with pytest.raises(ToolFailure, match="changed since it was loaded"):
        await call(executor, "greet")
    (folder / "bin" / "run").unlink()
    (folder / "bin" / "run").symlink_to("/bin/true")
    with pytest.raises(ToolFailure, match="changed since it was loaded"):
        await call(executor, "greet")


async def test_fault_59_an_approved_program_is_not_run_when_its_skill_changed(
    tmp_path: Path,
) -> None:
    folder = write_tool_skill(tmp_path / "skills", "greeting", "greet")
    approvals = SkillApprovalFile(tmp_path / "approved.json")
    shelf = SkillRegistry([tmp_path / "skills"], approvals=approvals, poll_interval=1e9)
    approvals.pin("greeting", shelf.skills()[0].digest)
    executor = SkillExecutor(shelf, LocalProcesses(tmp_path))
    assert (await call(executor, "greet")).text == "hello"
    (folder / "bin" / "run").touch()
    assert (await call(executor, "greet")).text == "hello"
    (folder / "lib.sh").write_text("evil")
    with pytest.raises(ToolFailure, match="since it was approved"):
        await call(executor, "greet")


async def test_a_program_on_path_must_be_declared_and_exist(tmp_path: Path) -> None:
    there = manifest("there", binary="cat", extra="on_path = true")
    gone = manifest("gone", binary="no-such-program", extra="on_path = true")
    write_skill(tmp_path / "skills", "mixed", skill_toml=there + gone)
    _, executor = shop(tmp_path)
    assert [tool.name for tool in executor.tools()] == ["there"]
    assert (await call(executor, "there")).text == "(no output)"


class OneSandbox:
    def __init__(self, ops: ExecOps) -> None:
        self.ops = ops
        self.asked: list[str] = []

    def exec_in(self, engine: str, *, tenant: str, trusted: bool) -> ExecOps:
        self.asked.append(engine)
        return self.ops


async def test_a_tool_that_needs_a_sandbox_does_not_run_without_one(tmp_path: Path) -> None:
    text = manifest("sandboxed", extra='sandboxing = "bubblewrap"')
    write_skill(tmp_path / "skills", "sandboxed", skill_toml=text, run="#!/bin/sh\necho in\n")
    shelf, executor = shop(tmp_path)
    with pytest.raises(ToolFailure, match="bubblewrap") as caught:
        await call(executor, "sandboxed")
    assert caught.value.kind is ErrorKind.SANDBOX_UNAVAILABLE

    ops = LocalProcesses(tmp_path)
    sandbox = OneSandbox(ops)
    assert (
        await call(SkillExecutor(shelf, ops, dependencies={Sandboxes: sandbox}), "sandboxed")
    ).text == "in"
    assert sandbox.asked == ["bubblewrap"]


async def test_a_resumed_call_is_not_run_again(tmp_path: Path) -> None:
    write_tool_skill(tmp_path / "skills", "greeting", "greet")
    _, executor = shop(tmp_path)
    tool = executor.tools()[0]
    with pytest.raises(ToolFailure) as caught:
        await executor.execute(Call("c", tool, {}, "r.1.0.1", 10, resumed=True), lambda _: None)
    assert caught.value.kind is ErrorKind.UNKNOWN


def test_a_skill_tool_is_an_ordinary_bound_tool(tmp_path: Path) -> None:
    write_tool_skill(tmp_path, "greeting", "greet")
    (bound,) = SkillRegistry([tmp_path]).tools()
    assert isinstance(bound, BoundTool)
    assert bound.dependencies == {ExecOps}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="install the package bubblewrap")
async def test_a_program_of_a_skill_is_sandboxed_whatever_its_tool_is_called(
    tmp_path: Path,
) -> None:
    """The built-in git tools run git itself; a skill's `git_push` may be any program."""
    home, workspace = tmp_path / "home", tmp_path / "work"
    workspace.mkdir()
    write_tool_skill(home / "skills", "pusher", "git_push", run=HELLO)
    async with open_toolbox(workspace, {"EVOCLAW_HOME": str(home)}) as toolbox:
        (skills,) = [
            route.executor
            for route in toolbox_routes(toolbox, None)
            if isinstance(route.executor, SkillExecutor)
        ]
        result = await call(skills, "git_push")
    assert result.details["isolation"] == "bubblewrap", result
