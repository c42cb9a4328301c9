"""`evoclaw stop` as a person types it, against a run in another process."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from evoclaw.governance.stops import Stop, StopFile, StopKind
from tests.support.processes import alive, unique_seconds
from tests.support.programs.governed_commands import main
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


def stops(home: Path) -> list[tuple[str, str]]:
    return [(str(one.kind), one.name) for one in StopFile(home / "stops.json").stops()]


def test_stops_of_each_kind_are_set_listed_and_released(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "edge" / "pi").mkdir(parents=True)
    for what in (("--all",), ("--agent", "pi"), ("--tool", "bash"), ("--network",)):
        assert main(tmp_path, "stop", *what, "--reason", "drill") == 0
    assert stops(tmp_path) == [("all", ""), ("agent", "pi"), ("tool", "bash"), ("network", "")]
    capsys.readouterr()
    assert main(tmp_path, "stop", "--list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["reason"] for one in listed] == ["drill"] * 4
    assert all(one["by"] and one["at"] for one in listed)
    assert main(tmp_path, "stop", "--list") == 0
    assert "the agent pi, by " in capsys.readouterr().out
    assert main(tmp_path, "stop", "--release", "--tool", "bash") == 0
    said = capsys.readouterr().out
    assert said.startswith("released: the tool bash (drill)\n")
    assert "still stopped: everything, the agent pi" in said
    assert stops(tmp_path) == [("all", ""), ("agent", "pi"), ("network", "")]


def test_a_stop_of_an_unknown_agent_is_an_error_that_names_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "edge" / "greenhouse").mkdir(parents=True)
    assert main(tmp_path, "stop", "--agent", "grenhouse") == 2
    said = capsys.readouterr().err
    assert "unknown agent or edge 'grenhouse'; did you mean 'greenhouse'?" in said
    assert "Nothing was stopped. Use --all" in said
    assert stops(tmp_path) == []
    assert main(tmp_path, "stop", "--agent", "grenhouse", "--force") == 0
    assert main(tmp_path, "stop", "--agent", "evoclaw") == 0  # the default agent
    assert stops(tmp_path) == [("agent", "grenhouse"), ("agent", "evoclaw")]
    assert main(tmp_path, "stop", "--release", "--agent", "grenhouse") == 0


def test_a_stop_of_a_tool_warns_if_the_name_resembles_a_built_in_tool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tmp_path, "stop", "--tool", "bsh") == 0
    assert "if you mean 'bash', use `evoclaw stop --tool bash`" in capsys.readouterr().err
    assert main(tmp_path, "stop", "--tool", "weather__degrees") == 0
    assert main(tmp_path, "stop", "--tool", "bash") == 0
    assert "warning" not in capsys.readouterr().err
    assert stops(tmp_path) == [("tool", "bsh"), ("tool", "weather__degrees"), ("tool", "bash")]


def test_a_broken_settings_file_does_not_prevent_the_stop_of_an_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evoclaw.toml").write_text("[broken")
    assert main(tmp_path, "stop", "--agent", "pi") != 0  # other orchestrators may not know of it
    said = capsys.readouterr()
    assert "the name is not checked" in said.err
    assert "stopped on this machine: the agent pi" in said.out
    assert stops(tmp_path) == [("agent", "pi")]


def test_releasing_a_stop_that_is_not_set_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tmp_path, "stop", "--release", "--agent", "pi") == 2
    assert "the agent pi is not stopped" in capsys.readouterr().err
    assert main(tmp_path, "stop", "--tool", " ") == 2
    assert "the name of the tool is empty" in capsys.readouterr().err


def test_stop_without_a_target_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong, why in (
        (("--release",), "One of --all, --agent, --tool, --network, --list is required"),
        ((), "is required"),
        (("--all", "--network"), "--all and --network cannot be used together"),
    ):
        assert main(tmp_path, "stop", *wrong) == 2
        assert f"{why}; see `evoclaw stop --help`\n" in capsys.readouterr().err
    assert not (tmp_path / "stops.json").exists()


def test_a_damaged_stop_file_is_reported_and_repaired_by_release_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stops.json").write_text("{")
    assert main(tmp_path, "stop", "--list") == 2
    assert "evoclaw stop --release --all" in capsys.readouterr().err
    assert main(tmp_path, "stop", "--release", "--all") == 0
    assert stops(tmp_path) == []
    (kept,) = tmp_path.glob("stops.json.unsound-*")
    assert kept.read_text() == "{"


def test_stop_list_strips_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StopFile(tmp_path / "stops.json").put(Stop(StopKind.TOOL, "a\x1b[2Jb", "c\x1b]0;d\x07"))
    assert main(tmp_path, "stop", "--list") == 0
    assert "\x1b" not in capsys.readouterr().out


async def test_stop_all_ends_a_run_in_another_process_and_its_children(tmp_path: Path) -> None:
    work, mark = tmp_path / "work", unique_seconds()
    work.mkdir()

    async def start(*arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )

    async with asyncio.timeout(60):
        running = await start("tests.support.programs.hanging_run", str(tmp_path), str(work), mark)
        await until(lambda: len(alive(f"sleep\0{mark}")) == 3)
        stopping = await start(
            "tests.support.programs.governed_commands", str(tmp_path), "stop", "--all"
        )
        assert len(alive(f"sleep\0{mark}")) == 3
        assert await stopping.wait() == 0
        out, _ = await running.communicate()
    assert out == b"cancelled\n"
    assert not alive(mark)
