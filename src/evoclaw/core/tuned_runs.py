"""What a genome changes in a run: it lowers limits, orders models and describes tools, no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from evoclaw.core.agent import LoopSettings
from evoclaw.core.genome import Genome, ToolText
from evoclaw.core.genome_patches import genome_refused
from evoclaw.core.pipeline import OfferStep
from evoclaw.core.tools import Tool


def run_limits(settings: LoopSettings) -> dict[str, float | None]:
    """The limits of a run that a genome can lower, by their names in it; None: not limited."""
    call_seconds = settings.max_call_seconds
    return {
        "max_turns": settings.max_turns,
        "run_seconds": settings.max_seconds,
        "call_seconds": None if call_seconds is UNSET else call_seconds,
        "tool_error_limit": settings.tool_error_limit,
    }


def check_limits(genome: Genome, limits: Mapping[str, float | None]) -> None:
    """Refuse a genome that is above a configured limit, with `ToolFailure`."""
    for name, limit in limits.items():
        wanted = getattr(genome, name)
        if limit is not None and wanted is not None and wanted > limit:
            raise genome_refused(
                f"{name!r} is {wanted}, above the configured limit of {limit}: a genome can only "
                "lower it. Nothing was changed."
            )


def check_models(genome: Genome, configured: Sequence[str]) -> None:
    """Refuse a genome that names a model which is not configured, with `ToolFailure`."""
    if unknown := [name for name in genome.models if name not in configured]:
        raise genome_refused(
            f"This agent is not configured with the model {', '.join(map(repr, unknown))}; its "
            f"models: {', '.join(configured) or 'none'}. Nothing was changed."
        )


def in_order(configured: Sequence[str], order: Sequence[str]) -> list[str]:
    """The configured models, those that the genome names first."""
    first = [name for name in order if name in configured]
    return [*first, *(name for name in configured if name not in first)]


def tightened(settings: LoopSettings, genome: Genome) -> LoopSettings:
    """The settings of a run with a genome; a limit above the configured one changes nothing."""
    changes: dict[str, Any] = {"genome": genome.digest or UNSET}
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
    if genome.model_retries is not None:
        changes["model_retries"] = genome.model_retries
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
