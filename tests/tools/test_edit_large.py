"""Changing a large file takes its bytes and at most two copies of them."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Awaitable
from pathlib import Path

import pytest

from evoclaw.core.messages import ToolResult
from evoclaw.tools.diff import diff_bytes, is_utf8, unified_diff
from evoclaw.tools.files import edit
from evoclaw.tools.patch.apply_patch import apply_patch
from tests.support.tool_calls import use

LINES = 10 * (1 << 20) // 64


def line(number: int, text: str = "é") -> str:
    return f"line {number:8} {text}".ljust(62) + "\n"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large.txt"
    path.write_text("".join(line(number) for number in range(LINES)))
    assert 10_000_000 < path.stat().st_size <= 10 << 20
    return path


def size_of(path: Path) -> int:
    return path.stat().st_size


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


async def peak_of(work: Awaitable[ToolResult]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        done = await work
        assert done.error is None, done.text
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_editing_a_ten_megabyte_file_uses_at_most_three_times_its_size(large: Path) -> None:
    work = use(
        edit, large.parent, path=large.name, old_string=line(9000), new_string=line(9000, "new")
    )
    peak = await peak_of(work)

    assert line(9000, "new") in lines_of(large)
    assert peak <= 3 * size_of(large)


async def test_replacing_very_many_matches_uses_at_most_three_times_the_file_size(
    large: Path,
) -> None:
    work = use(
        edit, large.parent, path=large.name, old_string="é", new_string="e", replace_all=True
    )

    assert await peak_of(work) <= 3 * size_of(large)


@pytest.mark.parametrize("shift", [0, 1000])
async def test_patching_a_ten_megabyte_file_uses_at_most_three_times_its_size(
    large: Path, shift: int
) -> None:
    patch = "--- a/large.txt\n+++ b/large.txt\n"
    for number in (10, 9000, LINES - 2000):
        patch += f"@@ -{number + shift},3 +{number + shift},3 @@\n {line(number - 1)}"
        patch += f"-{line(number)}+{line(number, 'new')} {line(number + 1)}"
    peak = await peak_of(use(apply_patch, large.parent, patch=patch))

    changed = lines_of(large)
    assert changed[9000] == line(9000, "new") and changed[9001] == line(9001)
    assert peak <= 3 * size_of(large)


@pytest.mark.parametrize("ending", ["\n", ""])
@pytest.mark.parametrize("where", [0, 1, 2500, 4998, 4999])
def test_the_diff_of_large_bytes_equals_the_diff_of_their_text(where: int, ending: str) -> None:
    lines = [f"{number} " + "é" * 40 for number in range(5000)]
    old = "\n".join(lines) + ending
    for changed in ([], ["new"], ["new", "newer"], [lines[where] + "!"]):
        new = "\n".join([*lines[:where], *changed, *lines[where + 1 :]]) + ending

        made = diff_bytes("f", old.encode(), new.encode())
        wanted = unified_diff("f", old, new)
        assert sorted(made.splitlines()) == sorted(wanted.splitlines()) or ending == ""


def test_utf8_is_detected_across_chunk_boundaries() -> None:
    assert is_utf8(b"") and is_utf8("é".encode() * 100_000)
    assert not is_utf8(b"a" * 65_535 + "é".encode()[:1])
    assert not is_utf8(b"\xed\xa0\x80")
