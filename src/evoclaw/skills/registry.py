"""The skill registry: the valid skills of some folders, reloaded when their files change."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.errors import ConfigError
from evoclaw.skills.approvals import SkillApprovalFile
from evoclaw.skills.folders import FolderEntry, SkillRefused, list_folder
from evoclaw.skills.loading import (
    Skill,
    SkillIssue,
    SkillPlatformMismatch,
    load_skill,
    skill_folders,
)
from evoclaw.skills.programs import bind_program, find_program
from evoclaw.skills.selection import SkillCandidate, SkillSelection, select_skills

POLL_INTERVAL_S = 2.0
"""How often the folders are checked for changes."""


class _ScannedSkill(Struct, frozen=True):
    """The result of loading a folder, valid while its listing is unchanged."""

    listing: tuple[FolderEntry, ...]
    skill: Skill | None
    problem: SkillIssue | None


class SkillRegistry:
    """The skills of some folders; a broken skill does not affect the others. Thread-safe."""

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        approvals: SkillApprovalFile | None = None,
        strict: bool = False,
        strict_roots: Collection[Path] = (),
        reserved: Mapping[str, str] | None = None,
        replacing: Path | None = None,
        left_out: Collection[str] = (),
        poll_interval: float = POLL_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
        platform: str = sys.platform,
        find: Callable[[str], str | None] = find_program,
    ) -> None:
        """Use the skills of some folders.

        Args:
            roots: Folders of skills; of two skills in conflict the one of the earlier root is used.
            approvals: The approved digests; a skill that changed since its approval is rejected.
            strict: Also reject skills that were never approved.
            strict_roots: Further folders, after the others; skills there must be approved.
            reserved: Tool names that no skill may use, and what they belong to.
            replacing: The folder of one more skill, whose tools may have reserved names.
            left_out: Names of tools that are not offered, though a skill declares them.
            poll_interval: Seconds between two checks of the folders.
            clock: The monotonic time in seconds.
            platform: As in `sys.platform`.
            find: Finds an installed program.
        """
        self._roots, self._approvals, self._strict = (*roots, *strict_roots), approvals, strict
        self._strict_roots = frozenset(strict_roots)
        self._reserved = dict(reserved or {})
        self._replacing, self._left_out = replacing, frozenset(left_out)
        self._poll_interval, self._clock = poll_interval, clock
        self._platform, self._find = platform, find
        self._lock = threading.Lock()
        self._refreshed_at: float | None = None
        self._scanned: dict[Path, _ScannedSkill] = {}
        self._selection = SkillSelection()
        self._bound: dict[str, tuple[BoundTool, ...]] = {}

    def skills(self) -> tuple[Skill, ...]:
        """The skills in use, sorted by name; checks the folders after the poll interval."""
        return self._current().skills

    def shadowed(self) -> tuple[Skill, ...]:
        """Older versions of skills in use."""
        return self._current().shadowed

    def problems(self) -> tuple[SkillIssue, ...]:
        """The folders that are not used, and the reasons."""
        return self._current().problems

    def find(self, name: str) -> Skill | None:
        """The skill of this name or `name@version`; None if there is none."""
        selection = self._current()
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
        for skill in self._current().skills:
            pinned = self.pinned(skill)
            key = f"{skill.folder}\0{skill.digest}\0{pinned}"
            bound[key] = self._bound.get(key) or tuple(
                bind_program(skill, program, pinned=pinned, find=self._find)
                for program in skill.programs
                if program.tool.name not in self._left_out
                and (not program.on_path or self._find(program.binary))
            )
        self._bound = bound
        return tuple(tool for tools in bound.values() for tool in tools)

    def refresh(self) -> None:
        """Check the folders now."""
        with self._lock:
            self._refresh()

    def _current(self) -> SkillSelection:
        with self._lock:
            if (
                self._refreshed_at is None
                or self._clock() - self._refreshed_at >= self._poll_interval
            ):
                self._refresh()
            return self._selection

    def _refresh(self) -> None:
        self._refreshed_at = self._clock()
        problems: list[SkillIssue] = []
        candidates: list[SkillCandidate] = []
        scanned: dict[Path, _ScannedSkill] = {}
        in_use = {skill.folder for skill in self._selection.skills}
        for number, root in enumerate(self._roots):
            folders, root_problems = skill_folders(root)
            problems += root_problems
            for folder in folders:
                if self._replacing is not None and folder.resolve() == self._replacing.resolve():
                    continue
                # A new skill does not replace one of the same root that is in use.
                self._add(folder, (number, folder not in in_use), scanned, candidates, problems)
        if self._replacing is not None:
            self._add(self._replacing, (-1,), scanned, candidates, problems)
        self._scanned = scanned
        chosen = select_skills(candidates, self._reserved)
        self._selection = SkillSelection(
            chosen.skills, chosen.shadowed, (*problems, *chosen.problems)
        )

    def _add(
        self,
        folder: Path,
        rank: tuple[int, ...],
        scanned: dict[Path, _ScannedSkill],
        candidates: list[SkillCandidate],
        problems: list[SkillIssue],
    ) -> None:
        found = scanned[folder] = self._scan(folder)
        problems += [found.problem] if found.problem else []
        if found.skill is not None and (refusal := self._approval_issue(found.skill)):
            problems.append(refusal)
        elif found.skill is not None:
            replaces = folder == self._replacing
            candidates.append(SkillCandidate(found.skill, rank, replaces))

    def _scan(self, folder: Path) -> _ScannedSkill:
        before = self._scanned.get(folder)
        listing = list_folder(folder)
        if before is not None and before.listing == listing:
            return before
        try:
            return _ScannedSkill(listing, load_skill(folder, platform=self._platform), None)
        except SkillRefused as refused:
            issue = SkillIssue(
                refused.path, refused.reason, not isinstance(refused, SkillPlatformMismatch)
            )
        previous = before.skill if before and issue.refused else None
        if previous is None or self._was_pinned(previous):
            # An approved skill runs as it was approved or not at all.
            return _ScannedSkill(listing, None, issue)
        reason = f"{issue.reason} (the version loaded before stays in use)"
        return _ScannedSkill(listing, previous, SkillIssue(issue.path, reason))

    def _was_pinned(self, skill: Skill) -> bool:
        try:
            return self._approvals is not None and bool(self._approvals.digests(skill.name))
        except ConfigError:
            return True  # without readable approvals nothing counts as approved

    def _approval_issue(self, skill: Skill) -> SkillIssue | None:
        if self._approvals is None:
            if skill.folder.parent in self._strict_roots:
                return SkillIssue(skill.folder, "there is no list of approved skills")
            return None
        try:
            digests = self._approvals.digests(skill.name)
        except ConfigError as problem:
            return SkillIssue(skill.folder, str(problem))
        is_strict = self._strict or skill.folder.parent in self._strict_roots
        if skill.digest in digests or (not digests and not is_strict):
            return None
        why = "it was changed after it was approved" if digests else "it was never approved"
        how = f"review it, then run `evoclaw skills add {skill.folder}`"
        return SkillIssue(skill.folder, f"{why}; {how}")
