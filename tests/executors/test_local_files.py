from __future__ import annotations

import asyncio
import ctypes
import os
import stat
import subprocess
import threading
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.files import LocalFiles
from evoclaw.executors.roots import MAX_SEARCHED_NAMES
from tests.support.properties import examples


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def mount(*arguments: str) -> None:
    if subprocess.run(["mount", *arguments], capture_output=True).returncode:
        pytest.skip("this user may not mount")


def unmount(path: Path) -> None:
    subprocess.run(["umount", str(path)], check=True)


async def refused(files: LocalFiles, path: str) -> ErrorKind:
    async with asyncio.timeout(30):
        with pytest.raises(ToolFailure) as failure:
            await files.read(path)
    assert failure.value.message
    return failure.value.kind


async def write_refused(files: LocalFiles, path: str) -> ErrorKind:
    async with asyncio.timeout(30):
        with pytest.raises(ToolFailure) as failure:
            await files.write(path, b"x")
    return failure.value.kind


async def test_absolute_paths_inside_the_root_are_accepted(
    files: LocalFiles, tmp_path: Path
) -> None:
    path = str(tmp_path / "ws" / "folder" / "inner.txt")

    assert await files.read(path) == b"inner"
    assert (await files.stat(path)).path == "folder/inner.txt"


async def test_a_root_may_be_given_through_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "f").write_text("x")
    (tmp_path / "link").symlink_to("real")

    assert await LocalFiles(tmp_path / "link").read(str(tmp_path / "link" / "f")) == b"x"


