"""`evoclaw skills`."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from evoclaw.cli import exits
from evoclaw.cli.skills import skills
from evoclaw.core.errors import ConfigError
from evoclaw.skills.approvals import ApprovalFile
from tests.support.skills import guide, load, put, put_tool


class House:
    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = place / "skills"
        self.approvals = ApprovalFile(place / "approved.json")
        self._capsys = capsys

    def __call__(self, action: str, code: int = exits.OK, **options: object) -> str:
        given = {"name": None, "path": None, "tool": False, "json": False, **options}
        told = skills(
            Namespace(action=action, **given),
            self.folder,
            self.approvals,
            {"read": "a built-in tool"},
        )
        said = self._capsys.readouterr().out
        assert told == code, said
        return said


@pytest.fixture
def house(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> House:
    return House(tmp_path, capsys)


def test_a_new_skill_is_good_from_the_start(house: House) -> None:
    validator: Any = pytest.importorskip("skills_ref.validator")
    house("new", name="my-skill")
    assert validator.validate(house.folder / "my-skill") == []
    house("new", name="2-tools", tool=True)
    said = house("check")
    assert "my-skill@1.0.0: good" in said
    assert "2-tools@1.0.0: good" in said
    assert "note" not in said
    with pytest.raises(ConfigError, match="already"):
        house("new", name="my-skill")
    with pytest.raises(ConfigError, match="no skill name"):
        house("new", name="../up")


def test_the_list_tells_what_there_is_and_what_is_refused(house: House) -> None:
    assert "evoclaw skills new" in house("list")
    put(house.folder, "haiku", SKILL_md=guide("haiku", "Writes haiku."))
    put(house.folder, "broken", SKILL_md="nothing")
    said = house("list")
    assert "Writes haiku." in said
    assert "desktop-tools@1.0.0" in said
    assert "refused" in said
    facts = json.loads(house("list", json=True))
    assert [one["name"] for one in facts["skills"]] == ["haiku", "desktop-tools"]
    assert facts["problems"][0]["path"].endswith("broken/SKILL.md")


def test_one_skill_is_shown_whole(house: House) -> None:
    put(house.folder, "haiku", SKILL_md=guide("haiku", body="Count.\x1b[2J"), note="x")
    said = house("show", name="haiku")
    assert "Count." in said
    assert "\x1b" not in said
    assert "note" in said
    assert json.loads(house("show", name="desktop-tools", json=True))["tools"]
    with pytest.raises(ConfigError, match="did you mean"):
        house("show", name="haikus")


def test_a_check_fails_where_something_is_wrong(house: House, tmp_path: Path) -> None:
    put(house.folder, "broken", SKILL_md="nothing")
    assert "line 1" in house("check", exits.FAILED)
    assert "line 1" in house("check", exits.FAILED, name=str(house.folder / "broken"))
    good = put(tmp_path / "elsewhere", "good", SKILL_md=guide("good", model="x"))
    assert "note: " in house("check", name=str(good))
    with pytest.raises(ConfigError, match="no skill"):
        house("check", name="nobody")


def test_adding_copies_and_approves(house: House, tmp_path: Path) -> None:
    source = put_tool(tmp_path / "elsewhere", "weather", "weather")
    (source / ".git").mkdir()
    (source / ".git" / "config").touch()
    assert "added weather@0" in house("add", path=str(source))

    copy = house.folder / "weather"
    assert not (copy / ".git").exists()
    assert house.approvals.digests("weather") == (load(copy).digest,)
    assert "approved" in house("list")
    assert [path.name for path in house.folder.iterdir()] == ["weather"]

    (copy / "bin" / "run").write_text("#!/bin/sh\necho other\n")
    assert "changed after it was approved" in house("check", exits.FAILED)
    house("add", path=str(copy))
    assert "good" in house("check")
    with pytest.raises(ConfigError, match="already"):
        house("add", path=str(source))


def test_what_is_hostile_is_not_added(house: House, tmp_path: Path) -> None:
    source = put_tool(tmp_path / "elsewhere", "weather", "weather")
    (source / "secrets").symlink_to("/etc")
    with pytest.raises(ConfigError, match="link"):
        house("add", path=str(source))
    assert not house.folder.exists()
