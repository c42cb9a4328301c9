"""Builds the steps of the pipeline that apply a genome."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.core.genome import Genome
    from evoclaw.core.pipeline import Step
    from evoclaw.skills.tuned import SkillSource


def genome_steps(genome: Genome, registry: SkillSource) -> list[Step]:
    """The steps that offer tools as a genome has them."""
    from evoclaw.core.tuned_runs import GenomeTools
    from evoclaw.skills.tuned import GenomeSkills

    def skill_tools() -> dict[str, frozenset[str]]:
        return {
            skill.name: frozenset(program.tool.name for program in skill.programs)
            for skill in registry.skills()
        }

    steps: list[Step] = []
    if genome.tools:
        steps.append(GenomeTools(genome.tools))
    if genome.skills is not None:
        steps.append(GenomeSkills(lambda: genome, skill_tools))
    return steps
