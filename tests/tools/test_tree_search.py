"""A tree looked through in one go gives what walking it gives, and stays as contained."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ToolResult
from evoclaw.core.ops import FileOps, FileStat
from evoclaw.executors.file_survey import SurveyFolder
from evoclaw.executors.files import LocalFiles
from evoclaw.tools.search import glob, grep
from evoclaw.tools.tree_search import TreeScanner
from tests.support.tool_calls import use


class Far:
    """The same files, as of a machine that is far away: they can only be walked."""

    def __init__(self, files: LocalFiles) -> None:
        self._files = files

    async def read(self, path: str, *, start: int = 0, limit: int | None = None) -> bytes:
        return await self._files.read(path, start=start, limit=limit)

    async def write(self, path: str, data: bytes) -> None:
        await self._files.write(path, data)

    async def remove(self, path: str) -> None:
        raise NotImplementedError

    async def stat(self, path: str) -> FileStat:
        return await self._files.stat(path)

    def walk(self, path: str = ".") -> AsyncIterator[FileStat]:
        return self._files.walk(path)


WORDS = ["alpha", "beta", "Gamma", "delta.x", "naïve", "kelvin"]
RULES = ["*.log", "build/", "/top.txt", "!keep.log", "d?/e*", "**/deep/*.py", "# not a rule", ""]


def plant(root: Path, chance: random.Random) -> None:
    """A tree with whatever makes searching hard."""
    folders = [root]
    for _ in range(12):
        folder = chance.choice(folders) / chance.choice(
            ["src", "build", "d1", "e2", "deep", ".hid"]
        )
        folder.mkdir(exist_ok=True)
        folders.append(folder)
    (root / ".git" / "info").mkdir(parents=True, exist_ok=True)
    (root / ".git" / "info" / "exclude").write_text("secret*\n")
    for folder in {*folders}:
        if chance.random() < 0.4:
            (folder / ".gitignore").write_text("\n".join(chance.sample(RULES, 4)))
        for number in range(chance.randrange(5)):
            name = chance.choice(["a", "keep", "top", "secret"])
            ending = chance.choice(["py", "txt", "log", "js"])
            (folder / f"{name}{number}.{ending}").write_bytes(content(chance))
    (root / "link.py").symlink_to("src")
    (root / "odd\udcff.txt").write_text("alpha")


def content(chance: random.Random) -> bytes:
    """A text, sometimes large, with odd line ends, or no text at all."""
    lines = [" ".join(chance.choices(WORDS, k=4)) for _ in range(chance.choice([1, 5, 300]))]
    end = chance.choice(["\n", "\r\n"])
    data = (end.join(lines) + chance.choice(["", end])).encode()
    return data[:7] + b"\0" + data if chance.random() < 0.1 else data


async def both(root: Path, bound: BoundTool, **arguments: JSON) -> tuple[ToolResult, ToolResult]:
    files = LocalFiles(root)
    far: FileOps = Far(files)
    assert isinstance(files, TreeScanner) and not isinstance(far, TreeScanner)
    return await use(bound, files, **arguments), await use(bound, far, **arguments)


GLOBS: list[dict[str, JSON]] = [
    {"pattern": "*.py"},
    {"pattern": "**/*.{py,txt}", "limit": 7},
    {"pattern": "src/**"},
    {"pattern": "*", "folders": True},
    {"pattern": "a?.[jl]*", "order": "newest", "limit": 3},
    {"pattern": "*.txt", "path": "src"},
]
GREPS: list[dict[str, JSON]] = [
    {"pattern": "alpha"},
    {"pattern": "alpha", "limit": 5},
    {"pattern": "beta$", "context": 1, "limit": 9},
    {"pattern": "KELVIN", "ignore_case": True, "mode": "count"},
    {"pattern": "delta.x", "mode": "files", "limit": 4},
    {"pattern": "na.ve", "include": "*.py", "path": "src"},
    {"pattern": r"(?i)gamma\b", "include": "src/**"},
    {"pattern": "nothing at all"},
]


@pytest.mark.parametrize("seed", range(6))
async def test_survey_and_walk_give_the_same_search_results(tmp_path: Path, seed: int) -> None:
    plant(tmp_path, random.Random(seed))
    (tmp_path / "src").mkdir(exist_ok=True)
    for asked in GLOBS:
        here, far = await both(tmp_path, glob, **asked)
        assert (here.text, here.details) == (far.text, far.details), asked
    for asked in GREPS:
        here, far = await both(tmp_path, grep, **asked)
        assert (here.text, here.details) == (far.text, far.details), asked


async def test_a_file_of_many_chunks_is_searched_to_its_end(tmp_path: Path) -> None:
    line = b"x" * 99 + b"\n"
    (tmp_path / "large.txt").write_bytes(line * 30_000 + b"the needle\n" + line * 10)
    here, far = await both(tmp_path, grep, pattern="needle")
    assert here.text == far.text == "large.txt:30001:the needle"


async def test_fault_38_a_file_swapped_for_a_symlink_or_fifo_is_not_read(
    tmp_path: Path,
) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").write_text("harmless")
    (root / "b.txt").write_text("harmless")
    (root / "sub").mkdir()
    (root / "sub" / "c.txt").write_text("secret of ours")
    read: list[bytes | None] = []

    def visit(folder: SurveyFolder) -> Iterator[str]:
        if not folder.path:
            (root / "a.txt").unlink()
            (root / "a.txt").symlink_to(outside)
            (root / "b.txt").unlink()
            os.mkfifo(root / "b.txt")
            read.extend(folder.read(name, 0, 100) for name in ("a.txt", "b.txt", "../outside.txt"))
            (root / "sub").rename(root / "moved")
            (root / "sub").symlink_to(tmp_path)
            yield "sub"
        else:
            read.append(b"went in")

    async with asyncio.timeout(30):
        await LocalFiles(root).scan_tree(".", visit)
    assert read == [None, None, None]


async def test_a_cancelled_survey_stops_visiting_folders(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    entered: list[str] = []
    began, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def visit(folder: SurveyFolder) -> Iterator[str]:
        entered.append(folder.path)
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(10)
        yield from ("a", "b", "c")

    looking = asyncio.create_task(LocalFiles(tmp_path).scan_tree(".", visit))
    await began.wait()
    looking.cancel()
    await asyncio.wait([looking])
    go_on.set()
    assert looking.cancelled()
    assert entered == [""]


async def test_a_survey_of_a_path_that_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolFailure, match="is not a folder") as failed:
        await LocalFiles(tmp_path).scan_tree("file", lambda folder: iter(()))
    assert failed.value.kind is ErrorKind.INVALID_PARAMS
