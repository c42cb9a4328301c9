"""Binds the programs of a skill as tools that run as processes on a machine."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from msgspec import Struct

from evoclaw.core.bound_tools import BoundTool, ToolEnvironment
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, TextBlock, ToolResult
from evoclaw.core.ops import CompletedProcess, ExecOps
from evoclaw.core.tools import Call
from evoclaw.skills.arguments import build_command_line
from evoclaw.skills.folders import (
    MAX_SKILL_BYTES,
    SkillRefused,
    folder_digest,
    list_folder,
    read_bytes,
)
from evoclaw.skills.loading import Skill
from evoclaw.skills.manifest import SkillProgram

MAX_STREAM_BYTES = 64 << 10
"""Of stdout and of stderr; longer output keeps its beginning and its end."""
MAX_STDERR_BYTES = 8 << 10
NO_SANDBOX = "none"
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "EVOCLAW_SANDBOX_ENGINE": NO_SANDBOX}
"""Of every program. It runs in the sandbox of its machine already: `dt-bash` builds none in it."""


class Sandboxes(Protocol):
    """The sandboxes of the machine."""

    def exec_in(self, engine: str, *, tenant: str, trusted: bool) -> ExecOps:
        """Processes inside a sandbox engine; `ToolFailure` if the machine does not have it."""
        ...


class ProgramVariables(Struct, frozen=True):
    """Further environment variables of every program of a machine."""

    values: dict[str, str]


def find_program(name: str) -> str | None:
    """Find an installed program on the PATH or next to the running Python interpreter."""
    interpreter_folder = str(Path(sys.executable).parent)
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{interpreter_folder}")


def bind_program(
    skill: Skill,
    program: SkillProgram,
    *,
    pinned: bool = False,
    find: Callable[[str], str | None] = find_program,
) -> BoundTool:
    """Bind a declared tool to its program.

    Args:
        skill: The skill that declares the tool.
        program: The declaration.
        pinned: The user approved the skill: the tool runs only while its folder is unchanged.
        find: Finds an installed program.
    """

    async def run(call: Call, machine: ToolEnvironment) -> ToolResult:
        line = build_command_line(program.bindings, call.arguments, program.args)
        path = await asyncio.to_thread(_program_path, skill, program, pinned, find)
        done = await _ops(program, machine, call).run(
            (path, *line.arguments),
            env={**ENVIRONMENT, **_variables(machine), "EVOCLAW_SKILL": str(skill.folder)},
            stdin=line.stdin,
            on_output=machine.progress if program.tool.streams else None,
            max_output=MAX_STREAM_BYTES,
        )
        return _result(call, done)

    return BoundTool(program.tool, run, frozenset({ExecOps}))


def _variables(machine: ToolEnvironment) -> dict[str, str]:
    given = cast("ProgramVariables | None", machine.dependencies.get(ProgramVariables))
    return {} if given is None else given.values


def _ops(program: SkillProgram, machine: ToolEnvironment, call: Call) -> ExecOps:
    if program.sandboxing == NO_SANDBOX:
        return cast("ExecOps", machine.dependencies[ExecOps])
    sandboxes = cast("Sandboxes | None", machine.dependencies.get(Sandboxes))
    if sandboxes is None:
        raise ToolFailure(
            ErrorKind.SANDBOX_UNAVAILABLE,
            f"'{program.tool.name}' must run inside {program.sandboxing}, which this machine does "
            "not offer. Explain this to the user.",
        )
    principal, trusted = call.context.principal, not call.context.label.untrusted
    return sandboxes.exec_in(program.sandboxing, tenant=principal.tenant, trusted=trusted)


def _program_path(
    skill: Skill, program: SkillProgram, pinned: bool, find: Callable[[str], str | None]
) -> str:
    if list_folder(skill.folder) != skill.listing:
        _check_unchanged(skill, program, pinned)
    if not program.on_path:
        return str(skill.folder / program.binary)
    found = find(program.binary)
    if found is None:
        raise ToolFailure(
            ErrorKind.NOT_FOUND,
            f"The program '{program.binary}' is not installed on this machine. Tell the user.",
        )
    return found


def _check_unchanged(skill: Skill, program: SkillProgram, pinned: bool) -> None:
    try:
        if pinned:
            same = folder_digest(skill.folder) == skill.digest
        elif program.on_path:
            same = True
        else:
            data = read_bytes(skill.folder, program.binary, MAX_SKILL_BYTES)
            same = hashlib.sha256(data).hexdigest() == skill.file_hashes[program.binary]
    except SkillRefused:
        same = False
    if not same:
        why = "since it was approved" if pinned else "since it was loaded"
        raise ToolFailure(
            ErrorKind.CONFLICT,
            f"The skill '{skill.name}' was changed {why}. Tell the user; "
            f"`evoclaw skills check {skill.name}` says more.",
        )


def _result(call: Call, done: CompletedProcess) -> ToolResult:
    details: dict[str, JSON] = {
        "exit_code": done.exit_code,
        "isolation": done.isolation,
        "stdout_bytes": done.stdout_bytes,
        "stderr_bytes": done.stderr_bytes,
    }
    stdout, stderr = _text(done.stdout).strip("\n"), _text(done.stderr[-MAX_STDERR_BYTES:]).strip()
    if done.exit_code == 0:
        # The stderr of a program that succeeded is for people, not for the model.
        details |= {"stderr": stderr} if stderr else {}
        return ToolResult(
            call.id, call.name, (TextBlock(stdout or "(no output)"),), details=details
        )
    how = f"by signal {-done.exit_code}" if done.exit_code < 0 else f"with code {done.exit_code}"
    text = "\n".join(part for part in (f"It ended {how}.", stdout, stderr) if part)
    raise ToolFailure(ErrorKind.EXECUTION_FAILED, text, **details)


def _text(data: bytes) -> str:
    return data.decode(errors="replace").replace("\0", "\ufffd")