async def test_extra_roots_are_readable_and_only_writable_ones_are_written(tmp_path: Path) -> None:
    for name in ("ws", "docs", "out", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    files = LocalFiles(tmp_path / "ws", readable=[tmp_path / "docs"], writable=[tmp_path / "out"])

    assert await files.read(str(tmp_path / "docs" / "f")) == b"docs"
    await files.write(str(tmp_path / "out" / "new"), b"new")
    assert (await files.stat(str(tmp_path / "out" / "new"))).path == str(tmp_path / "out" / "new")
    assert await write_refused(files, str(tmp_path / "docs" / "f")) is ErrorKind.PERMISSION_DENIED
    assert await refused(files, str(tmp_path / "other" / "f")) is ErrorKind.PERMISSION_DENIED
    assert [entry.path async for entry in files.walk(str(tmp_path / "docs"))] == [
        str(tmp_path / "docs" / "f")
    ]


def test_a_root_that_is_no_folder_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("missing", "file"):
        with pytest.raises(ConfigError):
            LocalFiles(tmp_path / path)


async def test_a_byte_range_of_a_file_is_read(files: LocalFiles) -> None:
    assert await files.read("folder/inner.txt", start=2, limit=2) == b"ne"
    assert await files.read("folder/inner.txt", start=99) == b""


async def test_a_huge_sparse_file_is_not_read_whole(files: LocalFiles, tmp_path: Path) -> None:
    with (tmp_path / "ws" / "giant").open("wb") as giant:
        giant.truncate(1 << 40)

    assert await refused(files, "giant") is ErrorKind.TOO_LARGE
    assert await files.read("giant", start=1 << 39, limit=4) == b"\0\0\0\0"


async def test_a_missing_file_error_suggests_a_similar_name(files: LocalFiles) -> None:
    with pytest.raises(ToolFailure) as missing:
        await files.read("folder/iner.txt")

    assert missing.value.kind is ErrorKind.NOT_FOUND
    assert "'folder/inner.txt'" in missing.value.message


async def test_a_write_creates_folders_keeps_the_mode_and_leaves_no_temporary_file(
    files: LocalFiles, tmp_path: Path
) -> None:
    script = tmp_path / "ws" / "run.sh"
    script.write_text("old")
    script.chmod(0o750)

    await files.write("run.sh", b"new")
    await files.write("a/b/../c/new.txt", b"text")

    assert script.read_text() == "new"
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    assert (tmp_path / "ws" / "a" / "c" / "new.txt").read_text() == "text"
    assert sorted(p.name for p in (tmp_path / "ws").rglob("*") if p.is_file()) == [
        "inner.txt",
        "new.txt",
        "run.sh",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_a_write_keeps_the_owner(files: LocalFiles, tmp_path: Path) -> None:
    theirs = tmp_path / "ws" / "theirs"
    theirs.write_text("old")
    os.chown(theirs, 1234, 1234)

    await files.write("theirs", b"new")

    assert (theirs.stat().st_uid, theirs.stat().st_gid) == (1234, 1234)


async def test_a_write_to_a_folder_or_below_a_file_is_refused(files: LocalFiles) -> None:
    for path in ("folder", "new/", ".", "folder/inner.txt/x"):
        assert await write_refused(files, path) is ErrorKind.INVALID_PARAMS


async def test_a_cancelled_write_changes_nothing(files: LocalFiles, tmp_path: Path) -> None:
    abandoned = threading.Event()
    abandoned.set()

    with pytest.raises(ToolFailure):
        files._write("folder/inner.txt", b"late", abandoned)  # pyright: ignore[reportPrivateUsage]

    assert (tmp_path / "ws" / "folder" / "inner.txt").read_text() == "inner"
    assert [p.name for p in (tmp_path / "ws" / "folder").iterdir()] == ["inner.txt"]


async def test_symlinks_inside_the_root_are_read_but_never_written_through(
    files: LocalFiles, tmp_path: Path
) -> None:
    root = tmp_path / "ws"
    (root / "file-link").symlink_to("folder/inner.txt")
    (root / "folder" / "up").symlink_to("../folder")

    assert await files.read("file-link") == b"inner"
    assert await files.read("folder/up/up/inner.txt") == b"inner"
    assert (await files.stat("file-link")).kind == "file"
    for path in ("file-link", "folder/up/new.txt", "folder/up/inner.txt"):
        assert await write_refused(files, path) is ErrorKind.PERMISSION_DENIED
    assert (root / "folder" / "inner.txt").read_text() == "inner"


async def test_fault_38_symlinks_out_of_the_root_are_refused(
    files: LocalFiles, tmp_path: Path
) -> None:
    root = tmp_path / "ws"
    (root / "absolute").symlink_to(tmp_path / "secret.txt")
    (root / "relative").symlink_to("../secret.txt")
    (root / "out").symlink_to("..")
    (root / "magic").symlink_to("/proc/self/root")
    (root / "loop").symlink_to("loop")

    for path in (
        "absolute",
        "relative",
        "out/secret.txt",
        "magic/etc/passwd",
        "../secret.txt",
        "folder/../../secret.txt",
        str(tmp_path / "ws" / ".." / "secret.txt"),
        str(tmp_path / "secret.txt"),
        "/proc/self/root/etc/passwd",
        "/etc/passwd",
        "loop",
    ):
        assert await refused(files, path) is ErrorKind.PERMISSION_DENIED
        assert await write_refused(files, path) is ErrorKind.PERMISSION_DENIED
    assert (tmp_path / "secret.txt").read_text() == "secret"


async def test_fault_38_a_write_never_reaches_a_file_through_a_hard_link(
    files: LocalFiles, tmp_path: Path
) -> None:
    (tmp_path / "ws" / "hard").hardlink_to(tmp_path / "secret.txt")

    await files.write("hard", b"mine")

    assert (tmp_path / "secret.txt").read_text() == "secret"
    (tmp_path / "ws" / "again").hardlink_to(tmp_path / "secret.txt")
    strict = LocalFiles(tmp_path / "ws", hard_links=False)
    assert await refused(strict, "again") is ErrorKind.PERMISSION_DENIED


async def test_fault_38_remove_follows_no_symlink_and_removes_only_files(
    files: LocalFiles, tmp_path: Path
) -> None:
    root = tmp_path / "ws"
    (root / "to-file").symlink_to("folder/inner.txt")
    (root / "to-folder").symlink_to("folder")
    (root / "away").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    (root / "second").hardlink_to(tmp_path / "secret.txt")
    for path in ("to-file", "to-folder", "to-folder/inner.txt", "away/secret.txt", "pipe"):
        with pytest.raises(ToolFailure) as failure:
            await files.remove(path)
        assert failure.value.kind is ErrorKind.PERMISSION_DENIED, path
    assert {"to-file", "to-folder", "away", "pipe"} <= set(names_in(root))
    assert names_in(root / "folder") == ["inner.txt"]
    await files.remove("second")

    assert not (root / "second").exists()
    assert (tmp_path / "secret.txt").read_text() == "secret"
    with pytest.raises(ToolFailure, match=r"Did you mean 'folder/inner.txt'"):
        await files.remove("folder/iner.txt")


async def test_a_missing_path_is_answered_with_where_a_file_of_its_name_is(tmp_path: Path) -> None:
    for folder in ("ws/a/b", "ws/.hidden", "docs/deep"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("ws/a/b/plan.txt", "ws/.hidden/plan.txt", "ws/plam.txt", "docs/deep/how.md"):
        (tmp_path / name).write_text("x")
    (tmp_path / "ws" / "away").symlink_to(tmp_path / "docs")
    files = LocalFiles(tmp_path / "ws", readable=[tmp_path / "docs"])
    for missing in ("plan.txt", "src/plan.txt", "./plan.txt"):
        with pytest.raises(ToolFailure) as failure:
            await files.stat(missing)
        assert failure.value.message.endswith("Did you mean 'a/b/plan.txt'?"), missing
    (tmp_path / "ws" / "a" / "b" / "plan.txt").unlink()
    with pytest.raises(ToolFailure, match=r"Did you mean 'plam.txt'\?"):
        await files.stat("plan.txt")
    with pytest.raises(ToolFailure, match="List the folder"):
        await files.stat("how.md")
    with pytest.raises(ToolFailure, match=f"Did you mean '{tmp_path}/docs/deep/how.md'"):
        await files.stat(str(tmp_path / "docs" / "how.md"))


async def test_only_so_many_names_are_searched_for_a_missing_path(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "plan.txt").write_text("x")
    with pytest.raises(ToolFailure, match="Did you mean 'sub/plan.txt'"):
        await LocalFiles(tmp_path).stat("plan.txt")
    for number in range(MAX_SEARCHED_NAMES):
        (tmp_path / f"{number:05}").touch()
    with pytest.raises(ToolFailure) as failure:
        await LocalFiles(tmp_path).stat("plan.txt")
    assert "sub/plan.txt" not in failure.value.message


async def test_files_are_removed_only_in_writable_roots(tmp_path: Path) -> None:
    for name in ("ws", "docs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    files = LocalFiles(tmp_path / "ws", readable=[tmp_path / "docs"])
    with pytest.raises(ToolFailure) as failure:
        await files.remove(str(tmp_path / "docs" / "f"))
    assert failure.value.kind is ErrorKind.PERMISSION_DENIED
    await files.remove(str(tmp_path / "ws" / "f"))

    assert names_in(tmp_path / "ws") == [] and names_in(tmp_path / "docs") == ["f"]


async def test_fault_38_pipes_sockets_and_devices_are_refused_without_hanging(
    files: LocalFiles, tmp_path: Path
) -> None:
    root = tmp_path / "ws"
    os.mkfifo(root / "fifo")
    if os.geteuid() == 0:
        os.mknod(root / "device", 0o666 | stat.S_IFCHR, os.makedev(1, 5))

    for path in ("fifo", "device") if os.geteuid() == 0 else ("fifo",):
        assert await refused(files, path) is ErrorKind.PERMISSION_DENIED
        assert await write_refused(files, path) is ErrorKind.PERMISSION_DENIED
        assert (await files.stat(path)).kind == "other"


@pytest.fixture
def mounted(tmp_path: Path) -> Generator[Path]:
    """A folder in the workspace that is really another one, outside."""
    point = tmp_path / "ws" / "mounted"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("outside")
    point.mkdir(parents=True)
    mount("--bind", str(outside), str(point))
    yield point
    subprocess.run(["umount", str(point)], check=True)


async def test_fault_38_a_bind_mount_is_not_part_of_the_workspace(
    mounted: Path, tmp_path: Path
) -> None:
    files = LocalFiles(mounted.parent)

    assert await refused(files, "mounted/f") is ErrorKind.PERMISSION_DENIED
    assert await write_refused(files, "mounted/g") is ErrorKind.PERMISSION_DENIED
    assert [entry.path async for entry in files.walk()] == ["mounted"]
    allowed = LocalFiles(mounted.parent, mounts=True)
    assert await allowed.read("mounted/f") == b"outside"


async def test_fault_38_swapping_a_symlink_between_check_and_use_never_escapes(
    files: LocalFiles, tmp_path: Path
) -> None:
    root = tmp_path / "ws"
    (root / "link").symlink_to("..")
    stop = threading.Event()

    def swap() -> None:
        rename = ctypes.CDLL(None).renameat2
        names = [bytes(root / name) for name in ("folder", "link")]
        while not stop.is_set():
            # Exchanges the two in one step: the strongest form of the attack.
            rename(-100, names[0], -100, names[1], 2)

    (tmp_path / "inner.txt").write_text("outside")
    swapping = threading.Thread(target=swap)
    swapping.start()
    seen: set[bytes] = set()
    try:
        for _ in range(300):
            try:
                seen.add(await files.read("folder/inner.txt"))
            except ToolFailure as failure:
                seen.add(failure.kind.encode())
            try:
                await files.write("folder/inner.txt", b"inner")
            except ToolFailure as failure:
                seen.add(failure.kind.encode())
    finally:
        stop.set()
        swapping.join()

    assert (tmp_path / "inner.txt").read_text() == "outside"
    assert b"outside" not in seen and b"inner" in seen


@pytest.mark.parametrize(
    "name",
    [
        "~",
        "~root",
        "$HOME",
        "${HOME}",
        "%2e%2e",
        "%2e%2e%2fsecret.txt",
        "..%c0%af..",
        "\uff0e\uff0e",
        "..\\secret.txt",
        "trailing.",
        "trailing ",
        "...",
        "-rf",
        "a;rm -rf x",
        "$(id)",
        "`id`",
        "a|b",
        "new\nline",
    ],
)
async def test_fault_39_and_40_odd_names_are_taken_literally(
    files: LocalFiles, tmp_path: Path, name: str
) -> None:
    await files.write(name, b"literal")

    assert name in names_in(tmp_path / "ws")
    assert await files.read(name) == b"literal"


PIECES = [
    "..",
    ".",
    "/",
    "//",
    "~",
    "$HOME",
    "%2e",
    "%2f",
    "\\",
    "\0",
    "\udc80",
    "\ud800",
    " ",
    "a",
]
SPELLINGS = st.lists(st.sampled_from([*PIECES, "folder", "out", "secret.txt"]), max_size=9)


@settings(max_examples=examples(300), deadline=None)
@given(path=SPELLINGS.map("".join))
def test_fault_39_no_path_spelling_reaches_outside_the_root(
    path: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    above = tmp_path_factory.getbasetemp() / "spellings"
    root = above / "ws"
    if not root.exists():
        (root / "folder").mkdir(parents=True)
        (root / "out").symlink_to("..")
        (above / "secret.txt").write_text("secret")
    files = LocalFiles(root)

    async def attack() -> None:
        with suppress(ToolFailure):
            await files.write(path, b"attack")
        with suppress(ToolFailure):
            assert await files.read(path) == b"attack"

    asyncio.run(attack())

    assert sorted(names_in(above)) == ["secret.txt", "ws"]
    assert (above / "secret.txt").read_text() == "secret"


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, "x" * 300, "a/" * 2100, "\ud800"])
async def test_fault_39_invalid_paths_are_refused(files: LocalFiles, path: str) -> None:
    assert await refused(files, path) is ErrorKind.INVALID_PARAMS
    assert await write_refused(files, path) is ErrorKind.INVALID_PARAMS


@pytest.fixture
def small(tmp_path: Path) -> Generator[Path]:
    """A disk that is soon full."""
    point = tmp_path / "small"
    point.mkdir()
    mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(point))
    yield point
    subprocess.run(["umount", str(point)], check=True)


async def test_a_full_disk_is_reported_and_the_old_file_is_unchanged(small: Path) -> None:
    files = LocalFiles(small)
    await files.write("f", b"old")

    with pytest.raises(ToolFailure) as full:
        await files.write("f", b"x" * 200_000)

    assert "nothing was changed" in full.value.message
    assert await files.read("f") == b"old"
    assert names_in(small) == ["f"]


async def test_a_single_readable_file_opens_nothing_else_of_its_folder(tmp_path: Path) -> None:
    work, etc = tmp_path / "work", tmp_path / "etc"
    work.mkdir()
    etc.mkdir()
    (etc / "real").write_text("raspberrypi\n")
    (etc / "hostname").symlink_to("real")
    (etc / "shadow").write_text("secret")
    files = LocalFiles(work, readable=[etc / "hostname"])
    assert await files.read(str(etc / "hostname")) == b"raspberrypi\n"
    assert await files.read(str(etc / "real")) == b"raspberrypi\n"
    for path in (etc, etc / "shadow", etc / "hostname" / "..", etc / "hostname" / "x"):
        assert await refused(files, str(path)) is ErrorKind.PERMISSION_DENIED
    assert await write_refused(files, str(etc / "hostname")) is ErrorKind.PERMISSION_DENIED
    (etc / "real").unlink()
    assert await refused(files, str(etc / "hostname")) is ErrorKind.NOT_FOUND


async def test_a_single_readable_file_may_be_a_mount_point(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    named, other = tmp_path / "hostname", tmp_path / "other"
    named.touch()
    other.write_text("mounted")
    mount("--bind", str(other), str(named))
    try:
        files = LocalFiles(tmp_path / "work", readable=[named])
        assert await files.read(str(named)) == b"mounted"
    finally:
        unmount(named)
