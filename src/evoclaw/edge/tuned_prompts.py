"""What the model of an edge is offered while it answers a prompt, as the genome of the edge has it.

The tools that other callers see are unchanged: a person approved them as they are configured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.genome import Genome
from evoclaw.core.pipeline import OfferStep, Pipeline, Step
from evoclaw.core.ports import Ports, Provider
from evoclaw.core.tuned_runs import GenomeTools, in_order

if TYPE_CHECKING:  # an edge without skills need not load them
    from evoclaw.skills.loading import Skill
    from evoclaw.skills.tuned import SkillSource


def no_steps(model: str) -> Sequence[OfferStep]:
    """For a model that is offered all tools."""
    return ()


class PromptModel(Struct, frozen=True):
    """The model of an edge, as it is configured."""

    names: tuple[str, ...] = ()
    """Its models in order: if one fails, the next one answers."""
    max_retries: int | None = None
    """How often a failed request to them is repeated."""
    offer_steps: Callable[[str], Sequence[OfferStep]] = no_steps
    """What limits the tools that a model is offered, by the name that its provider gives it."""
    skills: SkillSource | None = None
    """The skills whose instructions it may read; None: this edge has none."""


class _NoSkills:
    """The skills of an edge without any; its genome may bring some."""

    def skills(self) -> tuple[Skill, ...]:
        return ()

    def find(self, name: str) -> Skill | None:
        return None


async def tuned_prompt(ports: Ports, model: PromptModel, genome: Genome) -> tuple[Ports, str]:
    """The ports of one prompt, and the list of skills that its model may load."""
    provider = _ordered(ports.provider, model, genome)
    steps: list[Step] = [*model.offer_steps(provider.model)]
    if genome.tools:
        steps.append(GenomeTools(genome.tools))
    pipeline = Pipeline.of(ports.executor).with_steps(*steps)
    listed = ""
    if model.skills is not None or genome.new_skills:
        pipeline, listed = await _with_skills(pipeline, model.skills or _NoSkills(), genome)
    return replace(ports, provider=provider, executor=pipeline), listed


async def _with_skills(
    pipeline: Pipeline, source: SkillSource, genome: Genome
) -> tuple[Pipeline, str]:
    """The pipeline with the tool that loads skills, and their list; both only if there are any."""
    from evoclaw.core.routes import Route
    from evoclaw.executors.local import LocalExecutor
    from evoclaw.skills.active import SKILL_TOOL, ActiveSkillTools
    from evoclaw.skills.disclosure import RegistrySkillReader, skill_list
    from evoclaw.skills.tuned import TunedSkills
    from evoclaw.tools.skill import SkillReader, skill

    skills = TunedSkills(source, genome)
    found = await asyncio.to_thread(skills.skills)
    if not found:
        return pipeline, ""
    reader = LocalExecutor([skill], given={SkillReader: RegistrySkillReader(skills)}, sound=True)
    tuned = pipeline.with_steps(ActiveSkillTools(skills), routes=[Route(reader, yields=True)])
    is_offered = any(tool.name == SKILL_TOOL for tool in tuned.tools())
    return (tuned, skill_list(found)) if is_offered else (pipeline, "")


def _ordered(provider: Provider, model: PromptModel, genome: Genome) -> Provider:
    """The provider that asks the models in the order of the genome."""
    if not genome.models or len(model.names) < 2:
        return provider
    from evoclaw.providers.fallback import Fallback

    if not isinstance(provider, Fallback):
        return provider
    order = dict.fromkeys(in_order(model.names, genome.models))
    return provider.reordered([model.names.index(name) for name in order])
