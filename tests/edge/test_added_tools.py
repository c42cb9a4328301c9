"""The tools that an `agent.toml` adds to an edge: which are offered, and what is said of others."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import Executor
from evoclaw.edge.added_tools import AddedTools
from evoclaw.skills.registry import SkillRegistry
from evoclaw.skills.skill_executor import SkillExecutor
from evoclaw.tools.fake import FakeOps
from evoclaw.wiring.edge import open_edge
from tests.support.skills import write_tool_skill
from tests.support.waiting import until

OWN = """
from evoclaw import tool


@tool("device", effect="read")
async def {name}() -> str:
    '''Answer.'''
    return "own"
"""


def names(executor: Executor) -> set[str]:
    return {tool.name for tool in executor.tools()}


async def tools_of(folder: Path, settings: str) -> set[str]:
    """The tools of an edge with these settings."""
    config = folder / "agent.toml"
    config.write_text(f'agent_id = "pi"\ncapabilities = ["*"]\n{settings}')
    async with open_edge(config, {"EVOCLAW_HOME": str(folder / "home")}) as edge:
        return names(edge.parts.executor)


def write_own(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(OWN.format(name=name))
    (folder / f"{name}.py").chmod(0o600)


async def test_an_edge_has_no_added_tools_unless_its_settings_name_them(tmp_path: Path) -> None:
    write_tool_skill(tmp_path / "home" / "skills", "one", "weather")
    write_own(tmp_path / "home" / "tools", "dice")
    plain = await tools_of(tmp_path, "")
    assert not plain & {"weather", "dice"}
    settings = '[tools]\nskills_path = "home/skills"\ntools_path = "home/tools"'
    assert await tools_of(tmp_path, settings) == plain | {"weather", "dice"}


async def test_of_two_added_tools_with_one_name_the_first_is_used_and_the_other_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tool_skill(tmp_path / "skills", "one", "weather")
    write_own(tmp_path / "tools", "weather")
    write_own(tmp_path / "tools", "dice")
    config = tmp_path / "agent.toml"
    settings = '[tools]\nskills_path = "skills"\ntools_path = "tools"'
    config.write_text(f'agent_id = "pi"\ncapabilities = ["*"]\n{settings}')
    async with open_edge(config, {"EVOCLAW_HOME": str(tmp_path / "home")}) as edge:
        tools = {tool.name: tool.description for tool in edge.parts.executor.tools()}
        await until(lambda: "weather (your own files): a tool of a skill" in caplog.text, 30)
    assert (tools["weather"], tools["dice"]) == ("It.", "Answer.")


async def test_only_names_the_offered_tools_added_ones_included(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tool_skill(tmp_path / "skills", "one", "weather", "tides")
    only = '[tools]\nonly = ["read", "weather", "later"]\n'
    with pytest.raises(ConfigError, match=r"unknown tool 'weather', 'later' in \[tools\] only"):
        await tools_of(tmp_path, only)
    with caplog.at_level(logging.WARNING):
        found = await tools_of(tmp_path, f'{only}skills_path = "skills"')
    assert found == {"read", "weather", "artifact"}
    assert "unknown tool 'later'" in caplog.text, "a skill may still add it"
    skill = '[tools]\nonly = ["read", "skill"]\n'
    with pytest.raises(ConfigError, match="unknown tool 'skill'"):
        await tools_of(tmp_path, skill)
    model = '[model]\nname = "ollama/small"\n'
    assert await tools_of(tmp_path, skill + model) == {"read", "artifact"}, "only its model has it"


async def test_a_built_in_tool_is_replaced_only_by_the_programs_of_bin(tmp_path: Path) -> None:
    for skill in ("mine", "thief"):
        write_tool_skill(tmp_path / "skills", skill, "read", f"{skill}_more", "webfetch")
    settings = '[tools]\nskills_path = "skills"\n[tools.paths]\nbin = "skills/mine/bin"'
    config = tmp_path / "agent.toml"
    config.write_text(f'agent_id = "pi"\ncapabilities = ["*"]\n{settings}')
    async with open_edge(config, {"EVOCLAW_HOME": str(tmp_path / "home")}) as edge:
        tools = {tool.name: tool.description for tool in edge.parts.executor.tools()}
    assert tools["read"] == "It.", "as the manifest describes it"
    assert "mine_more" in tools
    assert "thief_more" not in tools
    assert tools["webfetch"] != "It.", "a sandboxed program has no network"


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ((), "the folder does not exist"),
        (("bin/run",), "has neither SKILL.md nor skill.toml"),
        (("SKILL.md",), "declares no program in 'bin/'"),
    ],
)
async def test_an_edge_does_not_start_with_an_unusable_bin_folder(
    tmp_path: Path, files: tuple[str, ...], reason: str
) -> None:
    for name in files:
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("---\nname: mine\ndescription: Mine.\n---\n")
    with pytest.raises(ConfigError, match=reason):
        await tools_of(tmp_path, '[tools.paths]\nbin = "mine/bin"')


async def test_changed_tools_are_advertised_again_and_problems_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = SkillRegistry([tmp_path], poll_interval=0)
    executor = SkillExecutor(registry, FakeOps())
    added = AddedTools({"a skill": executor}, skills=registry, poll_interval=0.01)
    adverts: asyncio.Queue[set[str]] = asyncio.Queue()

    async def advertise() -> None:
        adverts.put_nowait(names(executor))

    async with asyncio.timeout(30), added.watching(executor, advertise):
        write_tool_skill(tmp_path, "one", "weather")
        while await adverts.get() != {"weather"}:
            pass
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "skill.toml").write_text("no toml")
        write_tool_skill(tmp_path, "two", "tides")
        while await adverts.get() != {"weather", "tides"}:
            pass
        write_tool_skill(tmp_path, "three", "moon")
        while await adverts.get() != {"weather", "tides", "moon"}:
            pass
    logged = [record.message for record in caplog.records if "broken" in record.message]
    assert len(logged) == 1, logged


async def test_an_added_tool_that_the_capabilities_forbid_is_reported_with_the_capability(
    tmp_path: Path,
) -> None:
    write_tool_skill(tmp_path, "one", "weather")
    registry = SkillRegistry([tmp_path], poll_interval=0)
    executor = SkillExecutor(registry, FakeOps())
    added = AddedTools(
        {"a skill": executor}, skills=registry, capabilities=frozenset({"file_read"})
    )
    assert added.problems() == {
        "weather (a skill)": "it needs 'shell'; add it to `capabilities` in agent.toml"
    }


@pytest.mark.process
async def test_an_unreachable_server_delays_nothing_and_is_tried_at_intervals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = tmp_path / "attempts"
    server = f'["sh", "-c", "echo x >> {attempts}; exit 3"]'
    settings = f'[[mcp]]\nname = "gone"\ncommand = {server}\n'
    config = tmp_path / "agent.toml"
    config.write_text(f'agent_id = "pi"\ncapabilities = ["*"]\n{settings}')
    async with open_edge(config, {"EVOCLAW_HOME": str(tmp_path / "home")}) as edge:
        assert "read" in names(edge.parts.executor)
        await until(lambda: "not offered: MCP server gone:" in caplog.text, 30)
        await until(lambda: attempts.read_text().count("x") >= 2, 30)
        assert attempts.read_text().count("x") < 10, "not in a busy loop"


async def test_the_name_of_the_undo_tool_is_reserved(tmp_path: Path) -> None:
    write_tool_skill(tmp_path / "skills", "mine", "undo", "tides")
    found = await tools_of(tmp_path, '[tools]\nskills_path = "skills"')
    assert {"undo", "write"} <= found
