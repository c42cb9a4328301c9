from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.beneath import OPEN_FOLDER_FLAGS, open_beneath, walk_beneath
from evoclaw.executors.files import LocalFiles


async def test_a_walk_is_sorted_and_yields_links_without_following(
    files: LocalFiles, tmp_path: Path
) -> None:
    root = tmp_path / "ws"
    (root / "b").mkdir()
    (root / "b" / "z").touch()
    (root / "b.txt").touch()
    (root / "b" / "link").symlink_to("..")
    (root / "broken").symlink_to("nowhere")
    os.mkfifo(root / "pipe")

    found = [(entry.path, entry.kind) async for entry in files.walk()]

    assert found == [
        ("b", "dir"),
        ("b/link", "link"),
        ("b/z", "file"),
        ("b.txt", "file"),
        ("broken", "link"),
        ("folder", "dir"),
        ("folder/inner.txt", "file"),
        ("pipe", "other"),
    ]
    assert [entry.path async for entry in files.walk("b")] == ["b/link", "b/z"]


async def test_a_walk_can_skip_a_folder(files: LocalFiles) -> None:
    walk = files.walk()
    found: list[str] = []
    async for entry in walk:
        found.append(entry.path)
        if entry.kind == "dir":
            walk.skip()

    assert found == ["folder"]


async def test_walking_a_path_that_is_not_a_folder_is_refused(files: LocalFiles) -> None:
    for path, kind in (
        ("folder/inner.txt", ErrorKind.INVALID_PARAMS),
        ("nowhere", ErrorKind.NOT_FOUND),
        ("..", ErrorKind.PERMISSION_DENIED),
    ):
        with pytest.raises(ToolFailure) as failure:
            async for _ in files.walk(path):
                pass
        assert failure.value.kind is kind


@pytest.mark.slow
async def test_fault_31_a_large_folder_is_walked_in_batches_and_can_be_cancelled(
    files: LocalFiles, tmp_path: Path
) -> None:
    wide = tmp_path / "ws" / "wide"
    wide.mkdir()
    for number in range(3000):
        (wide / f"{number:05}").touch()
    task = asyncio.current_task()
    assert task is not None

    seen = 0
    async for _ in files.walk("wide"):
        seen += 1
        if seen == 5:
            break
    assert seen == 5
    assert len([entry async for entry in files.walk("wide")]) == 3000
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            async for _ in files.walk("wide"):
                pass


@pytest.fixture
def deep(tmp_path: Path) -> Generator[Path]:
    """A tree too deep for any path."""
    here = os.open(tmp_path, OPEN_FOLDER_FLAGS)
    for _ in range(2500):
        os.mkdir("dd", dir_fd=here)
        below = os.open("dd", OPEN_FOLDER_FLAGS, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    yield tmp_path
    subprocess.run(["rm", "-rf", str(tmp_path / "dd")], check=True)


async def test_fault_44_a_walk_of_a_very_deep_tree_stops_without_crashing(deep: Path) -> None:
    async with asyncio.timeout(30):
        found = [entry async for entry in LocalFiles(deep).walk()]

    assert 1000 < len(found) < 2500


def test_open_beneath_and_walk_beneath_resolve_every_path_alike(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "f").write_text("f")
    (root / "a" / "up").symlink_to("..")
    (root / "a" / "here").symlink_to("./b/../f")
    (root / "out").symlink_to("../../..")
    (root / "abs").symlink_to("/etc")
    (root / "chain").symlink_to("a/up/a/here")
    names = ["a", "b", "f", "up", "here", "out", "abs", "chain", "..", ".", ""]
    paths = ["/".join((x, y, z)) for x in names for y in names for z in names]

    def outcome(opened: bool, path: str, links: bool) -> str:
        way = open_beneath if opened else walk_beneath
        folder = os.open(root, OPEN_FOLDER_FLAGS)
        try:
            found = way(folder, path, os.O_PATH, links=links, mounts=False)
        except OSError as problem:
            return errno.errorcode[problem.errno or 0]
        finally:
            os.close(folder)
        try:
            about = os.fstat(found)
            return f"{about.st_ino}"
        finally:
            os.close(found)

    differ = [
        (path, links, outcome(True, path, links), outcome(False, path, links))
        for path in paths
        if path.strip("/") and not path.startswith("/")
        for links in (True, False)
        if outcome(True, path, links) != outcome(False, path, links)
    ]
    assert differ == []
