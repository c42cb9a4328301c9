"""Hostile folders are refused with a reason; the rest still load."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from evoclaw.skills.folders import MAX_FILES, SkillRefused, folder_digest
from evoclaw.skills.manifest import MAX_TOOLS
from evoclaw.skills.registry import SkillRegistry
from tests.support.skills import (
    HELLO,
    guide,
    load,
    manifest,
    reasons,
    write_skill,
    write_tool_skill,
)

PROPERTY = '[tools.parameters.properties.x]\ntype = "string"\n'


def with_schema(schema: str) -> str:
    return manifest("thing") + f"[tools.parameters]\n{schema}\n"


def link_out(folder: Path) -> None:
    (folder / "notes.md").symlink_to("/etc/passwd")


def link_circle(folder: Path) -> None:
    (folder / "again").symlink_to(folder, target_is_directory=True)


def giant(folder: Path) -> None:
    with (folder / "data.bin").open("wb") as file:
        file.truncate(1 << 30)  # a hole: takes no place


def giant_manifest(folder: Path) -> None:
    with (folder / "skill.toml").open("ab") as file:
        file.truncate(30 << 20)


def bad_utf8(folder: Path) -> None:
    (folder / "skill.toml").write_bytes(b'[skill]\ndescription = "\xff"\n')


def writable_file(folder: Path) -> None:
    (folder / "bin" / "run").chmod(0o777)


def writable_folder(folder: Path) -> None:
    (folder / "bin").chmod(0o777)


def a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "SKILL.md")


def many_files(folder: Path) -> None:
    for number in range(MAX_FILES + 1):
        (folder / f"f{number}").touch()


def deep(folder: Path) -> None:
    (folder / "/".join("d" * 12)).mkdir(parents=True)


def odd_file_name(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).touch()


def not_executable(folder: Path) -> None:
    (folder / "bin" / "run").chmod(0o644)


def toml(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "skill.toml").write_text(text)


HOSTILE = {
    "a link to the outside": (link_out, "it is a link"),
    "a circle of links": (link_circle, "it is a link"),
    "one GB": (giant, "more than 33,554,432"),
    "a big manifest": (giant_manifest, "more than"),
    "bad UTF-8": (bad_utf8, "line 2 is not UTF-8"),
    "a file for everybody": (writable_file, "every user may write"),
    "a folder for everybody": (writable_folder, "every user may write"),
    "a pipe": (a_pipe, "neither a file nor a folder"),
    "many files": (many_files, "more than 1,000"),
    "deep folders": (deep, "nested deeper"),
    "an odd file name": (odd_file_name, "not UTF-8"),
    "not executable": (not_executable, "chmod"),
    "outside": (toml(manifest("t", binary="../../bin/sh")), "inside the skill's folder"),
    "absolute": (toml(manifest("t", binary="/bin/sh")), "inside the skill's folder"),
    "home": (toml(manifest("t", binary="~/x")), "inside the skill's folder"),
    "in .git": (toml(manifest("t", binary=".git/x")), "inside the skill's folder"),
    "an option": (toml(manifest("t", binary="-c")), "cannot be the name of a program"),
    "not there": (toml(manifest("t", binary="bin/other")), "no file 'bin/other'"),
    "bare": (toml(manifest("t", binary="sh")), "on_path = true"),
    "on_path with a path": (
        toml(manifest("t", extra="on_path = true")),
        "must be a bare name",
    ),
    "duplicate tools": (toml(manifest("t", "t")), "is declared twice"),
    "duplicate keys": (toml('[skill]\nversion="1"\nversion="2"'), "not TOML"),
    "look-alike tools": (toml(manifest("list1", "listl")), "look alike"),
    "many tools": (toml(manifest(*(f"t{n}" for n in range(MAX_TOOLS + 1)))), "more than 100"),
    "a misspelt key": (
        toml(manifest("t", extra="permisions = []")),
        "did you mean 'permissions'",
    ),
    "a key bomb": (toml("a." * 30_000 + "b = 1"), "more than 32 parts"),
    "nested arrays": (toml("a = " + "[" * 50_000 + "]" * 50_000), "nested too deeply"),
    "a long number": (toml("a = " + "1" * 100_000), "not TOML"),
    "not TOML": (toml("<html>"), "not TOML"),
    "a wrong type": (toml(manifest("t", extra='timeout_ms = "soon"')), "tools[0].timeout_ms"),
    "no timeout": (toml(manifest("t", extra="timeout_ms = 0")), "timeout_ms"),
    "an unknown sandbox": (toml(manifest("t", extra='sandboxing = "docker"')), "sandboxing"),
    "an unknown platform": (toml(manifest("t", extra='platforms = ["amiga"]')), "amiga"),
    "a foreign letter": (toml(manifest("re\u0430d")), "U+0430 CYRILLIC SMALL LETTER A"),
    "a bad version": (toml(manifest("t", version="latest")), "must look like 1.2.3"),
    "nothing": (toml(""), "it has no [[tools]]"),
    "another name": (toml('[skill]\nname = "other"'), "must have the skill's name"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_fault_59_a_hostile_skill_is_refused_and_the_others_load(tmp_path: Path, what: str) -> None:
    harm, said = HOSTILE[what]
    root = tmp_path / "skills"
    write_tool_skill(root, "good", "fine")
    harm(write_tool_skill(root, "bad", "thing"))

    shelf = SkillRegistry([root])

    assert [skill.name for skill in shelf.skills()] == ["good"]
    assert said in reasons(shelf)
    assert "bad" in reasons(shelf)


BOMBS = {
    "a remote reference": ('"$ref" = "https://example.org/x.json"', "only references within"),
    "a file reference": ('"$ref" = "file:///etc/passwd"', "only references within"),
    "a circle": ('"$ref" = "#/$defs/a"\n"$defs" = { a = { "$ref" = "#/$defs/a" } }', "itself"),
    "no object": ('type = "string"', '"type": "object"'),
    "a pattern of another engine": (
        r"properties = { x = { type = 'string', pattern = '(a)\1(?=b)' } }",
        "not a valid JSON Schema",
    ),
    "a pattern that grows": (
        "properties = { x = { type = 'string', pattern = '((a{1000}){1000}){1000}' } }",
        "not a valid JSON Schema",
    ),
    "an outside id": ('"$id" = "https://example.org/x"', "URLs are not allowed"),
    "anything goes": ("additionalProperties = true", "must be false"),
    "no table": ("properties = 3", "must be a table"),
    "deep": ("properties = { x = " + "{ items = " * 20 + "{}" + " }" * 21, "nested deeper"),
    "wide": (
        "properties = { " + ", ".join(f"p{n} = {{ type = 'string' }}" for n in range(1500)) + " }",
        "more than 2000 parts",
    ),
}


def doubled() -> str:
    def twice(target: str) -> str:
        return f'[ {{ "$ref" = "#/$defs/{target}" }}, {{ "$ref" = "#/$defs/{target}" }} ]'

    levels = [f"l{n} = {{ allOf = {twice(f'l{n + 1}')} }}" for n in range(18)]
    return (
        'properties = { x = { "$ref" = "#/$defs/l0" } }\n'
        '"$defs" = { ' + ", ".join([*levels, 'l18 = { type = "string" }']) + " }"
    )


@pytest.mark.parametrize("what", BOMBS)
def test_fault_60_a_hostile_schema_is_refused(tmp_path: Path, what: str) -> None:
    schema, said = BOMBS[what]
    folder = write_skill(tmp_path, "bad", skill_toml=with_schema(schema), run=HELLO)
    with pytest.raises(SkillRefused) as caught:
        load(folder)
    assert said in caught.value.reason


def test_fault_60_an_exponentially_growing_schema_is_refused(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "bad", skill_toml=with_schema(doubled()), run=HELLO)
    with pytest.raises(SkillRefused, match="parts with references"):
        load(folder)


def test_fault_60_a_catastrophic_pattern_is_matched_in_linear_time(tmp_path: Path) -> None:
    from evoclaw.core.schema import compile_schema

    schema = "properties = { x = { type = 'string', pattern = '^(a+)+$' } }"
    folder = write_skill(tmp_path, "slow", skill_toml=with_schema(schema), run=HELLO)
    (program,) = load(folder).programs
    assert not compile_schema(program.tool).is_valid({"x": "a" * 50_000 + "!"})


def test_dates_in_a_schema_become_strings(tmp_path: Path) -> None:
    schema = "properties = { x = { type = 'string', default = 2024-01-01 } }"
    folder = write_skill(tmp_path, "dated", skill_toml=with_schema(schema), run=HELLO)
    assert load(folder).programs[0].tool.parameters["properties"]["x"]["default"] == "2024-01-01"


def test_a_tool_has_the_fields_of_its_manifest(tmp_path: Path) -> None:
    text = manifest(
        "weather",
        version="2.1",
        extra='permissions = ["network"]\neffect = "read"\nidempotent = true\ntimeout_ms = 90000\n'
        'resources = ["x"]\n' + PROPERTY,
    )
    skill = load(write_skill(tmp_path, "weather", skill_toml=text, run=HELLO))

    (program,) = skill.programs
    tool = program.tool
    assert (tool.permissions, tool.effect, tool.idempotent) == ({"network"}, "read", True)
    assert (tool.timeout, tool.max_timeout, tool.version) == (90, 90, "2.1")
    assert tool.parameters["additionalProperties"] is False
    assert skill.description == "Tools: weather"


def test_a_tool_without_declared_permissions_needs_shell(tmp_path: Path) -> None:
    skill = load(write_tool_skill(tmp_path, "quiet", "thing"))
    assert skill.programs[0].tool.permissions == {"shell"}


def test_only_tools_for_the_current_platform_are_loaded(tmp_path: Path) -> None:
    both = manifest("here", extra='platforms = ["linux"]') + manifest(
        "there", extra='platforms = ["windows", "macos"]'
    )
    write_skill(tmp_path, "mixed", skill_toml=both, run=HELLO)
    whole = '[skill]\nplatforms = ["macos"]\n' + manifest("far")
    write_skill(tmp_path, "foreign", skill_toml=whole, run=HELLO)
    write_skill(
        tmp_path, "parts", skill_toml=manifest("p", extra='platforms = ["macos"]'), run=HELLO
    )
    shelf = SkillRegistry([tmp_path], platform="linux")

    assert [p.tool.name for skill in shelf.skills() for p in skill.programs] == ["here"]
    assert [problem.refused for problem in shelf.problems()] == [False, False]
    assert "the skill is for macos" in reasons(shelf)
    assert "none of the skill's tools is for this platform" in reasons(shelf)
    there = SkillRegistry([tmp_path], platform="darwin")
    assert [skill.name for skill in there.skills()] == ["foreign", "mixed", "parts"]


def test_the_digest_covers_every_file_name_content_and_executable_bit(tmp_path: Path) -> None:
    folder = write_tool_skill(tmp_path, "pinned", "thing")
    seen = {folder_digest(folder)}
    assert load(folder).digest in seen
    (folder / "bin" / "run").chmod(0o644)
    seen.add(folder_digest(folder))
    (folder / "bin" / "run").rename(folder / "bin" / "ru")
    seen.add(folder_digest(folder))
    (folder / "more").touch()
    seen.add(folder_digest(folder))
    assert len(seen) == 4
    (folder / ".git").mkdir()
    (folder / ".git" / "index").touch()
    assert folder_digest(folder) in seen


def test_a_world_writable_skill_root_is_refused(tmp_path: Path) -> None:
    write_tool_skill(tmp_path / "skills", "good", "fine")
    (tmp_path / "skills").chmod(0o777)
    shelf = SkillRegistry([tmp_path / "skills"])
    assert not shelf.skills()
    assert "every user" in reasons(shelf)


def test_a_missing_skill_root_is_no_problem(tmp_path: Path) -> None:
    shelf = SkillRegistry([tmp_path / "none"])
    assert not shelf.skills()
    assert not shelf.problems()


def test_skill_md_and_skill_toml_must_agree(tmp_path: Path) -> None:
    folder = write_skill(
        tmp_path,
        "both",
        SKILL_md="---\nname: both\ndescription: x\nmetadata:\n  version: '1.0'\n---\n",
        skill_toml=manifest("thing", version="2.0"),
        run=HELLO,
    )
    with pytest.raises(SkillRefused, match="two versions, 2.0 and 1.0"):
        load(folder)


def test_a_folder_without_skill_files_is_reported(tmp_path: Path) -> None:
    write_skill(tmp_path, "empty", note="x")
    write_skill(tmp_path, "text", SKILL_md=guide("text"))
    shelf = SkillRegistry([tmp_path])
    assert "neither SKILL.md nor skill.toml" in reasons(shelf)
    assert [skill.name for skill in shelf.skills()] == ["text"]
