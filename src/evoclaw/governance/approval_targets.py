"""What `always` covers of a tool: one command prefix, one path, or exactly one call."""

from __future__ import annotations

import posixpath
import re
import shlex

import msgspec
from msgspec import Struct

from evoclaw.core.encoding import json_digest
from evoclaw.core.messages import JSON, is_object
from evoclaw.core.redaction import Redactor, secret_fields_of
from evoclaw.core.tools import ANY_RESOURCE, Call, Tool
from evoclaw.shell.calls import SHELL_TOOLS
from evoclaw.shell.effects import Effects, names

MAX_TARGET_CHARS = 300
"""Characters of a command or path that are shown; the digest covers all of it."""
FORWARDING_TOOLS = frozenset({"edge_call", "nodes"})
"""Tools whose call is a call of another tool, on a machine that the call names."""
PREFIX_SUBCOMMANDS = {
    "apt": names("list search show"),
    "brew": names("info list search"),
    "cargo": names("build check clippy doc fmt test tree"),
    "docker": names("images inspect logs ps version"),
    "git": names(
        """add blame branch checkout commit describe diff log merge mv restore rev-parse rm shortlog
        show stash status switch tag"""
    ),
    "go": names("build list test vet"),
    "kubectl": names("describe get logs"),
    "npm": names("ci ls outdated test view"),
    "pip": names("check freeze list show"),
    "pnpm": names("ls outdated test"),
    "podman": names("images inspect logs ps version"),
    "poetry": names("check lock show"),
    "systemctl": names("is-active list-units status"),
    "uv": names("lock sync tree"),
}
"""Subcommands that are a prefix of their own, such as `git status`: none of their operands is a
program or a place on the network."""
FILE_TOOLS = names("edit glob grep image read write")
"""Tools of edges whose calls are told apart by their path alone."""
_GIT_OPTION = re.compile(r"-[^-].*|--oneline|--(?!o|e|te|up|rec|$).*")
"""Options of git that neither name a program nor an output file, in no abbreviation."""


class ApprovalTarget(Struct, frozen=True):
    """A set of calls of one tool: two calls have equal targets if `always` covers both."""

    text: str
    """For the person who is asked."""
    sha256: str = ""
    """Of what the text may show in part only."""


class Shown(Struct, frozen=True):
    """Texts as people see them: cut, and without secrets."""

    redactor: Redactor

    def __call__(self, text: str) -> str:
        """A text that stands for itself, such as a path."""
        return self.redactor.text(text, MAX_TARGET_CHARS)

    def arguments(self, arguments: dict[str, JSON], tool: Tool | None) -> str:
        """The arguments of a call on one line; those that are secret by their schema are hidden."""
        marks = None if tool is None else secret_fields_of(tool.parameters)
        line = msgspec.json.encode(self.redactor.value(arguments, marks)).decode()
        return line if len(line) <= MAX_TARGET_CHARS else f"{line[:MAX_TARGET_CHARS]}…"


def target_of(call: Call, redactor: Redactor) -> ApprovalTarget:
    """The calls of the same tool that an approval of this one covers beyond it.

    Args:
        call: The call.
        redactor: Removes secrets from the text, which is stored and shown.
    """
    shown = Shown(redactor)
    if call.name in FORWARDING_TOOLS:
        return _forwarded(call.arguments, shown)
    return _target(call.name, call.tool, call.arguments, shown)


def _target(
    name: str, tool: Tool | None, arguments: dict[str, JSON], shown: Shown
) -> ApprovalTarget:
    command = arguments.get("command")
    if name in SHELL_TOOLS and isinstance(command, str):
        return _command(command, arguments, shown)
    path = arguments.get("path")
    touched = () if tool is None or ANY_RESOURCE in tool.resources else tool.resources
    if touched and all(isinstance(arguments.get(key), str) for key in touched):
        return _resources({key: str(arguments[key]) for key in touched}, shown)
    if tool is None and name in FILE_TOOLS and isinstance(path, str):
        return _resources({"path": path}, shown)
    if tool is not None and not tool.has_side_effects:
        return ApprovalTarget("any arguments")
    return _same_arguments(arguments, tool, shown)


def _forwarded(arguments: dict[str, JSON], shown: Shown) -> ApprovalTarget:
    """The target of the call that another machine gets."""
    action, params = arguments.get("what") or arguments.get("action"), arguments.get("params")
    if not isinstance(action, str) or not is_object(params):
        return _same_arguments(arguments, None, shown)
    inner = _target(action, None, params, shown)
    rest = {key: value for key, value in arguments.items() if key not in ("params", "timeout_ms")}
    return ApprovalTarget(f"{shown(action)} with {inner.text}", json_digest([rest, inner.sha256]))


def _command(command: str, arguments: dict[str, JSON], shown: Shown) -> ApprovalTarget:
    workdir = arguments.get("workdir", ".")
    where = "" if workdir == "." else f" in {shown(str(workdir))}"
    prefix = _prefix(command)
    if prefix:
        text = f"commands that start with `{prefix}`{where}"
        return ApprovalTarget(text, json_digest([prefix, workdir]))
    return _exactly(f"exactly the command `{shown(command)}`{where}", arguments)


def _prefix(command: str) -> str:
    """The program of a plain command, with its subcommand; empty if only all of it is safe.

    A command that holds anything but one program and its literal words has no prefix: what follows
    the prefix could be another program.
    """
    from evoclaw.shell.commands import read_cached_command  # loads the parser

    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    effects = read_cached_command(command, "/workspace", "/home")
    if effects.unreadable or effects.settings or effects.code or len(effects.programs) != 1:
        return ""
    (program,) = effects.programs
    if program.path or [program.name, *(word.text for word in program.words)] != words:
        return ""
    return _known_prefix(words, effects)


def _known_prefix(words: list[str], effects: Effects) -> str:
    from evoclaw.shell.effects import PathAccess
    from evoclaw.shell.known_programs import SPECS

    name = words[0]
    if name in PREFIX_SUBCOMMANDS:
        is_known = len(words) > 1 and words[1] in PREFIX_SUBCOMMANDS[name]
        options = [word for word in words[2:] if word.startswith("-") and word != "--"]
        # Options of the others can name programs: `go test -exec`, `npm test --script-shell`.
        harmless = name == "git" and all(map(_GIT_OPTION.fullmatch, options))
        return f"{name} {words[1]}" if is_known and (harmless or not options) else ""
    spec = SPECS.get(name)
    reads = spec is not None and spec.operands == "r"
    writes = any(place.access is PathAccess.WRITE for place in effects.places)
    return name if reads and not writes else ""


def _resources(values: dict[str, str], shown: Shown) -> ApprovalTarget:
    plain = {
        key: posixpath.normpath(value) if key == "path" else value for key, value in values.items()
    }
    named = ", ".join(f"{key} `{shown(value)}`" for key, value in plain.items())
    return ApprovalTarget(f"{named} only", json_digest(plain))


def _same_arguments(arguments: dict[str, JSON], tool: Tool | None, shown: Shown) -> ApprovalTarget:
    same = _without_timeout(arguments)
    text = f"exactly the arguments `{shown.arguments(same, tool)}`" if same else "no arguments"
    return _exactly(text, arguments)


def _exactly(text: str, arguments: dict[str, JSON]) -> ApprovalTarget:
    return ApprovalTarget(text, json_digest(_without_timeout(arguments)))


def _without_timeout(arguments: dict[str, JSON]) -> dict[str, JSON]:
    return {key: value for key, value in arguments.items() if key != "timeout_ms"}
