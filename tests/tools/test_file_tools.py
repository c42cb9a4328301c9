from __future__ import annotations

import base64
import resource
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, ImageBlock
from evoclaw.tools.diff import unified_diff
from evoclaw.tools.fake import FakeOps
from evoclaw.tools.files import edit, read, write
from tests.support.tool_calls import use

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def test_read_shows_a_line_range_and_the_next_offset(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"line {n}\n" for n in range(1, 11)))

    whole = await use(read, tmp_path, path="f")
    part = await use(read, tmp_path, path="f", offset=3, limit=2)
    last = await use(read, tmp_path, path="f", offset=9, limit=2)

    assert whole.text == "\n".join(f"line {n}" for n in range(1, 11))
    assert part.text == "line 3\nline 4\n\n[Lines 3-4; there is more: continue with offset=5.]"
    assert last.text == "line 9\nline 10"


@pytest.mark.parametrize("content", ["a\nb", "a\nb\n"])
async def test_read_beyond_the_end_reports_the_number_of_lines(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "f").write_text(content)

    assert (await use(read, tmp_path, path="f", offset=2)).text == "b"
    with pytest.raises(ToolFailure, match="only 2 lines"):
        await use(read, tmp_path, path="f", offset=7)


async def test_read_of_an_empty_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "f").touch()

    assert (await use(read, tmp_path, path="f")).text == "(the file is empty)"


async def test_read_truncates_long_lines_and_long_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x" * 9_000 + "\n" + "y" * 1_500 + "\n" + ("z" * 1_000 + "\n") * 90)

    text = (await use(read, tmp_path, path="f")).text

    assert "[… 7,000 more in this line]" in text
    assert "y" * 1_500 in text
    assert len(text) < 52_000 and "continue with offset=" in text


