"""From a folder to a skill: everything in it checked, its content pinned down by a digest."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from msgspec import Struct

from evoclaw.skills import names
from evoclaw.skills.folders import (
    Entry,
    SkillRefused,
    check,
    digest_of,
    hashes,
    look,
    read_text,
)
from evoclaw.skills.manifest import FILE, About, Manifest, Program, read_manifest
from evoclaw.skills.markdown import FILES, Guide, read_guide

MAX_SKILLS = 500
"""Folders of one root."""


class Skill(Struct, frozen=True):
    """A skill that may be used."""

    name: str
    version: str
    description: str
    folder: Path
    instructions: str
    """For the model, once the skill is active."""
    programs: tuple[Program, ...]
    """Its own tools, those for this platform."""
    allowed: frozenset[str] | None
    """The tools it works with, in lower case; None: it does not narrow them."""
    about: Guide | None
    """What its SKILL.md says of it."""
    listing: tuple[Entry, ...]
    """The folder as it was when loaded."""
    sums: dict[str, str]
    """Its files and the SHA-256 of each."""
    digest: str
    notes: tuple[str, ...] = ()
    """What is odd, but not wrong."""

    @property
    def key(self) -> str:
        """Its name with its version."""
        return f"{self.name}@{self.version}"

    @property
    def references(self) -> tuple[str, ...]:
        """The files that may be read on demand."""
        return tuple(path for path in self.sums if path not in (*FILES, FILE))


class NotHere(SkillRefused):
    """A sound skill, but for another platform."""


class Problem(Struct, frozen=True):
    """A skill that is not used, and why."""

    path: Path
    reason: str
    refused: bool = True
    """False: nothing is wrong with it, it is only not for this machine."""


def folders_in(root: Path) -> tuple[list[Path], list[Problem]]:
    """The folders of a root that should be skills."""
    try:
        about = root.stat()
        if not stat.S_ISDIR(about.st_mode):
            return [], [Problem(root, "it is not a folder")]
        if about.st_mode & stat.S_IWOTH:
            return [], [Problem(root, "everybody may write to it; run `chmod o-w` on it")]
        found = sorted(
            path
            for path in root.iterdir()
            if not path.name.startswith(".") and (path.is_dir() or path.is_symlink())
        )
    except FileNotFoundError:
        return [], []
    except OSError as problem:
        return [], [Problem(root, f"it cannot be read: {problem.strerror}")]
    beyond = [Problem(path, f"there are more than {MAX_SKILLS}") for path in found[MAX_SKILLS:]]
    return found[:MAX_SKILLS], beyond


def load_skill(folder: Path, *, platform: str) -> Skill:
    """Load a skill; whatever is wrong with it is a `SkillRefused`."""
    listing = look(folder)
    if not listing:
        raise SkillRefused(folder, "it is not there")
    files = check(folder, listing)
    guide_file = next((name for name in FILES if name in files), None)
    if guide_file is None and FILE not in files:
        raise SkillRefused(folder, f"it has neither {FILES[0]} nor {FILE}")
    guide, manifest = None, Manifest(About(), (), 0)
    if guide_file is not None:
        guide = read_guide(folder / guide_file, read_text(folder, guide_file))
    if FILE in files:
        manifest = read_manifest(folder / FILE, read_text(folder, FILE), platform=platform)
    name, version = _identity(folder, guide, manifest.about)
    if not names.fits(manifest.about.platforms, platform):
        wanted = ", ".join(manifest.about.platforms)
        raise NotHere(folder, f"it is for {wanted}, not for this platform")
    if guide is None and not manifest.declared:
        raise SkillRefused(folder / FILE, "it has no [[tools]], and there is no SKILL.md beside it")
    if guide is None and not manifest.programs:
        raise NotHere(folder, "none of its tools is for this platform")
    for program in manifest.programs:
        _check_binary(folder, program, files)
    sums = hashes(folder, files)
    return Skill(
        name,
        version,
        guide.description if guide else _description(manifest),
        folder,
        guide.instructions if guide else "",
        manifest.programs,
        guide.allowed if guide else None,
        guide,
        listing,
        sums,
        digest_of(files, sums),
        guide.notes if guide else (),
    )


def _identity(folder: Path, guide: Guide | None, about: About) -> tuple[str, str]:
    """Name and version; the folder is `name`, or `name@version` where there are several."""
    base, _, tagged = folder.name.partition("@")
    name = about.name or (guide.name if guide else base)
    if problem := names.problem_with_skill(name):
        raise SkillRefused(folder, problem)
    if name != base or (guide is not None and guide.name != name):
        said = sorted({name, guide.name if guide else name})
        raise SkillRefused(
            folder, f"the folder must have the skill's name; it is named {' and '.join(said)!r}"
        )
    in_guide = guide.metadata.get("version", "") if guide else ""
    version = about.version if about.version != names.NO_VERSION else in_guide or names.NO_VERSION
    for other in filter(None, (in_guide, tagged)):
        if not names.VERSION.fullmatch(other):
            raise SkillRefused(folder, f"version {other[:40]!r} is not like 1.2.3")
        if names.version_key(other) != names.version_key(version):
            raise SkillRefused(folder, f"it says to be version {version} and version {other}")
    return name, version


def _check_binary(folder: Path, program: Program, files: dict[str, Entry]) -> None:
    if program.on_path:
        return
    entry = files.get(program.binary)
    if entry is None:
        hint = "" if "/" in program.binary else "; for an installed program, say on_path = true"
        raise SkillRefused(
            folder / FILE, f"tool {program.tool.name!r}: there is no {program.binary!r}{hint}"
        )
    if os.name == "posix" and not entry.mode & stat.S_IXUSR:
        raise SkillRefused(folder / program.binary, "it cannot be run; use `chmod +x` on it")


def _description(manifest: Manifest) -> str:
    tools = ", ".join(program.tool.name for program in manifest.programs)
    return manifest.about.description or f"Tools: {tools}"
