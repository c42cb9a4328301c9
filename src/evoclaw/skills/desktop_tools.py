"""Generates the skill `desktop-tools`: every built-in tool as a program `bin/dt-NAME`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from evoclaw.core.errors import SchemaError
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.tools import ANY_RESOURCE, Tool

DESKTOP_TOOLS = "desktop-tools"
VERSION = "1.0.0"
PREFIX = "dt-"
BIN = "bin"
DESCRIPTION = (
    "Work with files, programs and the rest of a machine by hand or from a script: every built-in "
    "tool of EvoClaw as a program dt-NAME. Use when a tool has to be called from a shell."
)
_STDIN_PARAMETERS = ("content", "patch", "diff")
"""Parameters with long values, which the program reads from standard input."""
PROGRAM = """\
import sys

from evoclaw.__main__ import dt

sys.exit(dt())
"""
"""The program takes the tool from the name it is run by."""
MAX_SHEBANG_CHARS = 120
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def bundled_skills_folder() -> Path:
    """The folder of the skills that ship with the package."""
    return Path(__file__).parent


def stdin_parameter(tool: Tool) -> str | None:
    """The parameter that a tool's program reads from standard input; None if there is none."""
    properties: dict[str, JSON] = tool.parameters["properties"]
    required = tool.parameters.get("required", ())
    return next(
        (name for name in _STDIN_PARAMETERS if name in properties and name in required), None
    )


def write_desktop_tools(tools: Iterable[Tool], folder: Path | None = None) -> None:
    """Write all files of the skill, into the package if no folder is given."""
    all_tools = list(tools)
    target = folder or bundled_skills_folder() / DESKTOP_TOOLS
    target.mkdir(parents=True, exist_ok=True)
    (target / "skill.toml").write_text(skill_toml(all_tools), encoding="utf-8")
    (target / "SKILL.md").write_text(skill_markdown(all_tools), encoding="utf-8")
    for path in (target / BIN).glob(f"{PREFIX}*"):
        path.unlink()
    write_programs(target, (tool.name for tool in all_tools))


def write_programs(folder: Path, names: Iterable[str], python: str | None = None) -> None:
    """Write the programs of a skill's `bin/`.

    Args:
        folder: The folder of the skill.
        names: The names of the tools.
        python: The interpreter that has this package; `python3` on the PATH if not given.
    """
    (folder / BIN).mkdir(exist_ok=True)
    for name in names:
        path = folder / BIN / f"{PREFIX}{name}"
        path.write_text(_first_lines(python) + PROGRAM, encoding="utf-8")
        path.chmod(0o755)


def _first_lines(python: str | None) -> str:
    if python is None:
        return "#!/usr/bin/env python3\n"
    if len(python) <= MAX_SHEBANG_CHARS and not re.search(r"\s", python):
        return f"#!{python}\n"
    # The kernel truncates a longer line. sh reads the next two as a command, Python as a string.
    return f"#!/bin/sh\n'''exec' {shlex.quote(python)} \"$0\" \"$@\"\n' '''\n"


def skill_markdown(tools: Iterable[Tool]) -> str:
    """The skill's SKILL.md."""
    rows = [
        f"| `{PREFIX}{tool.name}` | {_first_line(tool)} | {', '.join(sorted(tool.permissions))} |"
        for tool in tools
    ]
    return "\n".join(
        [
            "---",
            f"name: {DESKTOP_TOOLS}",
            f"description: {json.dumps(DESCRIPTION)}",
            "license: MIT",
            "metadata:",
            f'  version: "{VERSION}"',
            "---",
            "",
            "# Desktop tools",
            "",
            "Each tool is a program in `bin/`. Parameters are options, `--key=value`; a boolean is",
            "a flag, `--key` or `--no-key`; lists and objects are JSON. Long texts are read from",
            "standard input:",
            "",
            "    dt-read --path=notes.txt --limit=20",
            "    dt-write --path=notes.txt < draft.txt",
            "",
            "They work in the current folder, or in the folder that `EVOCLAW_WORKSPACE` names.",
            "`--help` lists the options. The exit code is 0 for success, 1 for a failure (reported",
            "on standard error), 2 for invalid arguments.",
            "",
            "| program | does | needs |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


def _first_line(tool: Tool) -> str:
    return tool.description.splitlines()[0].replace("|", "\\|")


def skill_toml(tools: Iterable[Tool]) -> str:
    """The skill's skill.toml."""
    lines = [
        "# Written by `make docs` from the built-in tools.",
        "",
        "[skill]",
        f"name = {_value(DESKTOP_TOOLS)}",
        f"version = {_value(VERSION)}",
        f"description = {_value(DESCRIPTION)}",
    ]
    for tool in tools:
        lines += ["", *_tool_table(tool)]
    return "\n".join(lines) + "\n"


def _tool_table(tool: Tool) -> list[str]:
    by_stdin = stdin_parameter(tool)
    values: dict[str, JSON] = {
        "name": tool.name,
        "binary": f"{BIN}/{PREFIX}{tool.name}",
        "description": tool.description,
        "timeout_ms": round(tool.timeout * 1000),
        "max_timeout_ms": round(tool.max_timeout * 1000),
        "permissions": sorted(tool.permissions),
        "effect": str(tool.effect),
        "idempotent": tool.idempotent,
    }
    if tool.resources != (ANY_RESOURCE,):
        values["resources"] = list(tool.resources)
    if tool.streams:
        values["streams"] = True
    for flag in ("outside", "private", "sends"):
        if getattr(tool, flag):
            values[flag] = True
    if tool.acts is not None:
        values["acts"] = tool.acts
    if by_stdin is not None:
        values["args"] = {by_stdin: "stdin"}
    values["metadata"] = {"version": tool.version}
    schema = without_nulls(tool.name, tool.parameters)
    lines = ["[[tools]]", *(f"{key} = {_value(value)}" for key, value in values.items())]
    head = [f"{_key(key)} = {_value(schema[key])}" for key in schema if key != "properties"]
    lines += ["", "[tools.parameters]", *head]
    for name, property_schema in schema["properties"].items():
        lines += ["", f"[tools.parameters.properties.{_key(name)}]"]
        lines += [f"{_key(key)} = {_value(value)}" for key, value in property_schema.items()]
    return lines


def without_nulls(tool: str, schema: Mapping[str, JSON]) -> dict[str, JSON]:
    """A schema without `default: null`, which TOML cannot express and which means no default."""

    def clean(node: JSON) -> JSON:
        if is_object(node):
            items = {key: node[key] for key in node if key != "default" or node[key] is not None}
            return {key: clean(value) for key, value in items.items()}
        if is_array(node):
            return [clean(item) for item in node]
        if node is None:
            raise SchemaError(tool, "the schema contains null, which TOML cannot express")
        return node

    # A round trip through JSON: a default may be a tuple.
    return clean(msgspec.json.decode(msgspec.json.encode(schema)))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: JSON) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if is_array(value):
        return f"[{', '.join(map(_value, value))}]"
    if is_object(value):
        inside = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    return repr(value)


def _text(text: str) -> str:
    # A TOML string is written like a JSON string, except for one character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
