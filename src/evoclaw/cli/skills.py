"""`evoclaw skills`: see, check, make and add skills."""

from __future__ import annotations

import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from evoclaw.cli import exits
from evoclaw.cli.clean import clean, one_line
from evoclaw.cli.fleet import show
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.skills import names
from evoclaw.skills.approvals import ApprovalFile
from evoclaw.skills.folders import SkillRefused
from evoclaw.skills.generated import NAME, shipped, write_programs
from evoclaw.skills.loading import NotHere, Skill, load_skill
from evoclaw.skills.watching import Shelf

GUIDE = """\
---
name: {name}
description: Say what it does and when to use it, in one or two sentences.
metadata:
  version: "1.0.0"
---

# {title}

1. Say step by step what to do.
2. Longer texts go into `references/`, programs into `scripts/`.
"""

MANIFEST = """\
[[tools]]
name = "{tool}"
binary = "scripts/{tool}"
description = "Greet somebody."
permissions = ["shell"]
effect = "read"
idempotent = true
timeout_ms = 5000

[tools.parameters]
required = ["who"]

[tools.parameters.properties.who]
type = "string"
description = "Whom to greet."
"""

SCRIPT = """\
#!/bin/sh
# Called as: scripts/{tool} --who=NAME
for word in "$@"; do
  case "$word" in
    --who=*) printf 'Hello, %s!\\n' "${{word#--who=}}" ;;
  esac
done
"""


def skills(
    options: Namespace, folder: Path, approvals: ApprovalFile, reserved: Mapping[str, str]
) -> int:
    """Do one of the actions.

    Args:
        options: What was typed: `action`, and `name`, `path`, `tool`, `json` where they apply.
        folder: Where the skills are.
        approvals: What was approved.
        reserved: The names of the built-in tools, and where they are from.
    """
    shelf = Shelf([folder], approvals=approvals, reserved=reserved)
    match options.action:
        case "show":
            _show(options, shelf)
        case "check":
            return _check(options, shelf)
        case "new":
            _new(folder, options.name, tool=options.tool)
        case "add":
            _add(Path(options.path), folder, approvals)
        case _:
            _list(options, shelf, folder)
    return exits.OK


def _list(options: Namespace, shelf: Shelf, folder: Path) -> None:
    every: Sequence[Skill] = (*shelf.skills(), *shelf.shadowed(), *_with_the_package())
    problems = shelf.problems()
    if options.json:
        told = [
            {"path": str(one.path), "reason": one.reason, "refused": one.refused}
            for one in problems
        ]
        show({"skills": [_facts(one, shelf) for one in every], "problems": told})
        return
    for skill in every:
        state = "approved" if shelf.pinned(skill) else ""
        show(f"{skill.key:28} {state:9} {one_line(skill.description, 80)}")
    for one in problems:
        word = "refused" if one.refused else "not here"
        show(f"({word}: {clean(str(one.path))}: {clean(one.reason)})")
    if not shelf.skills() and not problems:
        show(f"none of your own in {folder}; `evoclaw skills new NAME` makes one")


def _with_the_package() -> list[Skill]:
    return [load_skill(shipped() / NAME, platform=sys.platform)]


def _facts(skill: Skill, shelf: Shelf) -> dict[str, JSON]:
    return {
        "name": skill.name,
        "version": skill.version,
        "description": skill.description,
        "path": str(skill.folder),
        "digest": skill.digest,
        "approved": shelf.pinned(skill),
        "tools": [program.tool.name for program in skill.programs],
        "allowed_tools": None if skill.allowed is None else sorted(skill.allowed),
        "references": list(skill.references),
        "notes": list(skill.notes),
    }


def _show(options: Namespace, shelf: Shelf) -> None:
    skill = shelf.find(options.name)
    if skill is None:
        skill = next((one for one in _with_the_package() if one.name == options.name), None)
    if skill is None:
        known = [one.name for one in (*shelf.skills(), *_with_the_package())]
        raise ConfigError(names.unknown("skill", options.name, known))
    facts = _facts(skill, shelf)
    if options.json:
        show({**facts, "instructions": skill.instructions})
        return
    for key in ("version", "path", "digest", "approved"):
        show(f"{key + ':':13}{facts[key]}")
    for key in ("tools", "references", "notes"):
        show(f"{key + ':':13}{clean(', '.join(facts[key])) or 'none'}")
    narrows = "all" if skill.allowed is None else ", ".join(sorted(skill.allowed)) or "none"
    show(f"{'works with:':13}{narrows}")
    show(f"\n{clean(skill.description)}\n\n{clean(skill.instructions)}")


