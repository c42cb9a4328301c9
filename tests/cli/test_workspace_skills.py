"""Skills that a repository keeps in `.agents/skills` or `.claude/skills`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import Shell, reply, shell
from tests.support.skills import guide


async def prompt(here: Shell) -> str:
    """The system prompt of a run."""
    ran = await here.type("run", "--json", "Hello")
    events = [json.loads(line)["event"] for line in ran.out.splitlines()]
    return events[0]["messages"][0]["text"]


@pytest.mark.parametrize("place", [".agents/skills", ".claude/skills"])
async def test_a_skill_of_the_workspace_is_used_once_it_is_approved(
    tmp_path: Path, place: str
) -> None:
    async with shell(tmp_path, *[reply("Hi.")] * 3) as here:
        skill = here.workspace / place / "tidy"
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text(guide("tidy", "Tidies a folder."))
        assert "Tidies a folder." not in await prompt(here), "nobody approved it"
        listed = await here.type("skills", "list")
        assert "never approved" in listed.out
        added = await here.type("skills", "add", f"{place}/tidy")
        assert added.code == 0
        assert not (here.home / ".evoclaw/skills/tidy").exists(), "it stays in the workspace"
        assert "Tidies a folder." in await prompt(here)
        (skill / "SKILL.md").write_text(guide("tidy", "Tidies a folder. And more."))
        assert "Tidies a folder." not in await prompt(here), "it was changed since"
