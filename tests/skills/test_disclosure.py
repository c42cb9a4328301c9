"""What the model is told of skills, in three levels."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON
from evoclaw.core.tools import Call, Tool
from evoclaw.executors.local import LocalExecutor
from evoclaw.skills.active import restrict_tools
from evoclaw.skills.disclosure import (
    RegistrySkillReader,
    skill_instructions,
    skill_list,
)
from evoclaw.skills.registry import SkillRegistry
from evoclaw.tools.skill import SkillReader, skill
from tests.support.skills import guide, load, write_skill, write_tool_skill


def offered(*names: str) -> list[Tool]:
    return [Tool(name, name, {"type": "object"}) for name in names]


def left(tools: list[Tool], *folders: Path) -> list[str]:
    return [tool.name for tool in restrict_tools(tools, [load(folder) for folder in folders])]


async def ask(root: Path, **arguments: JSON) -> str:
    texts = RegistrySkillReader(SkillRegistry([root], poll_interval=0))
    executor = LocalExecutor([skill], given={SkillReader: texts})
    call = Call("c", skill.tool, arguments, "r.1.0.1", 5)
    return (await executor.execute(call, lambda _: None)).text


def test_the_catalogue_has_one_line_per_skill(tmp_path: Path) -> None:
    write_skill(tmp_path, "haiku", SKILL_md=guide("haiku", "Writes haiku.", "Count to five."))
    write_skill(tmp_path, "long", SKILL_md=guide("long", "x" * 1000))
    text = skill_list(SkillRegistry([tmp_path]).skills())
    assert "- haiku: Writes haiku." in text
    assert "Count" not in text
    assert max(map(len, text.splitlines())) < 320
    assert skill_list([]) == ""


def test_hidden_characters_are_removed_from_skill_texts(tmp_path: Path) -> None:
    hidden = "".join(chr(0xE0000 + ord(char)) for char in "obey")
    folder = write_skill(
        tmp_path, "odd", SKILL_md=guide("odd", f"Fine{hidden}\u200b.", f"A\u202eb{hidden}")
    )
    assert "- odd: Fine." in skill_list([load(folder)])
    assert "\nAb" in skill_instructions(load(folder))


async def test_loading_a_skill_shows_its_instructions_and_files(
    tmp_path: Path,
) -> None:
    write_skill(tmp_path, "haiku", SKILL_md=guide("haiku", body="Count to five."), note="x")
    text = await ask(tmp_path, name="haiku")
    assert text.startswith("# Skill haiku@0\n\nCount to five.")
    assert "- note" in text
    assert "SKILL.md" not in text


async def test_a_skill_file_is_read_on_demand(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "haiku", SKILL_md=guide("haiku"))
    (folder / "references").mkdir()
    (folder / "references" / "rules.md").write_text("5-7-5")
    assert await ask(tmp_path, name="haiku", reference="references/rules.md") == "5-7-5"


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../other/SKILL.md", "references/../../x", "nothing", "\0", "references"],
)
async def test_a_file_outside_the_skill_cannot_be_read(tmp_path: Path, path: str) -> None:
    write_skill(tmp_path, "haiku", SKILL_md=guide("haiku"), note="x")
    write_skill(tmp_path, "other", SKILL_md=guide("other"))
    with pytest.raises(ToolFailure, match="unknown file"):
        await ask(tmp_path, name="haiku", reference=path)


async def test_a_file_that_is_not_text_is_not_shown(tmp_path: Path) -> None:
    write_skill(tmp_path, "haiku", SKILL_md=guide("haiku"), picture=b"\x89PNG\xff")
    with pytest.raises(ToolFailure, match="not UTF-8"):
        await ask(tmp_path, name="haiku", reference="picture")


async def test_a_file_changed_since_loading_is_not_shown(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "haiku", SKILL_md=guide("haiku"), note="old")
    shelf = SkillRegistry([tmp_path], poll_interval=1e9)
    texts = RegistrySkillReader(shelf)
    assert await texts.reference("haiku", "note") == "old"
    (folder / "note").write_text("new")
    with pytest.raises(ToolFailure, match="Load the skill again"):
        await texts.reference("haiku", "note")


async def test_the_skill_tool_without_a_name_lists_all_skills(tmp_path: Path) -> None:
    assert await ask(tmp_path) == "There are no skills here."
    write_skill(tmp_path, "haiku", SKILL_md=guide("haiku", "Writes haiku."))
    assert await ask(tmp_path) == "- haiku: Writes haiku."


async def test_an_unknown_skill_error_suggests_the_nearest_name(tmp_path: Path) -> None:
    write_skill(tmp_path, "haiku", SKILL_md=guide("haiku"))
    with pytest.raises(ToolFailure, match="did you mean 'haiku'"):
        await ask(tmp_path, name="haikus")
    with pytest.raises(ToolFailure, match="Set 'name'"):
        await ask(tmp_path, reference="x")


def test_active_skills_restrict_tools_to_those_all_of_them_allow(tmp_path: Path) -> None:
    tools = offered("read", "write", "bash", "skill")
    one = write_skill(tmp_path, "one", SKILL_md=guide("one", allowed_tools="Read, Bash(git:*)"))
    two = write_skill(tmp_path, "two", SKILL_md=guide("two", allowed_tools="bash write"))
    free = write_skill(tmp_path, "free", SKILL_md=guide("free"))
    none = write_skill(tmp_path, "none", SKILL_md=guide("none", allowed_tools="''"))

    assert left(tools) == left(tools, free) == ["read", "write", "bash", "skill"]
    assert left(tools, one) == ["read", "bash", "skill"]
    assert left(tools, one, two, free) == ["bash", "skill"]
    assert left(tools, none) == left(tools, one, none) == []


def test_skills_without_common_tools_leave_no_tools(tmp_path: Path) -> None:
    one = write_skill(tmp_path, "one", SKILL_md=guide("one", allowed_tools="read"))
    two = write_skill(tmp_path, "two", SKILL_md=guide("two", allowed_tools="bash"))
    assert left(offered("read", "bash", "skill"), one, two) == []


def test_a_skill_always_allows_its_own_tools(tmp_path: Path) -> None:
    folder = write_tool_skill(tmp_path, "one", "weather")
    (folder / "SKILL.md").write_text(guide("one", allowed_tools="read"))
    assert left(offered("read", "weather", "bash"), folder) == ["read", "weather"]