def _check(options: Namespace, shelf: Shelf) -> int:
    """Say what is wrong with one skill, by name or path, or with all."""
    asked = options.name
    if asked and ("/" in asked or Path(asked).is_dir()):
        return _check_folder(Path(asked))
    wrong = 0
    for skill in shelf.skills():
        if asked in (None, "", skill.name, skill.key):
            show(f"{skill.key}: good")
            for note in skill.notes:
                show(f"  note: {clean(note)}")
    for one in shelf.problems():
        if not asked or asked in str(one.path):
            wrong += one.refused
            show(f"{clean(str(one.path))}: {clean(one.reason)}")
    if asked and not wrong and shelf.find(asked) is None:
        raise ConfigError(f"there is no skill {asked!r}")
    return exits.FAILED if wrong else exits.OK


def _check_folder(folder: Path) -> int:
    try:
        skill = load_skill(folder.absolute(), platform=sys.platform)
    except NotHere as other:
        show(clean(str(other)))
        return exits.OK
    except SkillRefused as refused:
        show(clean(str(refused)))
        return exits.FAILED
    show(f"{skill.key}: good")
    for note in skill.notes:
        show(f"  note: {clean(note)}")
    return exits.OK


def _new(folder: Path, name: str, *, tool: bool) -> None:
    """Make a skill to begin with: one file, or with a tool three."""
    if problem := names.problem_with_skill(name):
        raise ConfigError(problem)
    target = folder / name
    if target.exists():
        raise ConfigError(f"there is already a {target}")
    program = name.replace("-", "_")
    program = f"_{program}"[: names.LONGEST] if program[0].isdigit() else program
    try:
        target.mkdir(parents=True)
        title = name.replace("-", " ").capitalize()
        (target / "SKILL.md").write_text(GUIDE.format(name=name, title=title))
        if tool:
            (target / "skill.toml").write_text(MANIFEST.format(tool=program))
            script = target / "scripts" / program
            script.parent.mkdir()
            script.write_text(SCRIPT.format(tool=program))
            script.chmod(0o755)
    except OSError as problem:
        raise ConfigError(f"cannot write {target}: {problem.strerror}") from None
    show(f"made {target}; edit its SKILL.md, then `evoclaw skills check {name}`")


def _add(path: Path, folder: Path, approvals: ApprovalFile) -> None:
    """Copy a skill to the others and approve it as it is; one that is there is only approved."""
    source = path.absolute()
    if path == Path(NAME) and not source.exists():
        source = shipped() / NAME
    skill = load_skill(source, platform=sys.platform)
    target = folder / source.name
    if source != target:
        if target.exists():
            raise ConfigError(f"there is already a {target}; remove it first")
        _copy(skill, target)
        if source.resolve() == (shipped() / NAME).resolve():
            # They are started without us: only now is it known where this package is installed.
            tools = [program.tool.name for program in skill.programs]
            write_programs(target, tools, python=sys.executable)
        skill = load_skill(target, platform=sys.platform)
    approvals.pin(skill.name, skill.digest)
    show(f"added {skill.key}: {len(skill.sums)} files, digest {skill.digest[:12]}")


def _copy(skill: Skill, target: Path) -> None:
    """Copy what was looked at, whole or not at all."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".adding-") as place:
            half = Path(place, target.name)
            for inside in skill.sums:
                (half / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(skill.folder / inside, half / inside, follow_symlinks=False)
            copied = load_skill(half, platform=sys.platform)
            if copied.digest != skill.digest:
                raise ConfigError(f"{skill.folder} was changed while it was copied; try again")
            half.rename(target)
    except OSError as problem:
        raise ConfigError(f"cannot copy {skill.folder} to {target}: {problem.strerror}") from None
