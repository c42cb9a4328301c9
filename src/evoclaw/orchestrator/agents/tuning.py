"""Applies a genome to an agent: it changes texts, lowers limits and reorders models, no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.genome import Genome, ToolText, with_notes
from evoclaw.core.genome_patches import check_skills, genome_refused
from evoclaw.core.pipeline import OfferStep
from evoclaw.core.tools import Tool
from evoclaw.skills.names import skeleton


def tune(agent: Agent, genome: Genome) -> Agent:
    """The agent with a genome; one that sets nothing changes nothing."""
    if not genome.digest:
        return agent
    return replace(
        agent,
        prompt=with_notes(genome.prompt or agent.prompt, genome.notes),
        model=ordered_models(agent.model, genome.models),
        settings=_tightened(agent.settings, genome),
        genome=genome,
    )


def check_genome(
    agent: Agent, genome: Genome, *, skills: Sequence[str], default_model: str
) -> None:
    """Refuse a genome that the configuration of an agent does not allow, with `ToolFailure`."""
    check_skills(genome, skills)
    alike = {skeleton(name): name for name in skills}
    if confused := [name for name in genome.new_skills if skeleton(name) in alike]:
        raise genome_refused(
            f"The new skill {confused[0]!r} looks like {alike[skeleton(confused[0])]!r}, which "
            "this agent has: choose another name. Nothing was changed."
        )
    settings, configured = agent.settings, (agent.model or default_model).split(",")
    if unknown := [name for name in genome.models if name not in configured]:
        raise genome_refused(
            f"This agent is not configured with the model {', '.join(map(repr, unknown))}; its "
            f"models: {', '.join(configured)}. Nothing was changed."
        )
    limits = {
        "max_turns": settings.max_turns,
        "run_seconds": settings.max_seconds,
        "call_seconds": settings.max_call_seconds,
        "tool_error_limit": settings.tool_error_limit,
    }
    for name, limit in limits.items():
        wanted = getattr(genome, name)
        if limit is not UNSET and wanted is not None and wanted > limit:
            raise genome_refused(
                f"{name!r} is {wanted}, above the configured limit of {limit}: a genome can only "
                "lower it. Nothing was changed."
            )


def ordered_models(models: str, order: Sequence[str]) -> str:
    """The configured models, those that the genome names first."""
    configured = models.split(",")
    first = [name for name in order if name in configured]
    return ",".join((*first, *(name for name in configured if name not in first)))


def _tightened(settings: LoopSettings, genome: Genome) -> LoopSettings:
    changes: dict[str, Any] = {"genome": genome.digest}
    if genome.temperature is not None:
        changes["temperature"] = genome.temperature
    if genome.tool_prompt:
        changes["tool_prompt"] = genome.tool_prompt
    if genome.max_turns is not None:
        changes["max_turns"] = min(settings.max_turns, genome.max_turns)
    if genome.tool_error_limit is not None:
        changes["tool_error_limit"] = min(settings.tool_error_limit, genome.tool_error_limit)
    if genome.run_seconds is not None:
        changes["max_seconds"] = min(settings.max_seconds, genome.run_seconds)
    if genome.call_seconds is not None:
        limit = settings.max_call_seconds
        own = genome.call_seconds
        changes["max_call_seconds"] = own if limit is UNSET else min(limit, own)
    return replace(settings, **changes)


@dataclass(frozen=True, slots=True)
class GenomeTools(OfferStep):
    """Shows the model the descriptions and examples of tools that the genome has."""

    texts: dict[str, ToolText]

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """The same tools; what they may do and need is unchanged."""
        return [self._described(tool) for tool in tools]

    def _described(self, tool: Tool) -> Tool:
        text = self.texts.get(tool.name)
        if text is None:
            return tool
        lines = [text.description or tool.description, *(f"Example: {e}" for e in text.examples)]
        return replace(tool, description="\n".join(lines))
