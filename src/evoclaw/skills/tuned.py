"""The skills of an agent as its genome has them: only the enabled ones, with its own texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec.structs import replace

from evoclaw.core.genome import Genome
from evoclaw.core.pipeline import OfferStep
from evoclaw.core.tools import Tool

if TYPE_CHECKING:  # an edge without skills need not load them
    from evoclaw.skills.loading import Skill

SkillTools: TypeAlias = Callable[[], Mapping[str, frozenset[str]]]
"""The skills of a machine, and the tools of each."""


class SkillSource(Protocol):
    """Finds skills: a registry, or the skills of it that a genome enables."""

    def skills(self) -> tuple[Skill, ...]:
        """The skills in use, sorted by name."""
        ...

    def find(self, name: str) -> Skill | None:
        """The skill of this name or `name@version`; None if there is none."""
        ...


class TunedSkills:
    """The skills of another source as a genome has them."""

    def __init__(self, source: SkillSource, genome: Genome) -> None:
        self._source, self._genome = source, genome

    def skills(self) -> tuple[Skill, ...]:
        """The enabled skills."""
        return tuple(self._tuned(skill) for skill in self._source.skills() if self._has(skill))

    def find(self, name: str) -> Skill | None:
        """The skill of this name, if it is enabled."""
        skill = self._source.find(name)
        return self._tuned(skill) if skill is not None and self._has(skill) else None

    def _has(self, skill: Skill) -> bool:
        return self._genome.skills is None or skill.name in self._genome.skills

    def _tuned(self, skill: Skill) -> Skill:
        text = self._genome.skill_texts.get(skill.name)
        return skill if text is None else replace(skill, instructions=text)


class GenomeSkills(OfferStep):
    """Offers the tools of a skill only if the genome enables the skill."""

    def __init__(self, genome: Callable[[], Genome], skills: SkillTools) -> None:
        self._genome, self._skills = genome, skills

    def version(self) -> object:
        """The enabled skills: offers change when they change."""
        return self._genome().skills

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """The tools without those of disabled skills."""
        enabled = self._genome().skills
        if enabled is None:
            return tools
        hidden = {
            name
            for skill, names in self._skills().items()
            if skill not in enabled
            for name in names
        }
        return [tool for tool in tools if tool.name not in hidden]
