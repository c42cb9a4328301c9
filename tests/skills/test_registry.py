"""Several skills, their versions and names, and what happens when they change."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.skills.approvals import SkillApprovalFile
from evoclaw.skills.registry import SkillRegistry
from tests.support.skills import guide, manifest, reasons, write_skill, write_tool_skill


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def names(shelf: SkillRegistry) -> list[str]:
    return [skill.key for skill in shelf.skills()]


@pytest.mark.parametrize("other", ["weather", "Weather", "vveather", "WEATHER"])
def test_fault_58_one_tool_name_in_two_skills_is_refused_with_both_paths(
    tmp_path: Path, other: str
) -> None:
    one = write_tool_skill(tmp_path, "one", "weather")
    two = write_tool_skill(tmp_path, "two", other)
    write_tool_skill(tmp_path, "three", "tides")
    shelf = SkillRegistry([tmp_path])

    assert names(shelf) == ["three@0"]
    for mine, theirs in ((one, two), (two, one)):
        (problem,) = [found for found in shelf.problems() if found.path == mine]
        assert str(theirs) in problem.reason
        assert "weather" in problem.reason


@pytest.mark.parametrize("name", ["read", "Read", "rEAD"])
def test_fault_58_a_skill_cannot_replace_a_built_in_tool(tmp_path: Path, name: str) -> None:
    write_tool_skill(tmp_path, "thief", name)
    shelf = SkillRegistry([tmp_path], reserved={"read": "a built-in tool"})
    assert not shelf.skills()
    assert "a built-in tool" in reasons(shelf)


def test_the_skill_whose_programs_the_owner_chose_may_replace_built_in_tools(
    tmp_path: Path,
) -> None:
    chosen = write_tool_skill(tmp_path, "chosen", "read", "question")
    write_tool_skill(tmp_path, "thief", "write")
    reserved: dict[str, str] = dict.fromkeys(("read", "write", "question"), "a built-in tool")
    shelf = SkillRegistry(
        [tmp_path], reserved=reserved, replacing=chosen, left_out=["question"], poll_interval=0
    )
    assert names(shelf) == ["chosen@0"], "once, though its folder is also below the root"
    assert [tool.name for tool in shelf.tools()] == ["read"]
    assert "its tool 'write' is a built-in tool" in reasons(shelf)


def test_fault_58_skills_whose_names_look_alike_are_refused(tmp_path: Path) -> None:
    one = write_tool_skill(tmp_path, "tools1", "a_tool")
    two = write_tool_skill(tmp_path, "toolsl", "b_tool")
    shelf = SkillRegistry([tmp_path])
    assert not shelf.skills()
    assert {problem.path for problem in shelf.problems()} == {one, two}


def test_fault_58_the_earlier_skill_root_takes_precedence(tmp_path: Path) -> None:
    mine = write_tool_skill(tmp_path / "mine", "one", "weather")
    write_tool_skill(tmp_path / "theirs", "two", "weather")
    shelf = SkillRegistry([tmp_path / "mine", tmp_path / "theirs"])
    assert [skill.folder for skill in shelf.skills()] == [mine]


def test_fault_58_a_new_skill_cannot_displace_a_loaded_one(tmp_path: Path) -> None:
    write_tool_skill(tmp_path, "old", "weather")
    shelf = SkillRegistry([tmp_path], poll_interval=0)
    assert names(shelf) == ["old@0"]
    write_tool_skill(tmp_path, "new", "weather")
    assert names(shelf) == ["old@0"]
    assert str(tmp_path / "old") in reasons(shelf)


def test_the_highest_version_of_a_skill_is_used(tmp_path: Path) -> None:
    for version in ("1.9.0", "1.10.0", "1.10.0-beta"):
        write_tool_skill(tmp_path, f"weather@{version}", "weather", version=version)
    shelf = SkillRegistry([tmp_path])

    assert names(shelf) == ["weather@1.10.0"]
    assert {skill.key for skill in shelf.shadowed()} == {"weather@1.9.0", "weather@1.10.0-beta"}
    assert [tool.tool.version for tool in shelf.tools()] == ["1.10.0"]
    found = shelf.find("weather@1.9.0")
    assert found is not None
    assert found.version == "1.9.0"
    assert not shelf.problems()


def test_a_skill_version_for_another_platform_is_skipped(tmp_path: Path) -> None:
    write_tool_skill(tmp_path, "weather@1.0", "weather", version="1.0")
    folder = write_tool_skill(tmp_path, "weather@2.0", "weather", version="2.0")
    text = (folder / "skill.toml").read_text()
    (folder / "skill.toml").write_text(text.replace("[skill]", '[skill]\nplatforms = ["macos"]'))
    assert names(SkillRegistry([tmp_path], platform="linux")) == ["weather@1.0"]


def test_the_same_skill_version_twice_is_refused(tmp_path: Path) -> None:
    write_tool_skill(tmp_path, "weather", "weather", version="1.0")
    write_tool_skill(tmp_path, "weather@1.0.0", "weather", version="1.0.0")
    shelf = SkillRegistry([tmp_path])
    assert not shelf.skills()
    assert len(shelf.problems()) == 2


def test_a_new_skill_is_loaded_without_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    shelf = SkillRegistry([tmp_path], poll_interval=2, clock=clock)
    assert names(shelf) == []
    write_skill(tmp_path, "haiku", SKILL_md=guide("haiku", "Writes haiku."))
    assert names(shelf) == []  # looked at a moment ago
    clock.now = 2.0
    assert names(shelf) == ["haiku@0"]


def test_refresh_reloads_a_changed_skill(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "haiku", SKILL_md=guide("haiku", body="Old."))
    shelf = SkillRegistry([tmp_path], poll_interval=1e9)
    assert shelf.skills()[0].instructions == "Old."
    (folder / "SKILL.md").write_text(guide("haiku", body="New."))
    assert shelf.skills()[0].instructions == "Old."
    shelf.refresh()
    assert shelf.skills()[0].instructions == "New."


def test_unchanged_skills_are_not_reloaded(tmp_path: Path) -> None:
    write_tool_skill(tmp_path, "same", "thing")
    shelf = SkillRegistry([tmp_path], poll_interval=0)
    skill, tools = shelf.skills()[0], shelf.tools()
    write_tool_skill(tmp_path, "other", "else_")
    assert shelf.skills()[1] is skill
    assert tools[0] in shelf.tools()


def test_a_broken_skill_keeps_its_last_version_and_is_reported(tmp_path: Path) -> None:
    folder = write_tool_skill(tmp_path, "weather", "weather", version="1")
    shelf = SkillRegistry([tmp_path], poll_interval=0)
    assert names(shelf) == ["weather@1"]

    (folder / "skill.toml").write_text("oops")
    assert names(shelf) == ["weather@1"]
    assert "stays in use" in reasons(shelf)

    (folder / "skill.toml").write_text(manifest("weather", version="2"))
    assert names(shelf) == ["weather@2"]
    assert not shelf.problems()


def test_a_removed_skill_is_unloaded(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "haiku", SKILL_md=guide("haiku"))
    shelf = SkillRegistry([tmp_path], poll_interval=0)
    assert names(shelf)
    (folder / "SKILL.md").unlink()
    folder.rmdir()
    assert not names(shelf)
    assert not shelf.problems()


def test_fault_59_a_skill_that_changes_after_its_approval_is_refused(tmp_path: Path) -> None:
    folder = write_tool_skill(tmp_path / "skills", "weather", "weather")
    (folder / "lib.sh").write_text("one")
    approvals = SkillApprovalFile(tmp_path / "approved.json")
    shelf = SkillRegistry([tmp_path / "skills"], approvals=approvals, poll_interval=0)
    approvals.pin("weather", shelf.skills()[0].digest)
    assert shelf.pinned(shelf.skills()[0])

    (folder / "lib.sh").write_text("two")
    assert not shelf.skills()
    assert "changed after it was approved" in reasons(shelf)

    (folder / "lib.sh").write_text("one")
    assert names(shelf) == ["weather@0"]


def test_fault_59_an_approved_skill_is_unloaded_when_it_breaks(tmp_path: Path) -> None:
    folder = write_tool_skill(tmp_path / "skills", "weather", "weather")
    approvals = SkillApprovalFile(tmp_path / "approved.json")
    shelf = SkillRegistry([tmp_path / "skills"], approvals=approvals, poll_interval=0)
    approvals.pin("weather", shelf.skills()[0].digest)
    (folder / "skill.toml").write_text("oops")
    assert not shelf.skills()


def test_in_strict_mode_a_new_skill_needs_approval(tmp_path: Path) -> None:
    write_tool_skill(tmp_path / "skills", "weather", "weather")
    approvals = SkillApprovalFile(tmp_path / "approved.json")
    shelf = SkillRegistry([tmp_path / "skills"], approvals=approvals, strict=True, poll_interval=0)
    assert not shelf.skills()
    assert "evoclaw skills add" in reasons(shelf)


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"skills": {"weather": "all"}}', b'{"skills": {}}' + b" " * (2 << 20)],
)
def test_a_damaged_approval_file_approves_no_skill(tmp_path: Path, content: bytes) -> None:
    write_tool_skill(tmp_path / "skills", "weather", "weather")
    (tmp_path / "approved.json").write_bytes(content)
    shelf = SkillRegistry(
        [tmp_path / "skills"], approvals=SkillApprovalFile(tmp_path / "approved.json")
    )
    assert not shelf.skills()
    assert "damaged" in reasons(shelf)


def test_the_approval_file_is_private_and_approvals_can_be_revoked(tmp_path: Path) -> None:
    approvals = SkillApprovalFile(tmp_path / "deep" / "approved.json")
    approvals.pin("a", "1")
    approvals.pin("a", "2")
    approvals.pin("b", "3")
    assert approvals.digests("a") == ("2", "1")
    assert approvals.path.stat().st_mode & 0o777 == 0o600
    approvals.unpin("a")
    assert (approvals.digests("a"), approvals.digests("b")) == ((), ("3",))
    approvals.path.chmod(0o600)
    approvals.path.unlink()
    approvals.path.mkdir()
    with pytest.raises(ConfigError, match="cannot read"):
        approvals.digests("a")
