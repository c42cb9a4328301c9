"""SKILL.md, beside the public reference validator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.skills import frontmatter
from evoclaw.skills.folders import SkillRefused
from evoclaw.skills.frontmatter import FrontMatterError
from evoclaw.skills.loading import load_skill
from evoclaw.skills.skill_guide import SkillGuide, read_guide
from tests.support.properties import examples
from tests.support.skills import guide, write_skill

validator: Any = pytest.importorskip("skills_ref.validator")
reference: Any = pytest.importorskip("skills_ref.parser")


def read(text: str) -> SkillGuide:
    return read_guide(Path("SKILL.md"), text)


WHOLE = """\
---
# what it is
name: pdf-forms
description: >-
  Fills in forms.
  Use for PDF files.

  And more.
license: "MIT \\"as is\\""   # fine
compatibility: 'it''s for Linux'
metadata:
  version: 1.20
  author: someone else
allowed-tools: Read Bash(git log:*)
---

# How

Body --- with dashes.
"""


def test_front_matter_is_parsed_like_the_reference_validator(tmp_path: Path) -> None:
    ours = read(WHOLE)
    theirs = reference.read_properties(write_skill(tmp_path, "pdf-forms", SKILL_md=WHOLE))

    assert (ours.name, ours.description) == (theirs.name, theirs.description)
    assert (ours.license, ours.compatibility) == (theirs.license, theirs.compatibility)
    assert ours.metadata == theirs.metadata == {"version": "1.20", "author": "someone else"}
    assert ours.instructions == "# How\n\nBody --- with dashes."
    assert ours.allowed_tools == {"read", "bash"}
    assert "the pattern in brackets is ignored" in ours.notes[0]


def test_front_matter_values_stay_strings() -> None:
    head = frontmatter.parse_front_matter(
        ["a: no", "b: 1.0", "c: 2024-01-01", "d: null", "e: ~", "f:"]
    )
    assert head == {"a": "no", "b": "1.0", "c": "2024-01-01", "d": "null", "e": "~", "f": ""}


def test_escapes_and_multi_line_quotes_are_parsed_as_yaml() -> None:
    lines = ['a: "\\x41\\n"', "b: 'one", "  two'", "\"c\": ['s, t',", "  u]", "d:", "- v", "- "]
    head = {"a": "A\n", "b": "one two", "c": ["s, t", "u"], "d": ["v", ""]}
    assert frontmatter.parse_front_matter(lines) == head


@pytest.mark.process
def test_the_yaml_library_is_imported_lazily() -> None:
    code = "import sys, evoclaw.skills.loading; sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_multi_line_texts_and_lists_are_parsed() -> None:
    lines = ["a: one", "  two", "b: |", "  x", "    y", "", "c:", "  - p", "  - 'q r'", "d: [s, t]"]
    assert frontmatter.parse_front_matter(lines) == {
        "a": "one two",
        "b": "x\n  y\n",
        "c": ["p", "q r"],
        "d": ["s", "t"],
    }


@pytest.mark.parametrize(
    "lines",
    [
        ["description:", "  Fills in forms. Use it when: a PDF", "  has fields."],
        ["description: Fills in forms.", "    Use it when:", "", "    a PDF has fields."],
    ],
)
def test_an_indented_description_of_several_lines_may_contain_a_colon(lines: list[str]) -> None:
    head = frontmatter.parse_front_matter(["name: x", *lines, "license: MIT"])
    assert head == {
        "name": "x",
        "description": "Fills in forms. Use it when: a PDF has fields.",
        "license": "MIT",
    }
    with pytest.raises(FrontMatterError) as caught:
        frontmatter.parse_front_matter([*lines, "license: *a"])
    assert caught.value.line == len(lines) + 2


@pytest.mark.parametrize(
    ("lines", "number", "said"),
    [
        (["description:", "  - a: b"], 3, "only texts"),
        (["name: &a x"], 2, "start with '&'"),
        (["name: x", "also: *a"], 3, "start with '*'"),
        (["name: !!python/object x"], 2, "start with '!'"),
        (["name: {a: b}"], 2, "start with '{'"),
        (["a: x", "a: y"], 3, "twice"),
        (["a: use it when: now"], 2, "quotes"),
        (['a: "open'], 2, "closing"),
        (["a: 'x' y"], 2, "after the closing"),
        (['a: "\\q"'], 2, "unknown escape"),
        (['a: "\\UFFFFFFFF"'], 2, "invalid escape"),
        (['a: "\\ud800"'], 2, "invalid escape"),
        (["a: x", "<<: y"], 3, "key: value"),
        (["a: x", "b: {c: d}"], 3, "start with '{'"),
        (["a: x", "--- y"], 3, "one document"),
        (["%YAML 1.1", "--- ", "a: x"], 2, "one document"),
        (["a: x", "...", "b: y"], 4, "one document"),
        (["a: x", "b: \x1b[2J"], 3, "control character"),
        (["a: x\u2028b: y"], 2, "line break"),
        (["a: " + "x" * (16 << 10)], 2, "more than 16,384 characters"),
        (["a: " + "[" * 10_000], 2, "only texts"),
        (["a:", "\tb: c"], 3, "tabs"),
        (["a:", "  b:", "    c: d"], 4, "one level"),
        (["a:", "  - b: c"], 3, "only texts"),
        (["? a"], 2, "key: value"),
        (["just words"], 2, "key: value"),
        (["a: [b, [c]]"], 2, "only texts"),
        (["a: b", " c: d"], 3, "colon"),
    ],
)
def test_unsupported_front_matter_is_refused_with_its_line_number(
    lines: list[str], number: int, said: str
) -> None:
    with pytest.raises(FrontMatterError, match=said) as caught:
        frontmatter.parse_front_matter(lines)
    assert caught.value.line == number


@pytest.mark.parametrize("text", ["", "# no head", "---\nname: x\n", "--- x\n---\n"])
def test_a_file_without_front_matter_is_refused(text: str) -> None:
    with pytest.raises(SkillRefused, match="---"):
        read(text)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("Upper", {}),
        ("two--hyphens", {}),
        ("-front", {}),
        ("back-", {}),
        ("under_score", {}),
        ("x" * 65, {}),
        ("good", {"description": "x" * 1025}),
        ("good", {"description": "''"}),
        ("good", {"compatibility": "x" * 501}),
    ],
)
def test_skills_refused_by_the_reference_validator_are_refused(
    tmp_path: Path, name: str, more: dict[str, str]
) -> None:
    folder = write_skill(tmp_path, name, SKILL_md=guide(name, **more))
    assert validator.validate(folder)
    with pytest.raises(SkillRefused):
        load_skill(folder, platform="linux")


def test_a_skill_name_different_from_its_folder_is_refused(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "one", SKILL_md=guide("other"))
    assert validator.validate(folder)
    with pytest.raises(SkillRefused, match="the folder must have the skill's name"):
        load_skill(folder, platform="linux")


def test_fields_of_other_programs_are_ignored_with_a_note() -> None:
    ours = read(guide("x", model="large", descriptoin="y"))
    assert "the field is ignored" in ours.notes[0]
    assert "did you mean 'description'" in ours.notes[1]


def test_an_empty_allowed_tools_list_allows_none() -> None:
    assert read(guide("x", allowed_tools="''")).allowed_tools == frozenset()
    assert read(guide("x")).allowed_tools is None


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.text(alphabet="ab:-'\"|>#&*[]{}, \\\n!?%1", max_size=30), max_size=6))
def test_front_matter_is_parsed_like_the_reference_or_refused(lines: list[str]) -> None:
    text = "\n".join(f"k{number}: {line}" for number, line in enumerate(lines))
    try:
        ours = frontmatter.parse_front_matter(text.split("\n"))
    except FrontMatterError:
        return
    try:
        theirs = cast("dict[str, object]", reference.strictyaml.load(text + "\n").data)
    except reference.strictyaml.YAMLError:
        return  # strictyaml refuses some sound YAML, such as lists in brackets
    if lines:
        assert ours == theirs
