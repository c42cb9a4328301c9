"""skill.yaml: the keys of skill.toml, in a strict subset of YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.skills.folders import SkillRefused
from evoclaw.skills.strict_yaml import MAX_YAML_BYTES, MAX_YAML_DEPTH, parse_yaml
from tests.support.skills import HELLO, load, manifest, write_skill

GREET = """
skill: {version: "1.2.0"}
tools:
  - name: greet
    binary: bin/run
    description: Greet a person.
    timeout_ms: 4000
    effect: read
    permissions: [shell]
    parameters:
      required: [who]
      properties:
        who: {type: string, enum: [no, "yes"]}
"""


def test_a_yaml_manifest_declares_the_same_tool_as_a_toml_one(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "greet", **{"skill.yaml": GREET}, run=HELLO)
    skill = load(folder)
    (program,) = skill.programs
    assert (skill.key, program.tool.name, program.tool.timeout) == ("greet@1.2.0", "greet", 4.0)
    who = program.tool.parameters["properties"]["who"]
    assert who == {"type": "string", "enum": ["no", "yes"]}
    assert skill.references == ("bin/run",)


def test_a_yaml_manifest_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    text = GREET.replace("effect:", "efect:")
    folder = write_skill(tmp_path, "greet", **{"skill.yaml": text}, run=HELLO)
    with pytest.raises(SkillRefused, match="efect"):
        load(folder)


def test_a_folder_with_two_manifests_is_refused(tmp_path: Path) -> None:
    text = manifest("other")
    folder = write_skill(tmp_path, "greet", **{"skill.yml": GREET}, skill_toml=text, run=HELLO)
    with pytest.raises(SkillRefused, match=r"skill\.toml and skill\.yml; keep one"):
        load(folder)


def test_values_are_those_of_json() -> None:
    text = "a: [true, no, ~, 12, 1.5, 1e3, '12', 2026-01-01, 0x10, yes]\nb: |\n  two\n  lines\n"
    assert parse_yaml(text, "x") == {
        "a": [True, "no", None, 12, 1.5, "1e3", "12", "2026-01-01", "0x10", "yes"],
        "b": "two\nlines\n",
    }
    assert parse_yaml("", "x") == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &x [1]\nb: *x\n", "line 1: anchors"),
        ("a: *x\n", "line 1: aliases"),
        ("a: !!python/object:os.system x\n", "line 1: tags"),
        ("a: 1\na: 2\n", "line 2: the key 'a' occurs twice"),
        ("1: a\n", "a key must be a text"),
        ("- a\n", "it must consist of lines"),
        ("a: 1\n---\nb: 2\n", "only one document"),
        ("a: [1\n", "is not YAML"),
        ("a: \x01\n", "control character"),
        ('a: "\\ud800"\n', "invalid escape"),
        ("a: " + "[" * (MAX_YAML_DEPTH + 1) + "\n", "nested too deeply"),
        ("a: " + "x" * MAX_YAML_BYTES, "more than 32 KB"),
    ],
)
def test_what_json_lacks_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_yaml(text, "skill.yaml")
    assert reason in str(refused.value)
    assert str(refused.value).startswith("skill.yaml")
