"""The skills on disk as they are now: changes are noticed, and one that breaks breaks alone."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from evoclaw.core.bound import BoundTool
from evoclaw.core.errors import ConfigError
from evoclaw.skills.approvals import Approvals
from evoclaw.skills.binary import bind, find_program
from evoclaw.skills.collisions import Candidate, Settled, settle
from evoclaw.skills.folders import Entry, SkillRefused, look
from evoclaw.skills.loading import NotHere, Problem, Skill, folders_in, load_skill

EVERY = 2.0
"""Seconds between two looks at the disk."""


class _Seen(Struct, frozen=True):
    """What came of a folder the last time it was changed."""

    listing: tuple[Entry, ...]
    skill: Skill | None
    problem: Problem | None


class Shelf:
    """The skills of some folders. Safe to use from several threads."""

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        approvals: Approvals | None = None,
        strict: bool = False,
        reserved: Mapping[str, str] | None = None,
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
        platform: str = sys.platform,
        find: Callable[[str], str | None] = find_program,
    ) -> None:
        """Choose the folders.

        Args:
            roots: Folders of skills; where two are in each other's way, the earlier root stays.
            approvals: What a person approved: a skill of that name that is not the same is refused.
            strict: Also refuse what was never approved.
            reserved: Names of tools that no skill may have, and where they are from.
            every: Seconds between two looks at the disk.
            clock: Seconds.
            platform: As `sys.platform` says it.
            find: Finds an installed program.
        """
        self._roots, self._approvals, self._strict = tuple(roots), approvals, strict
        self._reserved = dict(reserved or {})
        self._every, self._clock = every, clock
        self._platform, self._find = platform, find
        self._lock = threading.Lock()
        self._looked: float | None = None
        self._seen: dict[Path, _Seen] = {}
        self._settled = Settled()
        self._bound: dict[str, tuple[BoundTool, ...]] = {}

    def skills(self) -> tuple[Skill, ...]:
        """The skills in use, by name; looks at the disk if that was some time ago."""
        return self._now().skills

    def shadowed(self) -> tuple[Skill, ...]:
        """Older versions of skills in use."""
        return self._now().shadowed

    def problems(self) -> tuple[Problem, ...]:
        """What is not used, and why."""
        return self._now().problems

    def find(self, name: str) -> Skill | None:
        """A skill by its name, or by `name@version`."""
        settled = self._now()
        for skill in (*settled.skills, *settled.shadowed):
            if name == skill.key or (name == skill.name and skill in settled.skills):
                return skill
        return None

    def pinned(self, skill: Skill) -> bool:
        """Whether a person approved it, as it is."""
        return self._approvals is not None and skill.digest in self._approvals.digests(skill.name)

    def tools(self) -> tuple[BoundTool, ...]:
        """The tools of the skills in use; the same ones as before if their skill is the same."""
        bound: dict[str, tuple[BoundTool, ...]] = {}
        for skill in self._now().skills:
            pinned = self.pinned(skill)
            key = f"{skill.folder}\0{skill.digest}\0{pinned}"
            bound[key] = self._bound.get(key) or tuple(
                bind(skill, program, pinned=pinned, find=self._find)
                for program in skill.programs
                if not program.on_path or self._find(program.binary)
            )
        self._bound = bound
        return tuple(tool for tools in bound.values() for tool in tools)

    def refresh(self) -> None:
        """Look at the disk now."""
        with self._lock:
            self._refresh()

    def _now(self) -> Settled:
        with self._lock:
            if self._looked is None or self._clock() - self._looked >= self._every:
                self._refresh()
            return self._settled

    def _refresh(self) -> None:
        self._looked = self._clock()
        problems: list[Problem] = []
        candidates: list[Candidate] = []
        seen: dict[Path, _Seen] = {}
        in_use = {skill.folder for skill in self._settled.skills}
        for number, root in enumerate(self._roots):
            folders, wrong = folders_in(root)
            problems += wrong
            for folder in folders:
                one = seen[folder] = self._look_at(folder)
                problems += [one.problem] if one.problem else []
                if one.skill is not None and (refusal := self._refusal(one.skill)):
                    problems.append(refusal)
                elif one.skill is not None:
                    # Whoever is in use already does not give way to a newcomer beside it.
                    candidates.append(Candidate(one.skill, (number, folder not in in_use)))
        self._seen = seen
        settled = settle(candidates, self._reserved)
        self._settled = Settled(settled.skills, settled.shadowed, (*problems, *settled.problems))

    def _look_at(self, folder: Path) -> _Seen:
        before = self._seen.get(folder)
        listing = look(folder)
        if before is not None and before.listing == listing:
            return before
        try:
            return _Seen(listing, load_skill(folder, platform=self._platform), None)
        except SkillRefused as refused:
            wrong = Problem(refused.path, refused.reason, not isinstance(refused, NotHere))
        kept = before.skill if before and wrong.refused else None
        if kept is None or self._was_pinned(kept):
            # Half of an approved skill is not what was approved.
            return _Seen(listing, None, wrong)
        reason = f"{wrong.reason} (as it was before, it stays in use)"
        return _Seen(listing, kept, Problem(wrong.path, reason))

    def _was_pinned(self, skill: Skill) -> bool:
        try:
            return self._approvals is not None and bool(self._approvals.digests(skill.name))
        except ConfigError:
            return True  # who cannot be asked has not said yes

    def _refusal(self, skill: Skill) -> Problem | None:
        if self._approvals is None:
            return None
        try:
            digests = self._approvals.digests(skill.name)
        except ConfigError as problem:
            return Problem(skill.folder, str(problem))
        if skill.digest in digests or (not digests and not self._strict):
            return None
        why = "it was changed after it was approved" if digests else "it was never approved"
        how = f"look at it, then run `evoclaw skills add {skill.folder}`"
        return Problem(skill.folder, f"{why}; {how}")
