"""Our own folder: no file tool opens it, and nothing is found in it, wherever it lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.files import LocalFiles

KEY = ".evoclaw/orchestrator.key"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "deep" / ".evoclaw").mkdir(parents=True)
    (tmp_path / ".evoclaw").mkdir()
    (tmp_path / KEY).write_text("a secret")
    (tmp_path / "deep" / KEY).write_text("a secret")
    (tmp_path / "notes.txt").write_text("mine")
    return tmp_path


@pytest.mark.parametrize("path", [KEY, f"./{KEY}", f"deep/../{KEY}", f"deep/{KEY}", ".EvoClaw/x"])
async def test_the_data_folder_is_neither_read_nor_written(home: Path, path: str) -> None:
    files = LocalFiles(home)
    for act in (files.read(path), files.write(path, b"x"), files.remove(path), files.stat(path)):
        with pytest.raises(ToolFailure) as refused:
            await act
        assert refused.value.kind is ErrorKind.PERMISSION_DENIED
    assert (home / KEY).read_text() == "a secret"


async def test_an_absolute_path_does_not_open_the_data_folder(home: Path) -> None:
    with pytest.raises(ToolFailure):
        await LocalFiles(home).read(str(home / KEY))


async def test_a_walk_does_not_enter_the_data_folder(home: Path) -> None:
    found = [one.path async for one in LocalFiles(home).walk()]
    assert found == ["deep", "notes.txt"]


async def test_a_workspace_inside_the_data_folder_can_be_used(home: Path) -> None:
    workspace = home / ".evoclaw" / "edge" / "pi" / "workspace"
    workspace.mkdir(parents=True)
    files = LocalFiles(workspace)
    await files.write("a.txt", b"x")
    assert await files.read(str(workspace / "a.txt")) == b"x"
