"""The skill registry: the valid skills of some folders, reloaded when their files change."""

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
"""How often the folders are checked for changes."""


class _Seen(Struct, frozen=True):
    """The result of loading a folder, valid while its listing is unchanged."""

    listing: tuple[Entry, ...]
    skill: Skill | None
    problem: Problem | None


class Shelf:
    """The skills of some folders; a broken skill does not affect the others. Thread-safe."""

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
        """Use the skills of some folders.

        Args:
            roots: Folders of skills; of two skills in conflict the one of the earlier root is used.
            approvals: The approved digests; a skill that changed since its approval is rejected.
            strict: Also reject skills that were never approved.
            reserved: Tool names that no skill may use, and what they belong to.
            poll_interval: Seconds between two checks of the folders.
            clock: The monotonic time in seconds.
            platform: As in `sys.platform`.
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
        """The skills in use, sorted by name; checks the folders after the poll interval."""
        return self._now().skills

    def shadowed(self) -> tuple[Skill, ...]:
        """Older versions of skills in use."""
        return self._now().shadowed

    def problems(self) -> tuple[Problem, ...]:
        """The folders that are not used, and the reasons."""
        return self._now().problems

    def find(self, name: str) -> Skill | None:
        """The skill of this name or `name@version`; None if there is none."""
        selection = self._now()
        for skill in (*selection.skills, *selection.shadowed):
            if name == skill.key or (name == skill.name and skill in selection.skills):
                return skill
        return None

    def pinned(self, skill: Skill) -> bool:
        """Whether the user approved this digest of the skill."""
        return self._approvals is not None and skill.digest in self._approvals.digests(skill.name)

    def tools(self) -> tuple[BoundTool, ...]:
        """The tools of the skills in use; the same objects while a skill is unchanged."""
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
        """Check the folders now."""
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
        scanned: dict[Path, _Seen] = {}
        in_use = {skill.folder for skill in self._settled.skills}
        for number, root in enumerate(self._roots):
            folders, root_problems = folders_in(root)
            problems += root_problems
            for folder in folders:
                found = scanned[folder] = self._look_at(folder)
                problems += [found.problem] if found.problem else []
                if found.skill is not None and (refusal := self._refusal(found.skill)):
                    problems.append(refusal)
                elif found.skill is not None:
                    # A new skill does not replace one of the same root that is in use.
                    candidates.append(Candidate(found.skill, (number, folder not in in_use)))
        self._seen = scanned
        chosen = settle(candidates, self._reserved)
        self._settled = Settled(chosen.skills, chosen.shadowed, (*problems, *chosen.problems))

    def _look_at(self, folder: Path) -> _Seen:
        before = self._seen.get(folder)
        listing = look(folder)
        if before is not None and before.listing == listing:
            return before
        try:
            return _Seen(listing, load_skill(folder, platform=self._platform), None)
        except SkillRefused as refused:
            issue = Problem(refused.path, refused.reason, not isinstance(refused, NotHere))
        previous = before.skill if before and issue.refused else None
        if previous is None or self._was_pinned(previous):
            # An approved skill runs as it was approved or not at all.
            return _Seen(listing, None, issue)
        reason = f"{issue.reason} (the version loaded before stays in use)"
        return _Seen(listing, previous, Problem(issue.path, reason))

    def _was_pinned(self, skill: Skill) -> bool:
        try:
            return self._approvals is not None and bool(self._approvals.digests(skill.name))
        except ConfigError:
            return True  # without readable approvals nothing counts as approved

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
        how = f"review it, then run `evoclaw skills add {skill.folder}`"
        return Problem(skill.folder, f"{why}; {how}")
