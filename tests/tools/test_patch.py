"""`apply_patch`: both forms, all or nothing, and what no patch may do."""

from __future__ import annotations

import asyncio
import difflib
import os
import random
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.tools.fake import FakeOps
from evoclaw.tools.patch.apply_patch import MAX_PATCH_CHARS, apply_patch, parse_patch
from evoclaw.tools.patch.hunk_location import HunkSearchBudget, apply_hunks
from tests.support.tool_calls import use

TEN = "".join(f"{number}\n" for number in range(1, 11))


def update(body: str, path: str = "f") -> str:
    return f"--- a/{path}\n+++ b/{path}\n{body}"


def begin(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch", ""])


async def patched(files: dict[str, str | bytes], patch: str) -> dict[str, bytes]:
    ops = FakeOps(files)
    await use(apply_patch, ops, patch=patch)
    return ops.files


async def refused(files: dict[str, str | bytes], patch: str) -> ToolFailure:
    ops = FakeOps(files)
    before = dict(ops.files)
    with pytest.raises(ToolFailure) as failure:
        await use(apply_patch, ops, patch=patch)
    assert ops.files == before
    return failure.value


def git(folder: Path, *arguments: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    names = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "core.autocrlf=false")
    done = subprocess.run(
        ["git", *names, *arguments], cwd=folder, env=environment, capture_output=True, timeout=20
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.decode()


def diff_of_folders(folder: Path) -> str:
    command = ["diff", "-ruN", "a", "b"]
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=20).stdout.decode()


def tree_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    }


async def test_a_unified_diff_updates_adds_and_deletes_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(TEN)
    (tmp_path / "gone").write_text("x\ny\n")
    patch = (
        update("@@ -1,3 +1,4 @@ about\n 1\n-2\n+two\n+2½\n 3\n@@ -10 +11 @@\n-10\n+ten\n")
        + "--- /dev/null\n+++ b/new/n.txt\n@@ -0,0 +1 @@\n+hello\n"
        + "--- a/gone\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-x\n-y\n"
    )
    dry = await use(apply_patch, tmp_path, patch=patch, dry_run=True)
    assert "would change 3 files, +4 -4" in dry.text and "Nothing was written" in dry.text
    assert (tmp_path / "f").read_text() == TEN and not (tmp_path / "new").exists()

    done = await use(apply_patch, tmp_path, patch=patch)

    changed = TEN.replace("2\n", "two\n2½\n", 1).replace("10\n", "ten\n")
    assert tree_of(tmp_path) == {"f": changed.encode(), "new/n.txt": b"hello\n"}
    assert done.text.splitlines() == [
        *("Patched 3 files, +4 -4.", "M f +3 -2", "A new/n.txt +1 -0", "D gone +0 -2")
    ]
    assert done.details["files"] == dry.details["files"]
    assert done.details["files"][2] == {
        **{"path": "gone", "action": "delete", "lines_added": 0, "lines_removed": 2}
    }
    assert (done.details["lines_added"], done.details["lines_removed"]) == (4, 4)


async def test_a_begin_patch_updates_adds_deletes_and_moves_files() -> None:
    method = "    def f(self):\n        return 1\n"
    code = f"class A:\n{method}\nclass B:\n{method}"
    patch = begin(
        *("*** Update File: a.py", "*** Move to: lib/a.py", "@@ class B:", "@@ def f(self):"),
        *("-        return 1", "+        return 2", "", "*** Add File: new", "+one", "+", "+two"),
        *("*** Delete File: old", "*** Update File: end", " last", "+more", "*** End of File"),
    )
    files = await patched({"a.py": code, "old": "x", "end": "last\nlast\n"}, patch)

    assert files == {
        "lib/a.py": b"return 2".join(code.encode().rsplit(b"return 1", 1)),
        "new": b"one\n\ntwo\n",
        "end": b"last\nlast\nmore\n",
    }


