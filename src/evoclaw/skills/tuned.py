"""The skills of an agent as its genome has them: only the enabled ones, with its own texts.

A genome may have skills of its own: instructions, without programs, files or permissions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec.structs import replace

from evoclaw.core.canonical_json import canonical_hash
from evoclaw.core.genome import Genome
from evoclaw.core.genome_patches import genome_refused
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


def check_new_skills(genome: Genome, known: Collection[str]) -> None:
    """Refuse a new skill whose name looks like that of one of the `known`, with `ToolFailure`."""
    if not genome.new_skills:
        return
    from evoclaw.skills.names import skeleton

    alike = {skeleton(name): name for name in known}
    if confused := [name for name in genome.new_skills if skeleton(name) in alike]:
        raise genome_refused(
            f"The new skill {confused[0]!r} looks like {alike[skeleton(confused[0])]!r}, which "
            "this agent has: choose another name. Nothing was changed."
        )


class TunedSkills:
    """The skills of another source as a genome has them."""

    def __init__(self, source: SkillSource, genome: Genome) -> None:
        self._source, self._genome = source, genome

    def skills(self) -> tuple[Skill, ...]:
        """The enabled skills, sorted by name."""
        found = {skill.name: self._tuned(skill) for skill in self._source.skills()}
        for name in self._genome.new_skills:
            if name not in found and (new := self._new(name)) is not None:
                found[name] = new
        return tuple(found[name] for name in sorted(found) if self._has(name))

    def find(self, name: str) -> Skill | None:
        """The skill of this name, if it is enabled."""
        skill = self._source.find(name)
        found = self._new(name.partition("@")[0]) if skill is None else self._tuned(skill)
        return found if found is not None and self._has(found.name) else None

    def _has(self, name: str) -> bool:
        return self._genome.skills is None or name in self._genome.skills

    def _new(self, name: str) -> Skill | None:
        """A skill that only the genome has."""
        new = self._genome.new_skills.get(name)
        if new is None:
            return None
        from evoclaw.skills.loading import Skill
        from evoclaw.skills.names import NO_VERSION

        return Skill(
            name, NO_VERSION, new.description, Path(), new.instructions, programs=(),
            allowed_tools=None, guide=None, listing=(), file_hashes={},
            digest=canonical_hash([name, new.description, new.instructions]),
        )  # fmt: skip

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
