"""Applies a genome to an agent: it changes texts, lowers limits and reorders models, no more."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from evoclaw.core.agent import Agent
from evoclaw.core.genome import Genome, with_notes
from evoclaw.core.genome_patches import check_skills
from evoclaw.core.tuned_runs import check_limits, check_models, in_order, run_limits, tightened
from evoclaw.skills.tuned import check_new_skills


def tune(agent: Agent, genome: Genome) -> Agent:
    """The agent with a genome; one that sets nothing changes nothing."""
    if not genome.digest:
        return agent
    return replace(
        agent,
        prompt=with_notes(genome.prompt or agent.prompt, genome.notes),
        model=ordered_models(agent.model, genome.models),
        settings=tightened(agent.settings, genome),
        genome=genome,
    )


def check_genome(
    agent: Agent,
    genome: Genome,
    *,
    skills: Sequence[str],
    default_model: str,
    max_retries: int | None = None,
) -> None:
    """Refuse a genome that the configuration of an agent does not allow, with `ToolFailure`.

    Args:
        agent: As configured.
        genome: What it would be tuned with.
        skills: The names of the skills that it has.
        default_model: The model of agents that name none.
        max_retries: The configured retries of a failed request; None: not checked.
    """
    check_skills(genome, skills)
    check_new_skills(genome, skills)
    check_models(genome, (agent.model or default_model).split(","))
    check_limits(genome, {**run_limits(agent.settings), "model_retries": max_retries})


def ordered_models(models: str, order: Sequence[str]) -> str:
    """The configured models, those that the genome names first."""
    return ",".join(in_order(models.split(","), order))
