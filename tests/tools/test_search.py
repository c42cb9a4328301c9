from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.files import LocalFiles
from evoclaw.tools import tree_search
from evoclaw.tools.fake import FakeOps
from evoclaw.tools.search import glob, grep
from tests.support.tool_calls import use

FILES = {
    ".gitignore": "node_modules/\n*.pyc\n",
    "README.md": "# Hello\n",
    "node_modules/x/index.ts": "hello",
    "src/app.py": "import os\n\n\ndef hello():\n    return 'Hello'\n",
    "src/app.pyc": "hello",
    "src/lib/deep/util.py": "def util():\n    pass\n",
    "src/web/a.ts": "const hello = 1\n",
    "src/web/b.tsx": "const b = 1\n",
    "test.py": "assert True\n",
}


async def found(pattern: str, **more: Any) -> list[str]:
    return (await use(glob, FakeOps(FILES), pattern=pattern, **more)).text.splitlines()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.py", ["src/app.py", "src/lib/deep/util.py", "test.py"]),
        ("./*.py", ["test.py"]),
        ("src/*.py", ["src/app.py"]),
        ("src/**/*.py", ["src/app.py", "src/lib/deep/util.py"]),
        ("**/*.{ts,tsx}", ["src/web/a.ts", "src/web/b.tsx"]),
        ("{src,test}*", ["test.py"]),
        ("src/lib/**", ["src/lib/deep/util.py"]),
        ("s?c/[a-b]*.py", ["src/app.py"]),
        ("src/web/a.ts", ["src/web/a.ts"]),
        ("node_modules/**/*.ts", ["node_modules/x/index.ts"]),
    ],
)
async def test_glob_finds_by_pattern(pattern: str, expected: list[str]) -> None:
    assert await found(pattern) == expected


async def test_glob_searches_below_a_folder_and_can_list_folders(tmp_path: Path) -> None:
    assert await found("*.py", path="src/lib") == ["src/lib/deep/util.py"]
    assert await found("src/*", folders=True) == ["src/app.py", "src/lib/", "src/web/"]
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").touch()
    absolute = await use(glob, tmp_path, pattern="**/*.py", path=str(tmp_path / "src"))
    assert absolute.text == "src/a.py"


async def test_glob_in_another_root_shows_absolute_paths(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "docs" / "in").mkdir(parents=True)
    (tmp_path / "docs" / "in" / "a.md").write_text("needle")
    files = LocalFiles(tmp_path / "ws", readable=[tmp_path / "docs"])

    shown = await use(glob, files, pattern="in/*.md", path=str(tmp_path / "docs"))
    lines = await use(grep, files, pattern="needle", include="*.md", path=str(tmp_path / "docs"))

    assert shown.text == f"{tmp_path}/docs/in/a.md"
    assert lines.text == f"{tmp_path}/docs/in/a.md:1:needle"


async def test_glob_can_sort_by_newest_first(tmp_path: Path) -> None:
    for age, name in enumerate(("c", "a", "b")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))

    assert (await use(glob, tmp_path, pattern="*", order="newest")).text == "c\na\nb"
    first = await use(glob, tmp_path, pattern="*", order="newest", limit=1)
    assert first.text.startswith("c\n\n[Not everything")


async def test_glob_reports_truncated_and_empty_results() -> None:
    limited = await use(glob, FakeOps(FILES), pattern="*.py", limit=2)
    nothing = await use(glob, FakeOps(FILES), pattern="*.rs")

    assert limited.text.splitlines()[:2] == ["src/app.py", "src/lib/deep/util.py"]
    assert "more than 2 match" in limited.text and limited.details["complete"] is False
    assert nothing.text == "No file matches '*.rs'; .gitignore is respected."


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "a/../../b", "[abc", "x\\", ""])
async def test_glob_refuses_patterns_that_are_invalid_or_leave_the_root(pattern: str) -> None:
    with pytest.raises(ToolFailure) as failure:
        await use(glob, FakeOps(FILES), pattern=pattern)
    assert failure.value.kind is ErrorKind.INVALID_PARAMS


async def test_grep_shows_lines_files_or_counts() -> None:
    ops = FakeOps(FILES)

    lines = await use(grep, ops, pattern="hello|Hello")
    names = await use(grep, ops, pattern="hello", mode="files")
    counts = await use(grep, ops, pattern="hello", mode="count", ignore_case=True)

    assert lines.text.splitlines() == [
        "README.md:1:# Hello",
        "src/app.py:4:def hello():",
        "src/app.py:5:    return 'Hello'",
        "src/web/a.ts:1:const hello = 1",
    ]
    assert names.text.splitlines() == ["src/app.py", "src/web/a.ts"]
    assert counts.text.splitlines() == ["README.md:1", "src/app.py:2", "src/web/a.ts:1"]


async def test_grep_filters_files_and_shows_context() -> None:
    text = "".join(f"line {n}\n" for n in range(1, 21))
    ops = FakeOps({"a.txt": text, "b.md": text})

    shown = await use(grep, ops, pattern=r"line (3|5|15)$", include="*.txt", context=1)

    assert shown.text.splitlines() == [
        *("a.txt-2-line 2", "a.txt:3:line 3", "a.txt-4-line 4", "a.txt:5:line 5"),
        *("a.txt-6-line 6", "--", "a.txt-14-line 14", "a.txt:15:line 15", "a.txt-16-line 16"),
    ]
    one = await use(grep, ops, pattern="line 7", path="b.md")
    assert one.text == "b.md:7:line 7"


