"""The skills of an agent as its genome has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.genome import Genome, NewSkill
from evoclaw.core.tools import Tool
from evoclaw.skills.active import ActiveSkillTools
from evoclaw.skills.disclosure import RegistrySkillReader, skill_list
from evoclaw.skills.loading import Skill, load_skill
from evoclaw.skills.tuned import TunedSkills

NEW = {"greet": NewSkill("When someone says hello.", "Say hello back.")}


class Found:
    """The skills of a folder."""

    def __init__(self, *skills: Skill) -> None:
        self._skills = {skill.name: skill for skill in skills}

    def skills(self) -> tuple[Skill, ...]:
        return tuple(self._skills.values())

    def find(self, name: str) -> Skill | None:
        return self._skills.get(name)


@pytest.fixture
def installed(tmp_path: Path) -> Skill:
    folder = tmp_path / "post"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: post\ndescription: Mail.\n---\nWrite.\n")
    return load_skill(folder, platform="linux")


def test_a_new_skill_is_listed_and_found_beside_the_others(installed: Skill) -> None:
    skills = TunedSkills(Found(installed), Genome(new_skills=NEW))
    assert [skill.name for skill in skills.skills()] == ["greet", "post"]
    assert "- greet: When someone says hello." in skill_list(skills.skills())
    assert skills.find("greet") == skills.find("greet@0") == skills.skills()[0]
    assert skills.find("nothing") is None


def test_a_new_skill_brings_no_tool_and_restricts_none() -> None:
    skills = TunedSkills(Found(), Genome(new_skills=NEW))
    (skill,) = skills.skills()
    assert skill.programs == () and skill.allowed_tools is None and skill.file_hashes == {}
    step = ActiveSkillTools(skills)
    step.active = (skill,)
    tools = [Tool("bash", "", {}), Tool("read", "", {})]
    assert list(step.offer(tools)) == tools


async def test_the_model_loads_its_instructions_and_no_file() -> None:
    reader = RegistrySkillReader(TunedSkills(Found(), Genome(new_skills=NEW)))
    assert await reader.instructions("greet") == "# Skill greet@0\n\nSay hello back."
    with pytest.raises(ToolFailure):
        await reader.reference("greet", "/etc/passwd")


def test_skills_that_are_not_enabled_are_neither_listed_nor_found(installed: Skill) -> None:
    only = TunedSkills(Found(installed), Genome(new_skills=NEW, skills=("greet",)))
    assert [skill.name for skill in only.skills()] == ["greet"]
    assert only.find("post") is None and only.find("greet") is not None
    off = TunedSkills(Found(installed), Genome(new_skills=NEW, skills=("post",)))
    assert off.find("greet") is None and [s.name for s in off.skills()] == ["post"]


def test_a_skill_of_a_folder_is_used_instead_of_a_new_one_with_its_name(installed: Skill) -> None:
    genome = Genome(new_skills={"post": NewSkill("x", "Do something else.")})
    skills = TunedSkills(Found(installed), genome)
    assert skills.find("post") == installed and skills.skills() == (installed,)
