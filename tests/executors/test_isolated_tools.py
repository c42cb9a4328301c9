"""Own tools with `isolated=True`: in a sandboxed worker, and never in this process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, ErrorKind, ToolResult
from evoclaw.core.tools import Call
from evoclaw.executors.isolated_tools import is_isolated
from evoclaw.executors.own_tools import OwnTools
from evoclaw.wiring.toolbox import Toolbox, open_toolbox

SOURCE = '''
import os

from evoclaw import ErrorKind, ToolFailure, tool
from evoclaw.core.ops import ExecOps, FileOps

LOADED_IN = os.getpid()


@tool("probe", effect="read", isolated=True)
def peek(path: str) -> str:
    """Read any file of the machine."""
    print("printed by the tool")
    with open(path) as file:
        return file.read()


@tool("probe", effect="read", isolated=True)
async def process(files: FileOps, programs: ExecOps) -> dict[str, int]:
    """Say where it runs."""
    size = len(await files.read("note.txt"))
    echoed = await programs.run(("echo", "hi"))
    return {"loaded": LOADED_IN, "size": size, "echoed": len(echoed.stdout)}


@tool("probe", isolated=True)
def refuse() -> str:
    """Refuse."""
    raise ToolFailure(ErrorKind.NOT_FOUND, "there is nothing")
'''
MIXED = SOURCE.replace('@tool("probe", isolated=True)', '@tool("probe")')
NOT_LITERAL = SOURCE.replace("isolated=True", "isolated=bool(1)")
ASKS_PEOPLE = SOURCE.replace("FileOps", "UserPrompter").replace(
    "from evoclaw.core.ops import ExecOps, UserPrompter",
    "from evoclaw.core.ops import ExecOps\nfrom evoclaw.tools.question import UserPrompter",
)
STREAMS = SOURCE.replace("isolated=True)\ndef refuse", "isolated=True, streams=True)\ndef refuse")

needs_bwrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="install the package bubblewrap"
)


class Place:
    """A data folder with a file of own tools, and a workspace."""

    def __init__(self, folder: Path, source: str, settings: str = "") -> None:
        self.home, self.workspace = folder / "home", folder / "work"
        (self.home / "tools").mkdir(parents=True)
        self.workspace.mkdir()
        self.file = self.home / "tools" / "own.py"
        self.file.write_text(source)
        self.file.chmod(0o600)
        (self.home / "evoclaw.toml").write_text(settings)
        (self.home / "secret.txt").write_text("a secret")
        (self.workspace / "note.txt").write_text("four")

    @property
    def env(self) -> Mapping[str, str]:
        return {"EVOCLAW_HOME": str(self.home)}


async def use(toolbox: Toolbox, name: str, **arguments: JSON) -> ToolResult:
    (tool,) = [tool for tool in toolbox.own_tools.tools() if tool.name == name]
    assert tool.isolated
    call = Call("c", tool, arguments, "r.1.0.1", 30)
    return await toolbox.own_tools.execute(call, lambda text: None)


@needs_bwrap
async def test_an_isolated_tool_runs_in_a_sandbox_and_sees_only_the_workspace(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, SOURCE)
    async with open_toolbox(place.workspace, place.env) as toolbox:
        note = await use(toolbox, "peek", path="note.txt")
        assert note.text == "four"
        assert note.details["isolation"] == "bubblewrap"
        assert note.details["stderr"] == "printed by the tool"
        secret = await use(toolbox, "peek", path=str(place.home / "secret.txt"))
        assert secret.error is ErrorKind.INTERNAL
        assert "No such file" in secret.text
        assert "a secret" not in str(secret)
        facts = await use(toolbox, "process")
        assert '"size":4' in facts.text
        assert '"echoed":3' in facts.text
        assert f'"loaded":{os.getpid()},' not in facts.text
        refused = await use(toolbox, "refuse")
        assert (refused.error, refused.text) == (ErrorKind.NOT_FOUND, "there is nothing")


@needs_bwrap
@pytest.mark.parametrize(
    ("source", "settings", "reason"),
    [
        (MIXED, "", "a file of their own"),
        (NOT_LITERAL, "", "literally"),
        (ASKS_PEOPLE, "", "needs UserPrompter"),
        (STREAMS, "", "streams=True"),
        (SOURCE.replace("import os", "import no_such_module"), "", "ModuleNotFoundError"),
        (SOURCE, '[sandbox]\nengine = "none"\n', "without a sandbox"),
    ],
)
async def test_a_file_that_cannot_be_isolated_is_reported(
    tmp_path: Path, source: str, settings: str, reason: str
) -> None:
    place = Place(tmp_path, source, settings)
    async with open_toolbox(place.workspace, place.env) as toolbox:
        assert list(toolbox.own_tools.tools()) == []
        assert reason in toolbox.problems()["own.py"]


async def test_isolated_tools_are_refused_where_nothing_can_isolate_them(tmp_path: Path) -> None:
    place = Place(tmp_path, SOURCE)
    own = OwnTools(place.file.parent, given={})
    assert list(own.tools()) == []
    assert "cannot be used here" in own.problems["own.py"]


def test_isolation_is_read_without_running_the_file() -> None:
    assert is_isolated(SOURCE)
    assert is_isolated("import evoclaw\n@evoclaw.tool(isolated=True)\ndef f(): ...")
    assert not is_isolated("@tool(isolated=False)\ndef f(): ...")
    assert not is_isolated("def broken(:")
    with pytest.raises(ConfigError):
        is_isolated(MIXED)