async def test_grep_works_on_windows_line_ends_and_line_anchors(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\r\ntwo\r\nlast")

    for pattern, line in (("^two$", "f:2:two"), ("last$", "f:3:last"), ("^one$", "f:1:one")):
        assert (await use(grep, tmp_path, pattern=pattern)).text == line


async def test_grep_matches_within_one_line_only(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a\nb\n")

    assert "Nothing matches" in (await use(grep, tmp_path, pattern=r"a\s+b")).text


async def test_grep_stops_at_its_limit_with_a_note() -> None:
    ops = FakeOps({"a": "x\n" * 50, "b": "x\n" * 50})

    shown = await use(grep, ops, pattern="x", limit=60)

    assert len([line for line in shown.text.splitlines() if ":" in line and line[0] in "ab"]) == 60
    assert "limit of 60" in shown.text


async def test_grep_skips_binary_files_and_truncates_long_lines(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"needle\0")
    (tmp_path / "long").write_bytes(
        b"x" * 3_000_000 + b" needle " + b"\xff" * 2_000_000 + b"\nneedle\n"
    )
    (tmp_path / "odd\udcff").write_text("needle\n")

    shown = await use(grep, tmp_path, pattern="needle")

    assert "binary" not in shown.text
    assert "more in this line]" in shown.text and len(shown.text) < 2_500
    assert "odd\ufffd:1:needle" in shown.text


async def test_grep_reports_correct_line_numbers_across_chunks(tmp_path: Path) -> None:
    lines = [f"row {n} " + "." * 90 for n in range(1, 40_001)]
    (tmp_path / "f").write_text("\n".join(lines))

    shown = await use(grep, tmp_path, pattern=r"^row (10485|20000|40000) ", context=1)

    numbers = [line.split(":")[1] for line in shown.text.splitlines() if line.startswith("f:")]
    assert numbers == ["10485", "20000", "40000"]
    assert "f-19999-row 19999 " in shown.text and "f-20001-row 20001 " in shown.text


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", r"(a)\1", "x{99999}"])
async def test_grep_explains_a_pattern_it_cannot_use(pattern: str) -> None:
    with pytest.raises(ToolFailure, match="RE2") as failure:
        await use(grep, FakeOps(FILES), pattern=pattern)
    assert failure.value.kind is ErrorKind.INVALID_PARAMS


async def test_a_missing_search_path_is_an_error() -> None:
    for bound in (glob, grep):
        with pytest.raises(ToolFailure) as failure:
            await use(bound, FakeOps(FILES), pattern="*" if bound is glob else "x", path="nowhere")
        assert failure.value.kind is ErrorKind.NOT_FOUND


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(a|aa)+$", "(.*a){20}$", "(x+x+)+y"])
async def test_fault_44_catastrophic_regexes_take_linear_time(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "f").write_text("a" * 50_000 + "!\n" + "x" * 50_000 + "\n")

    began = time.process_time()
    await use(grep, tmp_path, pattern=pattern)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("pattern", ["**/" * 500 + "*", "*a" * 1000, "{a,b}" * 700, "[!a]*" * 500])
async def test_fault_44_hostile_globs_take_linear_time(tmp_path: Path, pattern: str) -> None:
    (tmp_path / ("a" * 200)).touch()
    (tmp_path / ".gitignore").write_text("*a" * 100 + "b\n" + "**/" * 100 + "zz\n")

    began = time.process_time()
    try:
        await use(glob, tmp_path, pattern=pattern)
    except ToolFailure as failure:
        assert failure.kind is ErrorKind.INVALID_PARAMS
    assert time.process_time() - began < 2


async def test_fault_44_looping_symlinks_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "loop").symlink_to("..")
    (tmp_path / "a" / "f.py").write_text("needle")

    assert (await use(glob, tmp_path, pattern="**/*.py")).text == "a/f.py"
    assert (await use(grep, tmp_path, pattern="needle", mode="files")).text == "a/f.py"


async def test_fault_44_a_search_stops_at_its_entry_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_search, "MAX_ENTRIES", 50)
    ops = FakeOps({f"{n:03}": "x" for n in range(100)})

    shown = await use(glob, ops, pattern="*")

    assert shown.details == {"found": 50, "complete": False}
    assert "50 entries were visited" in shown.text


class Slow(FakeOps):
    """A machine whose every read takes a while, but for the first ones."""

    reads = 0

    async def read(self, path: str, *, start: int = 0, limit: int | None = None) -> bytes:
        self.reads += 1
        await asyncio.sleep(0.05 if self.reads > 20 else 0)
        return await super().read(path, start=start, limit=limit)


async def test_fault_44_a_search_returns_partial_results_before_its_timeout() -> None:
    ops = Slow({f"{n:03}": "needle" for n in range(300)})

    shown = await use(grep, ops, pattern="needle", limit=1000, timeout_ms=250)

    assert "the time limit was reached" in shown.text
    assert 0 < shown.details["found"] < 300


async def test_fault_40_and_41_patterns_and_paths_are_never_options_or_commands() -> None:
    ops = FakeOps({"-exec": "--upload-pack=x $(id)\n", "a\nb": "plain"})

    assert (await use(grep, ops, pattern=r"--upload-pack=x \$\(id\)")).text == (
        "-exec:1:--upload-pack=x $(id)"
    )
    assert (await use(glob, ops, pattern="-exec")).text == "-exec"
