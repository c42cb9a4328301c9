"""What the model of an edge is offered: as its genome has it, within what is configured."""

from __future__ import annotations

from pathlib import Path

from evoclaw.core.genome import CONFIGURED, Genome
from evoclaw.core.pipeline import OfferStep, Pipeline
from evoclaw.core.ports import Ports
from evoclaw.edge.tuned_prompts import PromptModel, tuned_prompt
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.permissions import PermittedTools
from evoclaw.providers.fallback import Fallback
from evoclaw.providers.scripted import Scripted
from evoclaw.skills.registry import SkillRegistry
from tests.support.skills import guide, write_skill

NAMES = ("a/big", "b/small")


def ports(*, capabilities: str = "file_read") -> Ports:
    """The ports of an edge with two models, the second of which answers if the first fails."""
    offered = Pipeline([LocalExecutor([])], [PermittedTools(frozenset({capabilities}))])
    return Ports(Fallback([Scripted(model=name) for name in NAMES]), offered, offered.policy)


async def test_the_genome_orders_the_models_of_an_edge() -> None:
    asked: list[str] = []

    def steps(model: str) -> list[OfferStep]:
        asked.append(model)
        return []

    model = PromptModel(NAMES, offer_steps=steps)
    tuned, _ = await tuned_prompt(ports(), model, Genome(models=("b/small",)))
    assert isinstance(tuned.provider, Fallback)
    assert [health.model for health in tuned.provider.health] == ["b/small", "a/big"]
    as_configured = ports()
    assert (await tuned_prompt(as_configured, model, CONFIGURED))[0].provider is (
        as_configured.provider
    )
    assert asked == ["b/small", "a/big"], "few tools for a small model, if it is the first one"


async def test_the_model_may_load_the_skills_that_the_genome_enables(tmp_path: Path) -> None:
    for name in ("hello", "other"):
        write_skill(tmp_path, name, SKILL_md=guide(name))
    model = PromptModel(skills=SkillRegistry([tmp_path]))
    tuned, listed = await tuned_prompt(ports(), model, Genome(skills=("hello",)))
    assert "- hello: Does something." in listed and "other" not in listed
    assert [tool.name for tool in Pipeline.of(tuned.executor).tools()] == ["skill"]


async def test_no_skills_are_listed_to_a_model_that_may_not_load_them(tmp_path: Path) -> None:
    write_skill(tmp_path, "hello", SKILL_md=guide("hello"))
    model = PromptModel(skills=SkillRegistry([tmp_path]))
    tuned, listed = await tuned_prompt(ports(capabilities="shell"), model, CONFIGURED)
    assert (listed, list(Pipeline.of(tuned.executor).tools())) == ("", [])
