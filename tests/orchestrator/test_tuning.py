"""A genome changes what an agent reads and lowers its limits; it cannot do more."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import asdict, replace

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.errors import ToolFailure
from evoclaw.core.genome import CONFIGURED, Genome, NewSkill, ToolText
from evoclaw.core.tools import Tool
from evoclaw.core.tuned_runs import GenomeTools
from evoclaw.orchestrator.agents.tuning import check_genome, tune

AGENT = Agent(
    "helper",
    "big,small",
    "You help.",
    frozenset({"file_read"}),
    LoopSettings(max_turns=5, max_seconds=60),
    tools=frozenset({"read"}),
)


def test_the_configuration_changes_nothing() -> None:
    assert tune(AGENT, CONFIGURED) is AGENT
    assert tune(AGENT, Genome(version=3)) is AGENT
    assert AGENT.settings.genome is UNSET, "not recorded"


def test_a_genome_sets_texts_and_the_order_of_models_and_is_recorded() -> None:
    genome = Genome(prompt="Be brief.", notes=("Say so.",), temperature=0.5, models=("small",))
    tuned = tune(AGENT, genome)
    assert tuned.prompt == "Be brief.\nNotes from earlier runs:\n- Say so."
    assert (tuned.model, tuned.settings.temperature) == ("small,big", 0.5)
    assert tuned.settings.genome == genome.digest
    assert tune(AGENT, Genome(notes=("Say so.",))).prompt.startswith("You help.\nNotes")


def test_a_tool_prompt_and_retries_are_recorded_only_if_a_genome_has_them() -> None:
    assert tune(AGENT, Genome(tool_prompt="{tools}")).settings.tool_prompt == "{tools}"
    assert tune(AGENT, Genome(prompt="x")).settings.tool_prompt is UNSET
    assert tune(AGENT, Genome(model_retries=0)).settings.model_retries == 0
    assert b"model_retries" not in msgspec.json.encode(tune(AGENT, Genome(prompt="x")).settings)
    assert b"tool_prompt" not in msgspec.json.encode(tune(AGENT, Genome(prompt="x")).settings)


def test_limits_are_only_lowered() -> None:
    low = tune(AGENT, Genome(max_turns=2, run_seconds=30, call_seconds=5)).settings
    assert (low.max_turns, low.max_seconds, low.max_call_seconds) == (2, 30, 5)
    assert tune(AGENT, Genome(tool_error_limit=1)).settings.tool_error_limit == 1
    assert tune(AGENT, Genome(tool_error_limit=9)).settings.tool_error_limit == 3
    high = tune(AGENT, Genome(max_turns=50, run_seconds=600)).settings
    assert (high.max_turns, high.max_seconds) == (5, 60)
    bound = replace(AGENT, settings=replace(AGENT.settings, max_call_seconds=3))
    assert tune(bound, Genome(call_seconds=5)).settings.max_call_seconds == 3


def test_no_genome_changes_what_an_agent_may_do() -> None:
    genome = Genome(
        prompt="x", notes=("y",), temperature=1, max_turns=1, call_seconds=1, run_seconds=1,
        skills=(), skill_texts={"a": "b"}, tools={"bash": ToolText("c")}, models=("huge",),
        new_skills={"c": NewSkill("d", "e")}, tool_prompt="{tools}",
    )  # fmt: skip
    tuned = tune(AGENT, genome)
    changed = {name for name, value in asdict(tuned).items() if value != getattr(AGENT, name)}
    assert changed == {"prompt", "settings", "genome"}, "an unknown model is ignored"


def test_a_genome_beyond_the_configuration_is_refused_with_the_reason() -> None:
    def refusal(genome: Genome) -> str:
        with pytest.raises(ToolFailure) as caught:
            check_genome(AGENT, genome, skills=["a"], default_model="big", max_retries=2)
        return caught.value.message

    assert "above the configured limit of 5" in refusal(Genome(max_turns=6))
    assert "above the configured limit of 3" in refusal(Genome(tool_error_limit=4))
    assert "above the configured limit of 2" in refusal(Genome(model_retries=3))
    assert "above the configured limit of 60" in refusal(Genome(run_seconds=61))
    assert "its models: big, small" in refusal(Genome(models=("huge",)))
    assert "no skill 'b'; its skills: a" in refusal(Genome(skill_texts={"b": "x"}))
    new = {"a": NewSkill("x", "y")}
    assert "has a skill 'a' already" in refusal(Genome(new_skills=new))
    fits = Genome(max_turns=5, call_seconds=1, models=("small", "big"), skills=("a",))
    check_genome(AGENT, fits, skills=["a"], default_model="big")


def test_a_new_skill_must_not_look_like_one_that_the_agent_has() -> None:
    genome = Genome(new_skills={"mai1": NewSkill("x", "y")}, skills=("mai1",))
    check_genome(AGENT, genome, skills=["post"], default_model="big")
    with pytest.raises(ToolFailure, match="'mai1' looks like 'mail'"):
        check_genome(AGENT, genome, skills=["mail"], default_model="big")


def test_the_model_reads_the_genomes_descriptions_of_tools() -> None:
    step = GenomeTools({"read": ToolText("Reads a file.", ("read a.txt",)), "none": ToolText("x")})
    read, other = Tool("read", "Old.", {}, frozenset({"file_read"})), Tool("grep", "Finds.", {})
    shown = step.offer([read, other])
    assert shown[0] == replace(read, description="Reads a file.\nExample: read a.txt")
    assert shown[1] is other
    assert GenomeTools({"read": ToolText(examples=("e",))}).offer([read])[0].description == (
        "Old.\nExample: e"
    )