async def test_an_ambiguous_hunk_is_refused_unless_an_anchor_locates_it() -> None:
    files: dict[str, str | bytes] = {"f": "[a]\nx = 1\n[b]\nx = 1\n"}
    hunk = ("-x = 1", "+x = 2")

    failure = await refused(files, begin("*** Update File: f", *hunk))
    assert "hunk 1" in failure.message and "line 2 and at line 4" in failure.message
    done = await patched(files, begin("*** Update File: f", "@@ [b]", *hunk))
    assert done["f"] == b"[a]\nx = 1\n[b]\nx = 2\n"
    failure = await refused(files, begin("*** Update File: f", "@@ [c]", *hunk))
    assert "'[c]'" in failure.message
    again: dict[str, str | bytes] = {"f": "[b]\nx = 1\n[b]\nx = 1\n"}
    assert (
        "ambiguous" in (await refused(again, begin("*** Update File: f", "@@ [b]", *hunk))).message
    )
    done = await patched(files, begin("*** Update File: f", "@@ [b]", "+y = 1"))
    assert done["f"] == b"[a]\nx = 1\n[b]\ny = 1\nx = 1\n"
    failure = await refused(files, begin("*** Update File: f", "+y = 1"))
    assert "only new lines" in failure.message


@pytest.mark.parametrize(
    ("said", "where"), [(2, 3), (4, 3), (1, 3), (6, 7), (9, 7), (400, 7), (3, 3), (7, 7)]
)
async def test_a_hunk_is_applied_at_the_nearest_match_and_reported(said: int, where: int) -> None:
    ops = FakeOps({"f": "a\nb\nx\nc\nd\ne\nx\nf\n"})
    done = await use(apply_patch, ops, patch=update(f"@@ -{said} +{said} @@\n-x\n+y\n"))

    lines = ops.files["f"].decode().splitlines()
    assert [number for number, line in enumerate(lines, 1) if line == "y"] == [where]
    assert ("found" in done.text) == (said != where)


async def test_two_equally_near_matches_are_refused() -> None:
    failure = await refused({"f": "x\na\nb\nc\nx\n"}, update("@@ -3 +3 @@\n-x\n+y\n"))
    assert failure.kind is ErrorKind.INVALID_PARAMS and "2 lines above" in failure.message


async def test_later_hunks_follow_the_offset_of_earlier_hunks() -> None:
    text = "new\n" * 3 + "".join(f"{n}\nsame\n" for n in range(20))
    patch = update("@@ -1,2 +1,2 @@\n-0\n+zero\n same\n@@ -12 +12 @@\n-same\n+here\n")
    done = (await patched({"f": text}, patch))["f"].decode().splitlines()
    assert done[3] == "zero" and done.index("here") == 14


