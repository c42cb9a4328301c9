"""`evoclaw skills`: list, show, check, create and add skills."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from evoclaw.cli import exits
from evoclaw.cli.options import FILE, CommandGroup, json_option
from evoclaw.cli.output import print_out
from evoclaw.cli.terminal_text import clean, one_line, print_table
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.skills import names
from evoclaw.skills.approvals import SkillApprovalFile
from evoclaw.skills.desktop_tools import DESKTOP_TOOLS, bundled_skills_folder, write_programs
from evoclaw.skills.folders import SkillRefused
from evoclaw.skills.loading import Skill, SkillPlatformMismatch, load_skill
from evoclaw.skills.manifest import SkillProgram
from evoclaw.skills.programs import NO_SANDBOX
from evoclaw.skills.registry import SkillRegistry

SKILL_TEMPLATE = """\
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

MANIFEST_TEMPLATE = """\
[[tools]]
name = "{tool}"
binary = "scripts/{tool}"
description = "Greet a person."
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

SCRIPT_TEMPLATE = """\
#!/bin/sh
# Called as: scripts/{tool} --who=NAME
for word in "$@"; do
  case "$word" in
    --who=*) printf 'Hello, %s!\\n' "${{word#--who=}}" ;;
  esac
done
"""


@click.group(cls=CommandGroup, default="list")
def skills() -> None:
    """List, show, check, create and add skills."""


@skills.command("list", help="List skills (the default)")
@json_option()
def _list(*, as_json: bool) -> int:
    folder, registry, _ = _open_skills()
    _print_all(registry, folder, as_json=as_json)
    return exits.OK


@skills.command("show", help="Show the tools, files and instructions of a skill")
@click.argument("name", help="Name of the skill")
@json_option()
def _show(name: str, *, as_json: bool) -> int:
    _print_one(_open_skills()[1], name, as_json=as_json)
    return exits.OK


@skills.command("check", help="Check skills, and report what is wrong with them")
@click.argument("name", required=False, help="A skill or a folder  [default: all skills]")
@click.option("--json", is_flag=True, expose_value=False, help="Accept --json; the report is text")
def _check(name: str | None) -> int:
    if name and ("/" in name or Path(name).is_dir()):
        return _check_folder(Path(name))
    return _check_all(_open_skills()[1], name)


@skills.command("new", help="Create a skill")
@click.argument("name", help="Lower-case letters, digits and hyphens")
@click.option("--tool", is_flag=True, help="Add a program as a tool")
def _new(name: str, *, tool: bool) -> int:
    _create(_open_skills()[0], name, tool=tool)
    return exits.OK


@skills.command("add", help="Copy a skill here and approve it; one of the workspace stays there")
@click.argument("path", type=FILE, help="Folder of the skill")
def _add(path: Path) -> int:
    folder, _, approved = _open_skills()
    copy_and_approve(path, folder, approved)
    return exits.OK


def _open_skills() -> tuple[Path, SkillRegistry, SkillApprovalFile]:
    """The folder of the skills, the skill registry, and the approvals."""
    from evoclaw.wiring.skills import skill_locations, skill_registry

    folder, approved, _ = skill_locations(os.environ)
    return folder, skill_registry(os.environ, Path.cwd()), approved


def _print_all(registry: SkillRegistry, folder: Path, *, as_json: bool) -> None:
    every: Sequence[Skill] = (*registry.skills(), *registry.shadowed(), *_shipped_skills())
    problems = registry.problems()
    if as_json:
        problem_rows = [
            {"path": str(problem.path), "reason": problem.reason, "refused": problem.refused}
            for problem in problems
        ]
        rows = [_facts(skill, registry) for skill in every]
        print_out({"skills": rows, "problems": problem_rows})
        return
    for skill in every:
        state = "approved" if registry.pinned(skill) else ""
        print_out(f"{skill.key:28} {state:9} {one_line(skill.description, 80)}")
    for problem in problems:
        word = "refused" if problem.refused else "not here"
        print_out(f"({word}: {clean(str(problem.path))}: {clean(problem.reason)})")
    if not registry.skills() and not problems:
        print_out(f"no skills of your own in {folder}; create one with `evoclaw skills new NAME`")


def _shipped_skills() -> list[Skill]:
    return [load_skill(bundled_skills_folder() / DESKTOP_TOOLS, platform=sys.platform)]


def _facts(skill: Skill, registry: SkillRegistry) -> dict[str, JSON]:
    return {
        "name": skill.name,
        "version": skill.version,
        "description": skill.description,
        "path": str(skill.folder),
        "digest": skill.digest,
        "approved": registry.pinned(skill),
        "tools": [program.tool.name for program in skill.programs],
        "allowed_tools": None if skill.allowed_tools is None else sorted(skill.allowed_tools),
        "disallowed_tools": sorted(skill.disallowed_tools),
        "references": list(skill.references),
        "notes": list(skill.notes),
    }


def _print_one(registry: SkillRegistry, name: str, *, as_json: bool) -> None:
    skill = registry.find(name)
    if skill is None:
        skill = next((known for known in _shipped_skills() if known.name == name), None)
    if skill is None:
        known = [skill.name for skill in (*registry.skills(), *_shipped_skills())]
        raise ConfigError(names.unknown_name("skill", name, known))
    facts = _facts(skill, registry)
    if as_json:
        programs = [_program(skill, program) for program in skill.programs]
        print_out({**facts, "programs": programs, "instructions": skill.instructions})
        return
    for key in ("version", "path", "digest", "approved"):
        print_out(f"{key + ':':13}{facts[key]}")
    for key in ("tools", "references", "notes"):
        print_out(f"{key + ':':13}{clean(', '.join(facts[key])) or 'none'}")
    narrows = (
        "all" if skill.allowed_tools is None else ", ".join(sorted(skill.allowed_tools)) or "none"
    )
    print_out(f"{'works with:':13}{narrows}")
    if skill.disallowed_tools:
        print_out(f"{'never uses:':13}{', '.join(sorted(skill.disallowed_tools))}")
    if skill.programs:
        print_out("")
        print_table([_PROGRAM_HEAD, *(_program_row(program) for program in skill.programs)], "")
    print_out(f"\n{clean(skill.description)}\n\n{clean(skill.instructions)}")


_PROGRAM_HEAD = ("tool", "program", "sandbox", "timeout", "needs")


def _program_row(program: SkillProgram) -> tuple[str, ...]:
    tool = program.tool
    needs = ", ".join(sorted(tool.permissions)) or "nothing"
    return (tool.name, program.binary, _engine(program), f"{tool.timeout:g} s", needs)


def _engine(program: SkillProgram) -> str:
    """The sandbox engine that a program must run in; `default` is that of the machine."""
    return "default" if program.sandboxing == NO_SANDBOX else program.sandboxing


def _program(skill: Skill, program: SkillProgram) -> dict[str, JSON]:
    """A tool of a skill in the documented format: a schema, and the keys of EvoClaw."""
    tool = program.tool
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "evoclaw": {
            "binary": program.binary,
            "timeout_ms": round(tool.timeout * 1000),
            "sandbox": _engine(program),
            "permissions": sorted(tool.permissions),
            "version": tool.version,
            "skill": skill.name,
        },
    }


def _check_all(registry: SkillRegistry, asked: str | None) -> int:
    """Report what is wrong with one skill, or with all."""
    wrong = 0
    for skill in registry.skills():
        if asked in (None, "", skill.name, skill.key):
            print_out(f"{skill.key}: good")
            for note in skill.notes:
                print_out(f"  note: {clean(note)}")
    for problem in registry.problems():
        if not asked or asked in str(problem.path):
            wrong += problem.refused
            print_out(f"{clean(str(problem.path))}: {clean(problem.reason)}")
    if asked and not wrong and registry.find(asked) is None:
        raise ConfigError(f"there is no skill {asked!r}; see `evoclaw skills`")
    return exits.FAILED if wrong else exits.OK


def _check_folder(folder: Path) -> int:
    try:
        skill = load_skill(folder.absolute(), platform=sys.platform)
    except SkillPlatformMismatch as other:
        print_out(clean(str(other)))
        return exits.OK
    except SkillRefused as refused:
        print_out(clean(str(refused)))
        return exits.FAILED
    print_out(f"{skill.key}: good")
    for note in skill.notes:
        print_out(f"  note: {clean(note)}")
    return exits.OK


def _create(folder: Path, name: str, *, tool: bool) -> None:
    """Create a skill from templates: one file, or with a tool three."""
    if problem := names.skill_name_problem(name):
        raise ConfigError(problem)
    target = folder / name
    if target.exists():
        raise ConfigError(f"{target} already exists; choose another name")
    program = name.replace("-", "_")
    program = f"_{program}"[: names.MAX_NAME_CHARS] if program[0].isdigit() else program
    try:
        target.mkdir(parents=True)
        title = name.replace("-", " ").capitalize()
        (target / "SKILL.md").write_text(SKILL_TEMPLATE.format(name=name, title=title))
        if tool:
            (target / "skill.toml").write_text(MANIFEST_TEMPLATE.format(tool=program))
            script = target / "scripts" / program
            script.parent.mkdir()
            script.write_text(SCRIPT_TEMPLATE.format(tool=program))
            script.chmod(0o755)
    except OSError as problem:
        raise ConfigError(f"cannot write {target}: {problem.strerror}") from None
    print_out(f"created {target}; edit its SKILL.md, then `evoclaw skills check {name}`")


def copy_and_approve(path: Path, folder: Path, approvals: SkillApprovalFile) -> None:
    """Copy a skill into the skills folder and approve it.

    One that is in that folder already, or in one of this workspace, is only approved.
    """
    from evoclaw.wiring.skills import workspace_skill_folders

    source = path.absolute()
    if path == Path(DESKTOP_TOOLS) and not source.exists():
        source = bundled_skills_folder() / DESKTOP_TOOLS
    skill = load_skill(source, platform=sys.platform)
    target = folder / source.name
    if source != target and source.parent not in workspace_skill_folders(Path.cwd()):
        if target.exists():
            raise ConfigError(f"{target} already exists; remove it first")
        _copy(skill, target)
        if source.resolve() == (bundled_skills_folder() / DESKTOP_TOOLS).resolve():
            # The programs are started by other processes, so they need the path of this Python.
            tools = [program.tool.name for program in skill.programs]
            write_programs(target, tools, python=sys.executable)
        skill = load_skill(target, platform=sys.platform)
    approvals.pin(skill.name, skill.digest)
    print_out(f"added {skill.key}: {len(skill.file_hashes)} files, digest {skill.digest[:12]}")


def _copy(skill: Skill, target: Path) -> None:
    """Copy the files that were checked: all of them, or none."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".adding-") as folder:
            half = Path(folder, target.name)
            for inside in skill.file_hashes:
                (half / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(skill.folder / inside, half / inside, follow_symlinks=False)
            copied = load_skill(half, platform=sys.platform)
            if copied.digest != skill.digest:
                raise ConfigError(f"{skill.folder} was changed while it was copied; try again")
            half.rename(target)
    except OSError as problem:
        raise ConfigError(f"cannot copy {skill.folder} to {target}: {problem.strerror}") from None