async def test_fault_29_a_ten_megabyte_line_and_odd_bytes_stay_valid_text(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(
        b"ok\n\xff\xed\xa0\x80\n" + b"\xc3\xa9" * 5_000_000 + b"\nlast\0\n"
    )

    result = await use(read, tmp_path, path="f")

    assert "\ufffd" in result.text and "not valid text" in result.text
    assert "more in this line]" in result.text and "last\ufffd" in result.text
    assert len(result.text) < 5_000
    assert msgspec.json.decode(msgspec.json.encode(result), type=type(result)) == result


async def test_a_character_cut_by_truncation_does_not_mark_the_file_invalid(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x" + "é" * 6_000)

    assert "not valid text" not in (await use(read, tmp_path, path="f")).text


async def test_read_does_not_load_a_big_file_whole(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as big:
        for _ in range(60):
            big.write(b"x" * 99 + b"\n" + b"some text here\n" * 69_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    text = (await use(read, tmp_path, path="big", offset=4_000_000, limit=3)).text

    assert text.startswith("some text here\nsome text here\n")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0 jpeg", "image/jpeg"),
        (b"GIF89a...", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
async def test_read_detects_images_by_content(tmp_path: Path, data: bytes, media_type: str) -> None:
    (tmp_path / "f.txt").write_bytes(data)

    result = await use(read, tmp_path, path="f.txt")

    assert result.blocks == (ImageBlock(media_type, base64.b64encode(data).decode()),)


@pytest.mark.parametrize(
    ("data", "word"), [(b"\x7fELF\0\0", "not a text file"), ("é".encode("utf-16"), "UTF-16")]
)
async def test_read_refuses_binary_files_with_a_hint(
    tmp_path: Path, data: bytes, word: str
) -> None:
    (tmp_path / "f").write_bytes(data)

    with pytest.raises(ToolFailure, match=word):
        await use(read, tmp_path, path="f")


async def test_read_refuses_large_images_and_folders(tmp_path: Path) -> None:
    (tmp_path / "f.png").write_bytes(PNG + b"\0" * (6 << 20))

    with pytest.raises(ToolFailure, match="smaller"):
        await use(read, tmp_path, path="f.png")
    with pytest.raises(ToolFailure, match="List it"):
        await use(read, tmp_path, path=".")


async def test_write_creates_file_and_folders_and_reports_counts(tmp_path: Path) -> None:
    result = await use(write, tmp_path, path="a/b/c.txt", content="één\ntwo")

    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "één\ntwo"
    assert result.text == "Wrote 2 lines (9 bytes) to 'a/b/c.txt'."
    assert result.details == {"path": "a/b/c.txt", "bytes": 9, "lines": 2}


async def test_write_refuses_lone_surrogates(tmp_path: Path) -> None:
    with pytest.raises(ToolFailure) as failure:
        await use(write, FakeOps(), path="f", content="\ud800")
    assert failure.value.kind is ErrorKind.INVALID_PARAMS


async def test_edit_replaces_a_unique_match_and_returns_a_diff(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("a = 1\nb = 2\nc = 3\n")

    result = await use(
        edit, tmp_path, path="f.py", old_string="b = 2", new_string="b = 20\nbb = 21"
    )

    assert (tmp_path / "f.py").read_text() == "a = 1\nb = 20\nbb = 21\nc = 3\n"
    assert result.text == "Edited 'f.py' at line 2."
    assert "-b = 2\n+b = 20\n+bb = 21" in result.details["diff"]
    assert (result.details["lines_removed"], result.details["lines_added"]) == (1, 2)


async def test_edit_refuses_several_matches_without_replace_all(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x\ny\nx\n")

    with pytest.raises(ToolFailure, match=r"2 times in 'f', at lines 1, 3\..*replace_all"):
        await use(edit, tmp_path, path="f", old_string="x", new_string="z")
    done = await use(edit, tmp_path, path="f", old_string="x", new_string="z", replace_all=True)

    assert (tmp_path / "f").read_text() == "z\ny\nz\n"
    assert done.details["replaced"] == 2


async def test_edit_suggests_similar_text_when_nothing_matches(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("def one():\n    return 1\n")

    with pytest.raises(ToolFailure, match=r"at line 2: '    return 1'"):
        await use(edit, tmp_path, path="f", old_string="\treturn 1", new_string="x")
    with pytest.raises(ToolFailure, match="Read the file again"):
        await use(edit, tmp_path, path="f", old_string="@@@@@@@@", new_string="x")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n", b"\xef\xbb\xbfone\r\nTWO\r\n2\r\nthree\r\n"),
        (b"one\ntwo\nthree\n", b"one\nTWO\n2\nthree\n"),
        (b"one\ntwo\nthree", b"one\nTWO\n2\nthree"),
    ],
)
async def test_edit_keeps_line_endings_and_byte_order_mark(
    tmp_path: Path, before: bytes, after: bytes
) -> None:
    (tmp_path / "f").write_bytes(before)

    await use(edit, tmp_path, path="f", old_string="one\ntwo\n", new_string="one\nTWO\n2\n")

    assert (tmp_path / "f").read_bytes() == after


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("same", "same")])
async def test_edit_refuses_empty_or_identical_strings(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "f").write_text("same")

    with pytest.raises(ToolFailure) as failure:
        await use(edit, tmp_path, path="f", old_string=old, new_string=new)
    assert failure.value.kind is ErrorKind.INVALID_PARAMS


async def test_edit_never_damages_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"caf\xe9 one")

    with pytest.raises(ToolFailure, match="not UTF-8"):
        await use(edit, tmp_path, path="f", old_string="one", new_string="two")
    assert (tmp_path / "f").read_bytes() == b"caf\xe9 one"


@pytest.mark.parametrize("where", [0, 2_500, 4_999])
def test_the_diff_of_a_long_file_is_one_minimal_hunk(where: int) -> None:
    old = [f"line {n}" for n in range(5_000)]
    new = [*old[:where], "new", "lines", *old[where + 1 :]]

    shown = unified_diff("f", "\n".join(old), "\n".join(new)).splitlines()

    assert [line for line in shown[3:] if line[0] in "+-"] == [f"-line {where}", "+new", "+lines"]
    assert len([line for line in shown[3:] if line[0] == " "]) == (6 if where == 2_500 else 3)


async def test_fault_40_metacharacters_in_arguments_are_plain_text(tmp_path: Path) -> None:
    odd = "a;$(touch owned)`touch owned`|x&&'\"*?~.txt"

    await use(write, tmp_path, path=odd, content=odd)
    await use(edit, tmp_path, path=odd, old_string="$(touch", new_string="$(tuch")

    assert (await use(read, tmp_path, path=odd)).text == odd.replace("$(touch", "$(tuch")
    assert not (tmp_path / "owned").exists()