@pytest.mark.parametrize(
    ("old", "patch", "new"),
    [
        ("a\nb", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n", "a\nb\n"),
        ("a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n+b\n\\ No newline at end of file\n", "a\nb"),
        ("a\nb", "@@ -1,2 +1,2 @@\n-a\n+A\n b\n\\ No newline at end of file\n", "A\nb"),
        ("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n", "a\r\nc\r\n"),
        ("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "a\r\nc\r\n"),
        ("a\r\nb\r\nc\n", "@@ -3 +3 @@\n-c\n+d\n", "a\r\nb\r\nd\n"),
        ("a\n\nb\n", "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", "a\n\nc\n"),
        ("a\nb\n", "@@ -1,0 +2 @@\n+x\n", "a\nx\nb\n"),
        ("a\n", "@@ -0,0 +1 @@\n+x\n", "x\na\n"),
        ("a\n-- x\n", "@@ -1,2 +1,2 @@\n a\n--- x\n+++ x\n", "a\n++ x\n"),
        ("a\fb\vc\x85d\u2028\n", "@@ -1 +1 @@\n-a\fb\vc\x85d\u2028\n+e\n", "e\n"),
    ],
)
async def test_line_endings_of_the_file_and_the_patch_are_kept(
    old: str, patch: str, new: str
) -> None:
    assert await patched({"f": old}, update(patch)) == {"f": new.encode()}


async def test_a_patch_with_crlf_throughout_is_read_as_lf() -> None:
    patch = update("@@ -1 +1 @@\n-a\n+b\n").replace("\n", "\r\n")
    assert await patched({"f": "a\n"}, patch) == {"f": b"b\n"}
    assert await patched({"f": "a\r\n"}, patch) == {"f": b"b\r\n"}
    patch = begin("*** Update File: f", "-a", "+b").replace("\n", "\r\n")
    assert await patched({"f": "a\n"}, patch) == {"f": b"b\n"}


@pytest.mark.parametrize(
    ("old", "new"), [("a\nb", "a\nc"), ("a\r\nb\r\n", "a\r\nc\r\n"), ("a\r\nb", "a\r\nc")]
)
async def test_a_begin_patch_uses_the_line_endings_of_the_file(old: str, new: str) -> None:
    patch = begin("*** Update File: f", " a", "-b", "+c")
    assert await patched({"f": old}, patch) == {"f": new.encode()}
    patch = begin("*** Update File: f", "@@ -7,2 +7,2 @@", " a", "-b", "+c", "*** End of File")
    assert await patched({"f": old}, patch) == {"f": new.encode()}


async def test_invalid_utf8_outside_the_hunk_is_preserved() -> None:
    files = await patched({"f": b"\xff\xfe\na\n\x80\n"}, update("@@ -2 +2 @@\n-a\n+b\n"))
    assert files["f"] == b"\xff\xfe\nb\n\x80\n"


async def test_a_hunk_that_does_not_match_names_the_differing_line() -> None:
    body = "@@ -4,3 +4,3 @@\n 4\n-five\n+V\n 6\n"
    failure = await refused({"f": TEN}, update("@@ -1 +1 @@\n-1\n+I\n" + body))

    assert "'f', hunk 2 (@@ -4,3 +4,3 @@) does not fit" in failure.message
    assert "line 5 of the file is '5', where the patch has 'five'" in failure.message
    assert "Read the file again" in failure.message and "Nothing was written" in failure.message


@pytest.mark.parametrize(
    ("old", "body", "said"),
    [
        ("a\n", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n", "newline"),
        ("a", "@@ -1 +1 @@\n-a\n+b\n", "newline"),
        ("", "@@ -1 +1 @@\n-a\n+b\n", "not in the file"),
        ("a\n", "@@ -5,0 +6 @@\n+b\n", "ends before line 5"),
        ("a", "@@ -1,0 +2 @@\n+b\n", "ends before line 1"),
        ("a \n", "@@ -1 +1 @@\n-a\n+b\n", "line 1 of the file is 'a ', where the patch has 'a'"),
        ("a\n", "@@ -1 +1 @@\n-a\r\n+b\n", "only the line endings differ"),
        ("1\n2\n", "@@ -1 +1 @@\n-2\n+b\n@@ -2 +2 @@\n-1\n+c\n", "not below the hunk before"),
        ("a\n", "@@ -1 +1 @@\n-a\n+a\n", "changes nothing"),
    ],
)
async def test_a_hunk_that_does_not_match_exactly_is_refused(
    old: str, body: str, said: str
) -> None:
    assert said in (await refused({"f": old}, update(body))).message


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ("", "no change"),
        ("hello", "no change"),
        ("fix.diff", "If the patch is in a file, read it and give its text"),
        ("@@ -1 +1 @@\n-a\n+b\n", "starts a hunk"),
        (update("@@ -1,2 +1,2 @@\n-a\n+b\n"), "cut off"),
        (update("@@ -1 +1 @@\n-a\n+b\n+c\n"), "correct the counts"),
        (update("@@ -1 +1 @@\n-a\n+b\n-c\n"), "correct the counts"),
        (update("@@ -1,2 +1,2 @@\n a\n@@ -9 +9 @@\n-a\n+b\n"), "correct the counts"),
        (update("nothing\n"), "No hunk follows"),
        (
            update("@@ -2 +2 @@\n-b\n+c\n\\ No newline at end of file\n@@ -3,0 +3 @@\n+x\n"),
            "order",
        ),
        (begin("*** Update File: open", "-b", "+c", "@@ -0,0 +1 @@", "+x"), "ends before"),
        (update("@@ -5 +5 @@\n-a\n+b\n@@ -1 +1 @@\n-a\n+b\n"), "order"),
        ("*** Begin Patch\n*** Update File: f\n-a\n+b\n", "send all of it"),
        (begin("*** Update File: f", "a"), "must start with"),
        (begin("*** Update File: f"), "changes nothing in"),
        (begin("*** Update File: f", "@@", " a"), "changes nothing. Write '-' before each line"),
        (begin("*** Update File: new", "@@", "+a"), "creates a file with '*** Add File: '"),
        (begin("*** Add File: n", "text"), "start with '+'"),
        (begin("*** Rename File: f"), "expected"),
        (begin("*** Delete File: f") + "more", "after '*** End Patch'"),
        (update("@@ -1 +1 @@\n-a\n+\ud800\n"), "surrogates"),
        ('--- "a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n', "closing quote"),
        ("--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "does not have all its lines"),
        ("--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\n", "a file of that name exists"),
        (begin("*** Add File: f", "+a"), "a file of that name exists"),
        (begin("*** Add File: folder", "+a"), "a folder of that name exists"),
        (begin("*** Update File: f", "*** Move to: folder/x"), "a file of that name exists"),
        ("diff --git a/f b/f\nold mode 100644\nnew mode 100755\n", "only changes the file mode"),
        ("diff --git a/f b/g\ncopy from f\ncopy to g\n", "copies a file"),
    ],
)
async def test_an_invalid_patch_is_refused(patch: str, said: str) -> None:
    assert said in (await refused({"f": "a\nb\n", "open": "b", "folder/x": ""}, patch)).message


async def test_a_patch_of_a_missing_file_suggests_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("a\n")
    with pytest.raises(ToolFailure, match=r"mian\.py.*main\.py") as failure:
        await use(apply_patch, tmp_path, patch=update("@@ -1 +1 @@\n-a\n+b\n", "mian.py"))
    assert failure.value.kind is ErrorKind.NOT_FOUND


@pytest.mark.parametrize(
    "path",
    [
        *("../x", "a/../../x", "a/../f", "/etc/passwd", "/f", "..", "a\x01b", " ", "folder/"),
        *(".git/config", ".git/hooks/post-commit", "sub/.git/x", ".GIT/x", ".git./x", ".git"),
        *("x" * 5000, "~/../x"),
    ],
)
async def test_fault_43_a_patch_cannot_touch_outside_paths_or_the_git_folder(path: str) -> None:
    files: dict[str, str | bytes] = {"f": "a\n", ".git/config": "a\n"}
    hunk = "@@ -1 +1 @@\n-a\n+b\n"
    for patch in (
        f"--- a/{path}\n+++ b/{path}\n{hunk}",
        f"--- a/f\n+++ b/f\n{hunk}--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n",
        f"--- a/{path}\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
        f"diff --git a/f b/z\nrename from f\nrename to {path}\n",
        f"diff --git a/f b/z\nrename from {path}\nrename to z\n",
        begin("*** Update File: f", "-a", "+b", f"*** Add File: {path}", "+x"),
        begin(f"*** Delete File: {path}"),
        begin("*** Update File: f", f"*** Move to: {path}", "-a", "+b"),
    ):
        failure = await refused(files, patch)
        assert failure.kind in (ErrorKind.PERMISSION_DENIED, ErrorKind.INVALID_PARAMS), patch
        assert len(failure.message) < 1000


@pytest.mark.parametrize(
    "patch",
    [
        "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n"
        "+/etc/passwd\n\\ No newline at end of file\n",
        "diff --git a/f b/f\nindex 1..2 120000\n" + update("@@ -1 +1 @@\n-a\n+/etc\n"),
        "diff --git a/f b/f\nold mode 100644\nnew mode 120000\n" + update("@@ -1 +1 @@\n-a\n+b\n"),
        "diff --git a/s b/s\nnew file mode 160000\n--- /dev/null\n+++ b/s\n@@ -0,0 +1 @@\n+x\n",
        "diff --git a/b b/b\nindex 1..2 100644\nGIT binary patch\nliteral 1\nA\n",
        "diff --git a/b b/b\nindex 1..2 100644\nBinary files a/b and b/b differ\n",
    ],
)
async def test_fault_43_symlinks_submodules_and_binary_patches_are_refused(patch: str) -> None:
    failure = await refused({"f": "a\n", "b": b"\0", "g": "x\n"}, patch)
    assert failure.kind is ErrorKind.PERMISSION_DENIED
    more = patch + update("@@ -1 +1 @@\n-x\n+y\n", "g")
    assert (await refused({"f": "a\n", "g": "x\n"}, more)).kind is ErrorKind.PERMISSION_DENIED


async def test_fault_43_a_patch_naming_a_file_twice_is_refused() -> None:
    hunk = "@@ -1 +1 @@\n-a\n+b\n"
    for patch in (
        update(hunk) + update(hunk),
        update(hunk) + update(hunk, "./f"),
        update(hunk) + update(hunk, "x//f").replace("x/", ""),
        begin("*** Update File: f", "-a", "+b", "*** Delete File: f"),
        begin("*** Update File: f", "*** Move to: g", "*** Add File: g", "+x"),
        begin("*** Update File: f", "*** Move to: f", "-a", "+b"),
    ):
        assert (await refused({"f": "a\n"}, patch)).kind in (
            ErrorKind.INVALID_PARAMS,
            ErrorKind.PERMISSION_DENIED,
        )


async def test_fault_43_giant_patches_and_files_are_refused_at_once() -> None:
    began = time.process_time()
    giant = update("@@ -1 +1 @@\n-a\n+b\n") + "+" * (100 << 20)
    assert (await refused({"f": "a\n"}, giant)).kind is ErrorKind.TOO_LARGE
    assert time.process_time() - began < 2
    many = begin(*(line for n in range(300) for line in (f"*** Add File: {n}", "+x")))
    assert (await refused({}, many)).kind is ErrorKind.TOO_LARGE
    large = {"f": b"a\n" * (6 << 20)}
    patch = update("@@ -1 +1 @@\n-a\n+b\n")
    assert (await refused({**large}, patch)).kind is ErrorKind.TOO_LARGE
    assert "NUL" in (await refused({"f": "a\n"}, update("@@ -1 +1 @@\n-a\n+\0\n"))).message


async def test_fault_38_a_patch_follows_no_symlink(tmp_path: Path) -> None:
    (tmp_path / "ws" / "real").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    for path in ("ws/f", "ws/real/f", "out/f"):
        (tmp_path / path).write_text("a\n")
    (tmp_path / "ws" / "link").symlink_to("real/f")
    (tmp_path / "ws" / "away").symlink_to(tmp_path / "out")
    os.mkfifo(tmp_path / "ws" / "fifo")
    hunk = "@@ -1 +1 @@\n-a\n+b\n"
    for path in ("link", "away/f", "fifo"):
        for patch in (
            update(hunk) + update(hunk, path),
            begin("*** Update File: f", "-a", "+b", f"*** Delete File: {path}"),
            begin("*** Update File: f", "-a", "+b", "*** Add File: away/new", "+x"),
        ):
            with pytest.raises(ToolFailure) as failure:
                await use(apply_patch, tmp_path / "ws", patch=patch)
            assert failure.value.kind is ErrorKind.PERMISSION_DENIED
            assert tree_of(tmp_path / "out") == {"f": b"a\n"}
            assert (tmp_path / "ws" / "f").read_text() == "a\n"
            assert (tmp_path / "ws" / "real" / "f").read_text() == "a\n"


class Failing(FakeOps):
    """Fails at the n-th change of a file, and perhaps at every later one."""

    def __init__(self, files: dict[str, str | bytes], at: int, *, for_good: bool = False) -> None:
        super().__init__(files)
        self.at, self.for_good = at, for_good
        self.waiting: asyncio.Event | None = None
        self.released = asyncio.Event()
        self.changes = 0

    async def _count(self, path: str) -> None:
        self.changes += 1
        if self.changes == self.at and self.waiting is not None:
            self.waiting.set()
            await self.released.wait()
        elif self.changes == self.at or (self.for_good and self.changes > self.at):
            raise ToolFailure(ErrorKind.EXECUTION_FAILED, f"'{path}': No space left on device.")

    async def write(self, path: str, data: bytes) -> None:
        await self._count(path)
        await super().write(path, data)

    async def remove(self, path: str) -> None:
        await self._count(path)
        await super().remove(path)


FOUR: dict[str, str | bytes] = {"f": "a\n", "gone": "x\n", "moved": "m\n", "g": "a\n"}
FOUR_PATCH = begin(
    *("*** Update File: f", "-a", "+b", "*** Delete File: gone", "*** Add File: new", "+n"),
    *("*** Update File: moved", "*** Move to: there", "-m", "+M", "*** Update File: g", "-a", "+b"),
)


@pytest.mark.parametrize("at", range(1, 7))
async def test_a_failure_while_applying_a_patch_rolls_back_all_files(at: int) -> None:
    ops = Failing(FOUR, at)
    before = dict(ops.files)
    with pytest.raises(ToolFailure) as failure:
        await use(apply_patch, ops, patch=FOUR_PATCH)

    assert ops.files == before
    assert "No space left" in failure.value.message
    assert "Nothing of the patch was kept" in failure.value.message
    assert (f"The {at - 1} files written so far were restored" in failure.value.message) == (at > 1)


async def test_a_failed_rollback_is_reported() -> None:
    ops = Failing(FOUR, 3, for_good=True)
    with pytest.raises(ToolFailure) as failure:
        await use(apply_patch, ops, patch=FOUR_PATCH)

    assert ops.files["f"] == b"b\n" and ops.files["new"] == b"n\n"
    assert "could NOT be restored" in failure.value.message
    assert "'f'" in failure.value.message and "'new'" in failure.value.message
    assert "kept" not in failure.value.message
    assert len(failure.value.details["not_restored"]) == 2


@pytest.mark.parametrize("at", range(1, 7))
async def test_a_cancelled_patch_is_rolled_back(at: int) -> None:
    ops = Failing(FOUR, at)
    ops.waiting = asyncio.Event()
    before = dict(ops.files)
    task = asyncio.create_task(use(apply_patch, ops, patch=FOUR_PATCH))
    async with asyncio.timeout(30):
        await ops.waiting.wait()
        task.cancel()
        await asyncio.sleep(0)
        ops.released.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert ops.files == before
    assert ops.changes == 2 * at


async def test_a_patch_cannot_replace_a_file_by_a_folder(tmp_path: Path) -> None:
    for name in ("f", "g"):
        (tmp_path / name).write_text("a\n")
    for last in (("*** Add File: g/below", "+x"), ("*** Update File: g", "*** Move to: g/h")):
        patch = begin("*** Update File: f", "-a", "+b", *last)
        with pytest.raises(ToolFailure):
            await use(apply_patch, tmp_path, patch=patch)
        assert tree_of(tmp_path) == {"f": b"a\n", "g": b"a\n"}
        assert (await refused({"f": "a\n", "g": "a\n"}, patch)).message


def times(work: str, patch: str) -> float:
    began = time.process_time()
    try:
        for change in parse_patch(patch):
            apply_hunks(work.encode(), change.hunks, "f", HunkSearchBudget())
    except ToolFailure as failure:
        assert failure.message
    return time.process_time() - began


@pytest.mark.slow
def test_hostile_patches_take_bounded_time() -> None:
    same = "a\n" * (4 << 20)
    many = MAX_PATCH_CHARS // 160
    spread = "".join(f"@@ -{2 * n} +{2 * n} @@\n-a\n+b\n" for n in range(1, many))
    assert times(same, update(spread)) < 5
    absent = "".join(f"@@ -{9 * n},2 +{9 * n} @@\n a\n-c\n" for n in range(1, many))
    assert times(same + "c\na\n", update(absent)) < 5
    long = "".join(" a\n" for _ in range(MAX_PATCH_CHARS // 4))
    size = MAX_PATCH_CHARS // 4
    assert times(same + "c\n", update(f"@@ -9,{size + 1} +9,{size} @@\n{long}-c\n")) < 5
    half = "a\n" * 1000 + "b\n"
    wrong = "".join(f"@@ -{10**6 - 1 + n} +{10**6 - 1 + n} @@\n-b\n+c\n" for n in range(20_000))
    assert times(half * 2000, update(wrong)) < 5
    anchored = begin("*** Update File: f", *["@@ a", "-a", "+b"] * (many // 2))
    assert times(same, anchored) < 5
    assert times("", begin("*** Update File: f", *[""] * 200_000, "x")) < 5


def test_a_patch_that_needs_too_much_searching_is_refused() -> None:
    lines = [f"line {number}\n" for number in range(20_000)]
    hunks = [part for line in lines for part in (f"-{line.strip()}", "+new")]
    (change,) = parse_patch(begin("*** Update File: f", *hunks))
    apart = [part for line in lines[::2] for part in ("@@", f"-{line.strip()}", "+new")]
    (slow,) = parse_patch(begin("*** Update File: f", *apart))
    data = "".join(lines).encode() + b"padding\n" * (1 << 20)

    assert apply_hunks(data, change.hunks, "f", HunkSearchBudget()).data.startswith(
        b"new\n" * 20_000
    )
    with pytest.raises(ToolFailure, match="takes too long"):
        apply_hunks(data, slow.hunks, "f", HunkSearchBudget())


texts = st.lists(st.text(st.sampled_from("ab \r\f\u2028é+-@\\"), max_size=3), max_size=12).flatmap(
    lambda lines: st.sampled_from(["\n".join(lines), "\n".join([*lines, ""])])
)


def split(text: str) -> list[str]:
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def diff(old: str, new: str, context: int) -> str:
    lines = difflib.unified_diff(split(old), split(new), "a/f", "b/f", n=context)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


@given(old=texts, new=texts, context=st.integers(1, 4))
def test_applying_the_diff_of_two_texts_gives_the_new_text(
    old: str, new: str, context: int
) -> None:
    if old == new:
        return
    (change,) = parse_patch(diff(old, new, context))

    assert apply_hunks(old.encode(), change.hunks, "f", HunkSearchBudget()).data.decode() == new


@given(old=texts, new=texts, above=texts)
def test_lines_added_above_matter_only_if_the_hunk_becomes_ambiguous(
    old: str, new: str, above: str
) -> None:
    if old == new or not old:
        return
    above = "".join(f"~{line}\n" for line in above.split("\n"))
    (change,) = parse_patch(diff(old, new, 100))
    try:
        made = apply_hunks((above + old).encode(), change.hunks, "f", HunkSearchBudget())
    except ToolFailure as failure:
        assert "lines above and" in failure.message
    else:
        assert made.data.decode() == above + new


def scrambled(seed: int, folder: Path, ending: str) -> None:
    """A tree of files that another seed makes a bit different."""
    chance = random.Random(seed)
    for name in ("plain.txt", "with space.txt", "ünï.txt", 'quo"te\\.txt', "deep/er/f.txt"):
        if chance.random() < 0.2:
            continue
        lines = [f"{n} {'x' * (n % 7)}" for n in range(60) if chance.random() < 0.9]
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = ending.join(lines) + (ending if chance.random() < 0.5 else "")
        path.write_bytes(text.encode() if chance.random() < 0.9 else b"")


@pytest.mark.process
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("seed", range(6))
async def test_applying_git_diff_of_two_trees_gives_the_new_tree(
    tmp_path: Path, seed: int, ending: str
) -> None:
    for name, number in (("a", seed), ("b", seed + 1000)):
        (tmp_path / name).mkdir()
        scrambled(number, tmp_path / name, ending)
    options = ("--no-index", "--no-prefix", "--no-renames")
    for context in ("-U3", "-U1", "-U0"):
        patch = git(tmp_path, "diff", *options, context, "a", "b")
        ops = FakeOps({**tree_of(tmp_path / "a")})
        await use(apply_patch, ops, patch=patch)
        assert ops.files == tree_of(tmp_path / "b"), context


@pytest.mark.process
@pytest.mark.parametrize("seed", range(4))
async def test_a_git_commit_diff_is_applied_with_its_renames(tmp_path: Path, seed: int) -> None:
    scrambled(seed, tmp_path, "\n")
    (tmp_path / "old name").write_text(TEN * 3)
    (tmp_path / "script").write_text(TEN.replace("1", "one"))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    before = tree_of(tmp_path)
    for path in before:
        (tmp_path / path).unlink()
    scrambled(seed + 1000, tmp_path, "\n")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "näme").write_text(TEN * 3 + "11\n")
    (tmp_path / "moved").write_text(TEN.replace("1", "one"))
    (tmp_path / "moved").chmod(0o755)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "two\n\n--- not a header\n@@ nor this")
    for patch in (
        git(tmp_path, "diff", "-M", "HEAD~", "HEAD"),
        git(tmp_path, "format-patch", "--stdout", "-1", "-M"),
        git(tmp_path, "-c", "diff.mnemonicPrefix=true", "diff", "-M", "HEAD~", "HEAD"),
    ):
        assert "rename from" in patch
        ops = FakeOps({**before})
        done = await use(apply_patch, ops, patch=patch)
        assert ops.files == tree_of(tmp_path)
        assert "R old name -> new/näme +1 -0 (it has the file mode of a new file)" in done.text


@pytest.mark.process
async def test_a_recursive_diff_of_two_folders_is_applied(tmp_path: Path) -> None:
    for name, number in (("a", 3), ("b", 1003)):
        (tmp_path / name).mkdir()
        scrambled(number, tmp_path / name, "\n")
        (tmp_path / name / f"only-{name}").write_text("x\n")
    patch = diff_of_folders(tmp_path)
    ops = FakeOps({**tree_of(tmp_path / "a")})
    await use(apply_patch, ops, patch=patch)

    assert "only-a" in patch and "only-b" in patch
    assert ops.files == tree_of(tmp_path / "b")
