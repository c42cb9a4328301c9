"""The genome: a closed list of texts and small numbers, addressed by its content."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import fields

from evoclaw import verify
from evoclaw.core.errors import ToolFailure
from evoclaw.core.genome import (
    AGENT_TUNABLES,
    CONFIGURED,
    EDGE_TUNABLES,
    GENOME_RULES,
    Genome,
    ToolText,
    with_notes,
)
from evoclaw.core.genome_patches import merged


def patched(patch: dict[str, Any], genome: Genome = CONFIGURED) -> Genome:
    return merged(genome, patch, CONFIGURED, AGENT_TUNABLES)


def test_a_genome_has_these_fields_and_no_others() -> None:
    names = [field.name for field in fields(Genome)]
    assert names == [
        "prompt", "notes", "temperature", "max_turns", "call_seconds", "run_seconds",
        "tool_error_limit", "model_retries", "concurrency", "skills", "skill_texts", "new_skills",
        "tools", "tool_prompt", "models", "version", "restored",
    ]  # fmt: skip
    assert [*GENOME_RULES, "version", "restored"] == names
    assert {*EDGE_TUNABLES, *AGENT_TUNABLES} == set(GENOME_RULES), "each is used somewhere"
    assert [field.name for field in fields(ToolText)] == ["description", "examples"]


@pytest.mark.parametrize(
    "key",
    [
        "capabilities", "permissions", "policy", "rules", "autonomy", "sandbox", "budget", "token",
        "tokens", "key", "cases", "gate", "evaluator", "model", "on", "network", "approvals",
    ],
)  # fmt: skip
def test_what_governs_an_agent_cannot_be_in_a_patch(key: str) -> None:
    with pytest.raises(ToolFailure, match=f"'{key}' is not part of the genome"):
        patched({"prompt": "x", key: "*"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("skill_texts", {"a": ""}),
        ("skill_texts", {"a": "x" * 32_001}),
        ("new_skills", {"Big": {"description": "x", "instructions": "y"}}),
        ("new_skills", {"a/../b": {"description": "x", "instructions": "y"}}),
        ("new_skills", {"a": {"description": "x"}}),
        ("new_skills", {"a": {"description": "x", "instructions": "y", "programs": []}}),
        ("new_skills", {"a": {"description": "x", "instructions": "y", "allowed_tools": ["*"]}}),
        ("tools", {"read": {"permissions": ["shell"]}}),
        ("tools", {"read": {"examples": ["x"] * 11}}),
        ("tools", []),
        ("tool_prompt", "Call a tool."),
        ("tool_prompt", "{tools} {tools}"),
        ("tool_prompt", "{tools} {tools.__class__}"),
        ("tool_prompt", "{tools} {tools!r}"),
        ("tool_prompt", "{tools} {0}"),
        ("tool_prompt", "{tools} { request }"),
        ("tool_prompt", "{tools}" + "x" * 3_994),
        ("models", [""]),
        ("models", "a,b"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_what_it_must_be(key: str, value: Any) -> None:
    with pytest.raises(ToolFailure) as caught:
        patched({key: value})
    assert caught.value.message == f"{key!r} must be {GENOME_RULES[key]}. Nothing was changed."


def test_a_tool_prompt_has_the_tools_once_and_may_have_any_braces_that_are_no_placeholder() -> None:
    text = 'Of {names}:\n{tools}\nWrite {"name": "x", "arguments": {}} like {example}; {answer}.'
    text += "{shell_examples}"
    assert patched({"tool_prompt": text}).tool_prompt == text
    assert patched({"tool_prompt": "{tools}" + "x" * 3_993}).digest
    assert patched({"tool_prompt": ""}) == patched({"tool_prompt": None}) == CONFIGURED


def test_objects_are_merged_and_null_removes_a_member() -> None:
    first = patched({"tools": {"read": {"description": "Reads."}, "grep": {"examples": ["x"]}}})
    then = patched({"tools": {"read": {"examples": ["read a"]}, "grep": None}}, first)
    assert then.tools == {"read": ToolText("Reads.", ("read a",))}
    assert patched({"tools": None}, then) == CONFIGURED


def test_the_digest_depends_on_the_content_only() -> None:
    one = Genome(prompt="Be brief.", temperature=1, version=3, restored=2)
    assert one.digest == Genome(temperature=1.0, prompt="Be brief.").digest
    assert one.digest != Genome(prompt="Be brief.").digest
    assert Genome(skills=()).digest != "", "no skill is not all skills"
    assert CONFIGURED.digest == Genome(version=7).digest == ""


def test_the_digest_of_a_genome_that_an_older_release_wrote_is_unchanged() -> None:
    known = "a18996531cc09b6e29a40921db26c3315be8852a81ab2ccdfceb166866dbdab8"
    assert Genome(prompt="Be brief.", notes=("Say so.",), temperature=0.5).digest == known


def test_the_verifier_computes_the_same_digest() -> None:
    genome = Genome(
        prompt="Ü\n€", temperature=0.7, run_seconds=1e-6, tools={"ü": ToolText("x")},
        tool_prompt='{tools}\n{"ü": 1}',
    )  # fmt: skip
    assert verify.digest(genome.content()) == genome.digest


def test_notes_follow_the_instructions_one_line_each() -> None:
    assert with_notes("Help.", ()) == "Help."
    text = with_notes("Help.", ("Say\nplease.", "Stop."))
    assert text == "Help.\nNotes from earlier runs:\n- Say please.\n- Stop."
