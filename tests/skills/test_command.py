"""`evoclaw skills`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evoclaw.cli import exits
from evoclaw.core.errors import ConfigError
from evoclaw.wiring.skills import skill_approvals
from tests.support.programs.governed_commands import typed
from tests.support.skills import guide, load, write_skill, write_tool_skill


class House:
    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = home / "skills"
        self.approvals = skill_approvals(home)
        self._capsys = capsys

    def __call__(self, *words: str, code: int = exits.OK) -> str:
        told = typed("skills", *words)
        said = self._capsys.readouterr().out
        assert told == code, said
        return said


@pytest.fixture
def house(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> House:
    monkeypatch.setenv("EVOCLAW_HOME", str(tmp_path))
    return House(tmp_path, capsys)


def test_skills_new_creates_a_valid_skill(house: House) -> None:
    validator: Any = pytest.importorskip("skills_ref.validator")
    house("new", "my-skill")
    assert validator.validate(house.folder / "my-skill") == []
    house("new", "2-tools", "--tool")
    said = house("check")
    assert "my-skill@1.0.0: good" in said
    assert "2-tools@1.0.0: good" in said
    assert "note" not in said
    with pytest.raises(ConfigError, match="already"):
        house("new", "my-skill")
    with pytest.raises(ConfigError, match="not a skill name"):
        house("new", "../up")


def test_skills_list_shows_loaded_and_refused_skills(house: House) -> None:
    assert "evoclaw skills new" in house("list")
    write_skill(house.folder, "haiku", SKILL_md=guide("haiku", "Writes haiku."))
    write_skill(house.folder, "broken", SKILL_md="nothing")
    said = house("list")
    assert "Writes haiku." in said
    assert "desktop-tools@1.0.0" in said
    assert "refused" in said
    facts = json.loads(house("list", "--json"))
    assert [one["name"] for one in facts["skills"]] == ["haiku", "desktop-tools"]
    assert facts["problems"][0]["path"].endswith("broken/SKILL.md")


def test_skills_show_prints_one_skill(house: House) -> None:
    write_skill(house.folder, "haiku", SKILL_md=guide("haiku", body="Count.\x1b[2J"), note="x")
    said = house("show", "haiku")
    assert "Count." in said
    assert "\x1b" not in said
    assert "note" in said
    assert json.loads(house("show", "desktop-tools", "--json"))["tools"]
    with pytest.raises(ConfigError, match="did you mean"):
        house("show", "haikus")


def test_skills_show_prints_the_programs_of_a_skill_and_what_they_need(house: House) -> None:
    rows = [line.split() for line in house("show", "desktop-tools").splitlines()]
    assert ["bash", "bin/dt-bash", "default", "30", "s", "shell"] in rows
    programs = json.loads(house("show", "desktop-tools", "--json"))["programs"]
    bash = next(program for program in programs if program["name"] == "bash")
    assert bash["parameters"]["required"] == ["command"]
    assert bash["evoclaw"] == {
        "binary": "bin/dt-bash",
        "timeout_ms": 30_000,
        "sandbox": "default",
        "permissions": ["shell"],
        "version": "1",
        "skill": "desktop-tools",
    }


def test_skills_check_fails_for_an_invalid_skill(house: House, tmp_path: Path) -> None:
    write_skill(house.folder, "broken", SKILL_md="nothing")
    assert "line 1" in house("check", code=exits.FAILED)
    assert "line 1" in house("check", str(house.folder / "broken"), code=exits.FAILED)
    good = write_skill(tmp_path / "elsewhere", "good", SKILL_md=guide("good", model="x"))
    assert "note: " in house("check", str(good))
    with pytest.raises(ConfigError, match="no skill"):
        house("check", "nobody")


def test_skills_add_copies_and_approves_a_skill(house: House, tmp_path: Path) -> None:
    source = write_tool_skill(tmp_path / "elsewhere", "weather", "weather")
    (source / ".git").mkdir()
    (source / ".git" / "config").touch()
    assert "added weather@0" in house("add", str(source))

    copy = house.folder / "weather"
    assert not (copy / ".git").exists()
    assert house.approvals.digests("weather") == (load(copy).digest,)
    assert "approved" in house("list")
    assert [path.name for path in house.folder.iterdir()] == ["weather"]

    (copy / "bin" / "run").write_text("#!/bin/sh\necho other\n")
    assert "changed after it was approved" in house("check", code=exits.FAILED)
    house("add", str(copy))
    assert "good" in house("check")
    with pytest.raises(ConfigError, match="already"):
        house("add", str(source))


def test_skills_add_refuses_a_hostile_skill(house: House, tmp_path: Path) -> None:
    source = write_tool_skill(tmp_path / "elsewhere", "weather", "weather")
    (source / "secrets").symlink_to("/etc")
    with pytest.raises(ConfigError, match="link"):
        house("add", str(source))
    assert not house.folder.exists()
