"""What every FileOps and ExecOps must do, the pretended machine included."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import ExecOps, FileOps
from evoclaw.executors.files import LocalFiles
from evoclaw.executors.processes import LocalProcesses
from evoclaw.tools.fake import FakeOps


@pytest.fixture(params=["local", "fake"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileOps:
    return LocalFiles(tmp_path) if request.param == "local" else FakeOps()


@pytest.fixture(params=["local", "fake"])
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> ExecOps:
    if request.param == "local":
        return LocalProcesses(tmp_path)
    return FakeOps(commands={"echo hi": "hi\n"})


async def kind_of(operation: object) -> ErrorKind:
    assert asyncio.iscoroutine(operation)
    with pytest.raises(ToolFailure) as failure:
        await operation
    return failure.value.kind


async def test_a_written_file_can_be_read_in_ranges_and_stat_reports_it(files: FileOps) -> None:
    await files.write("a/b.txt", b"0123456789")
    await files.write("./a/../a/b.txt", b"9876543210")

    assert await files.read("a/b.txt") == b"9876543210"
    assert await files.read("a/b.txt", start=2, limit=3) == b"765"
    assert await files.read("a/b.txt", start=20, limit=3) == b""
    about = await files.stat("a/b.txt")
    assert (about.path, about.kind, about.size) == ("a/b.txt", "file", 10)
    assert (await files.stat("a")).kind == "dir"
    assert (await files.stat(".")).path == "."


async def test_a_walk_is_sorted_with_folders_before_their_contents(files: FileOps) -> None:
    for name in ("b/z", "b.txt", "a/1/x", "c"):
        await files.write(name, b"")

    assert [entry.path async for entry in files.walk()] == [
        *("a", "a/1", "a/1/x", "b", "b/z", "b.txt", "c")
    ]
    assert [entry.path async for entry in files.walk("a")] == ["a/1", "a/1/x"]


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "/etc/passwd"])
async def test_no_path_leaves_the_root(files: FileOps, path: str) -> None:
    await files.write("a/f", b"")
    assert await kind_of(files.read(path)) is ErrorKind.PERMISSION_DENIED
    assert await kind_of(files.write(path, b"")) is ErrorKind.PERMISSION_DENIED
    assert await kind_of(files.stat(path)) is ErrorKind.PERMISSION_DENIED
    assert await kind_of(files.remove(path)) is ErrorKind.PERMISSION_DENIED


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000])
async def test_invalid_paths_are_refused(files: FileOps, path: str) -> None:
    assert await kind_of(files.read(path)) is ErrorKind.INVALID_PARAMS
    assert await kind_of(files.write(path, b"")) is ErrorKind.INVALID_PARAMS
    assert await kind_of(files.remove(path)) is ErrorKind.INVALID_PARAMS


async def test_remove_deletes_only_the_named_file(files: FileOps) -> None:
    for name in ("a/b", "a/c"):
        await files.write(name, b"x")

    await files.remove("./a/../a/b")

    assert await kind_of(files.stat("a/b")) is ErrorKind.NOT_FOUND
    assert await files.read("a/c") == b"x"
    assert await kind_of(files.remove("a/b")) is ErrorKind.NOT_FOUND
    assert await kind_of(files.remove("no/folder")) is ErrorKind.NOT_FOUND
    assert await kind_of(files.remove("a")) is ErrorKind.INVALID_PARAMS
    assert await kind_of(files.remove("a/c/")) is ErrorKind.INVALID_PARAMS
    assert await files.read("a/c") == b"x"


async def test_folders_and_files_are_not_confused(files: FileOps) -> None:
    await files.write("a/b", b"")

    assert await kind_of(files.read("a")) is ErrorKind.INVALID_PARAMS
    assert await kind_of(files.write("a", b"")) is ErrorKind.INVALID_PARAMS
    assert await kind_of(files.write("a/b/c", b"")) is ErrorKind.INVALID_PARAMS
    assert await kind_of(files.read("c")) is ErrorKind.NOT_FOUND
    assert await kind_of(files.stat("c")) is ErrorKind.NOT_FOUND


@pytest.mark.process
async def test_a_command_returns_exit_code_output_and_byte_counts(processes: ExecOps) -> None:
    heard: list[str] = []
    done = await processes.run(["bash", "-c", "echo hi"], on_output=heard.append)

    assert (done.exit_code, done.stdout, done.stderr) == (0, b"hi\n", b"")
    assert (done.stdout_bytes, done.stderr_bytes) == (3, 0)
    assert done.isolation and "".join(heard) == "hi\n"


@pytest.mark.process
async def test_an_unknown_shell_command_exits_with_127(processes: ExecOps) -> None:
    done = await processes.run(["bash", "-c", "no-such-command-here"])

    assert done.exit_code == 127 and b"not found" in done.stderr


async def test_a_command_cannot_start_outside_the_root_or_in_a_missing_folder(
    processes: ExecOps,
) -> None:
    command = ["bash", "-c", "echo hi"]
    assert await kind_of(processes.run(command, cwd="..")) is ErrorKind.PERMISSION_DENIED
    assert await kind_of(processes.run(command, cwd="gone")) is ErrorKind.NOT_FOUND
