"""Loads a skill from its folder: checks every file and computes the digest."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from msgspec import Struct

from evoclaw.skills import names
from evoclaw.skills.folders import (
    FolderEntry,
    SkillRefused,
    check_folder,
    digest_of,
    hash_files,
    list_folder,
    read_text,
)
from evoclaw.skills.manifest import (
    MANIFEST_FILE,
    MANIFEST_FILES,
    Manifest,
    SkillProgram,
    SkillTable,
    read_manifest,
)
from evoclaw.skills.skill_guide import SKILL_FILES, SkillGuide, read_guide

MAX_SKILLS_PER_ROOT = 500
"""Of one root folder."""


class Skill(Struct, frozen=True):
    """A skill that was loaded and is valid."""

    name: str
    version: str
    description: str
    folder: Path
    instructions: str
    """What the model reads when it loads the skill."""
    programs: tuple[SkillProgram, ...]
    """The tools of the skill that run on this platform."""
    allowed_tools: frozenset[str] | None
    """The tool names of `allowed-tools`, in lower case; None: no restriction."""
    guide: SkillGuide | None
    """The parsed SKILL.md; None if there is only a skill.toml."""
    listing: tuple[FolderEntry, ...]
    """The listing of the folder when it was loaded."""
    file_hashes: dict[str, str]
    """The SHA-256 of each file, by path."""
    digest: str
    notes: tuple[str, ...] = ()
    """Warnings about the skill."""
    disallowed_tools: frozenset[str] = frozenset()
    """The tool names of `disallowed-tools`, in lower case."""

    @property
    def key(self) -> str:
        """The name with the version: `name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def references(self) -> tuple[str, ...]:
        """The files that the model may read on demand."""
        own = (*SKILL_FILES, *MANIFEST_FILES)
        return tuple(path for path in self.file_hashes if path not in own)


class SkillPlatformMismatch(SkillRefused):
    """A valid skill for another platform."""


class SkillIssue(Struct, frozen=True):
    """A folder that is not used as a skill, and the reason."""

    path: Path
    reason: str
    refused: bool = True
    """False: the skill is valid, but it is for another platform or not needed here."""


def skill_folders(root: Path) -> tuple[list[Path], list[SkillIssue]]:
    """The folders of a root that should be skills, and the problems of the root itself."""
    try:
        about = root.stat()
        if not stat.S_ISDIR(about.st_mode):
            return [], [SkillIssue(root, "it is not a folder; name a folder of skills")]
        if about.st_mode & stat.S_IWOTH:
            return [], [SkillIssue(root, "every user may write to it; run `chmod o-w` on it")]
        found = sorted(
            path
            for path in root.iterdir()
            if not path.name.startswith(".") and (path.is_dir() or path.is_symlink())
        )
    except FileNotFoundError:
        return [], []
    except OSError as problem:
        return [], [SkillIssue(root, f"cannot read it: {problem.strerror}")]
    too_many = f"{root} has more than {MAX_SKILLS_PER_ROOT} skills; remove some of them"
    beyond = [SkillIssue(path, too_many) for path in found[MAX_SKILLS_PER_ROOT:]]
    return found[:MAX_SKILLS_PER_ROOT], beyond


def load_skill(folder: Path, *, platform: str) -> Skill:
    """Load a skill; `SkillRefused` if it is not valid."""
    listing = list_folder(folder)
    if not listing:
        raise SkillRefused(folder, "the folder does not exist")
    files = check_folder(folder, listing)
    guide_file = next((name for name in SKILL_FILES if name in files), None)
    manifest_file = _manifest_file(folder, files)
    if guide_file is None and manifest_file is None:
        raise SkillRefused(folder, f"the folder has neither {SKILL_FILES[0]} nor {MANIFEST_FILE}")
    guide, manifest = None, Manifest(SkillTable(), (), 0)
    if guide_file is not None:
        guide = read_guide(folder / guide_file, read_text(folder, guide_file))
    if manifest_file is not None:
        manifest = read_manifest(
            folder / manifest_file, read_text(folder, manifest_file), platform=platform
        )
    name, version = _identity(folder, guide, manifest.about)
    if not names.supports_platform(manifest.about.platforms, platform):
        wanted = ", ".join(manifest.about.platforms)
        raise SkillPlatformMismatch(folder, f"the skill is for {wanted}, not for this platform")
    if guide is None and not manifest.declared:
        raise SkillRefused(
            folder / (manifest_file or MANIFEST_FILE),
            "it has no [[tools]], and the folder has no SKILL.md; add one of them",
        )
    if guide is None and not manifest.programs:
        raise SkillPlatformMismatch(folder, "none of the skill's tools is for this platform")
    for program in manifest.programs:
        _check_binary(folder, program, files)
    sums = hash_files(folder, files)
    return Skill(
        name,
        version,
        guide.description if guide else _description(manifest),
        folder,
        guide.instructions if guide else "",
        manifest.programs,
        guide.allowed_tools if guide else None,
        guide,
        listing,
        sums,
        digest_of(files, sums),
        guide.notes if guide else (),
        guide.disallowed_tools if guide else frozenset(),
    )


def _manifest_file(folder: Path, files: dict[str, FolderEntry]) -> str | None:
    found = [name for name in MANIFEST_FILES if name in files]
    if len(found) > 1:
        raise SkillRefused(folder, f"the folder has {' and '.join(found)}; keep one of them")
    return found[0] if found else None


def _identity(folder: Path, guide: SkillGuide | None, about: SkillTable) -> tuple[str, str]:
    """The name and version; the folder is called `name`, or `name@version` for one of several."""
    base, _, tagged = folder.name.partition("@")
    name = about.name or (guide.name if guide else base)
    if problem := names.skill_name_problem(name):
        raise SkillRefused(folder, problem)
    if name != base or (guide is not None and guide.name != name):
        declared = sorted({name, guide.name if guide else name})
        raise SkillRefused(
            folder,
            f"the folder must have the skill's name; its files say {' and '.join(declared)!r}",
        )
    in_guide = guide.metadata.get("version", "") if guide else ""
    version = about.version if about.version != names.NO_VERSION else in_guide or names.NO_VERSION
    for other in filter(None, (in_guide, tagged)):
        if not names.VERSION_PATTERN.fullmatch(other):
            raise SkillRefused(folder, f"the version {other[:40]!r} must look like 1.2.3")
        if names.version_key(other) != names.version_key(version):
            raise SkillRefused(
                folder, f"the skill declares two versions, {version} and {other}; make them equal"
            )
    return name, version


def _check_binary(folder: Path, program: SkillProgram, files: dict[str, FolderEntry]) -> None:
    if program.on_path:
        return
    entry = files.get(program.binary)
    if entry is None:
        hint = "" if "/" in program.binary else "; for an installed program, set on_path = true"
        raise SkillRefused(folder, f"tool {program.tool.name!r}: no file {program.binary!r}{hint}")
    if os.name == "posix" and not entry.mode & stat.S_IXUSR:
        raise SkillRefused(folder / program.binary, "it is not executable; run `chmod +x` on it")


def _description(manifest: Manifest) -> str:
    tools = ", ".join(program.tool.name for program in manifest.programs)
    return manifest.about.description or f"Tools: {tools}"
