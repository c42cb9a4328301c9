"""Parses skill.toml or skill.yaml: the programs of a skill that are offered as tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from evoclaw.core.errors import ConfigError, SchemaError
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.schema import compile_schema
from evoclaw.core.toml import parse_toml
from evoclaw.core.tools import ANY_RESOURCE, Effect, Tool
from evoclaw.skills import names
from evoclaw.skills.arguments import AS_JSON, OPTIONS, ArgumentBinding, argument_bindings
from evoclaw.skills.folders import SkillRefused
from evoclaw.skills.strict_yaml import parse_yaml

MANIFEST_FILE = "skill.toml"
MANIFEST_FILES = (MANIFEST_FILE, "skill.yaml", "skill.yml")
"""A skill has at most one of them; the keys are the same."""
MAX_TOOLS = 100
DEFAULT_TIMEOUT_MS, DEFAULT_MAX_TIMEOUT_MS = 10_000, 60_000

Milliseconds = Annotated[int, Meta(ge=1, le=3_600_000)]
Text = Annotated[str, Meta(max_length=8_192)]
Word = Annotated[str, Meta(min_length=1, max_length=128)]


class SkillTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[skill]`."""

    name: Word = ""
    """Must equal the folder's name, which is the default."""
    version: Word = names.NO_VERSION
    description: Annotated[str, Meta(max_length=1024)] = ""
    platforms: tuple[Word, ...] = ()
    """`linux`, `macos`, `windows`; every platform if empty."""
    metadata: dict[str, JSON] = {}


class ToolTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A table `[[tools]]`."""

    name: Word
    binary: Word
    """A file in the skill's folder, such as `bin/weather`."""
    description: Annotated[str, Meta(min_length=1, max_length=8_192)]
    parameters: dict[str, JSON] = {}
    """`properties` and `required`, as in JSON Schema."""
    args: Text | dict[str, Word] = OPTIONS
    """`options`, `words`, `json`, or for each parameter: option, flag, stdin, positional, rest,
    `--name`."""
    on_path: bool = False
    """`binary` is the bare name of a program that is installed on the machine."""
    sandboxing: Literal["none", "firejail", "bubblewrap", "podman", "native"] = "none"
    """The sandbox engine it must run in; `none`: the one that the machine is configured with."""
    timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS
    max_timeout_ms: Milliseconds = DEFAULT_MAX_TIMEOUT_MS
    """The longest `timeout_ms` that a call may ask for, if the tool has such a parameter."""
    permissions: tuple[Word, ...] = ("shell",)
    """The default is `shell`, because an undeclared program may do anything."""
    platforms: tuple[Word, ...] = ()
    effect: Effect = Effect.WRITE
    idempotent: bool = False
    resources: tuple[Word, ...] = (ANY_RESOURCE,)
    streams: bool = False
    outside: bool = False
    """Its results may contain text that outsiders wrote."""
    private: bool = False
    """Its results contain private data."""
    acts: bool | None = None
    """It has effects beyond the workspace; by default every tool that writes has."""
    sends: bool = False
    """It sends its arguments to where outsiders may read them."""
    metadata: dict[str, JSON] = {}
    """Free for the author; `version` is the version of the tool."""


class _ManifestFile(Struct, frozen=True, forbid_unknown_fields=True):
    skill: SkillTable = SkillTable()
    tools: tuple[ToolTable, ...] = ()


class SkillProgram(Struct, frozen=True):
    """A tool that is implemented by a program."""

    tool: Tool
    binary: str
    on_path: bool
    sandboxing: str
    bindings: dict[str, ArgumentBinding]
    args: str
    """`options` or `json`."""


class Manifest(Struct, frozen=True):
    """A valid skill.toml or skill.yaml."""

    about: SkillTable
    programs: tuple[SkillProgram, ...]
    """The programs for this platform."""
    declared: int
    """The number of programs for all platforms."""


def read_manifest(path: Path, text: str, *, platform: str) -> Manifest:
    """Parse skill.toml or skill.yaml; `SkillRefused` if it is not valid."""
    parse = parse_yaml if path.suffix in (".yaml", ".yml") else parse_toml
    try:
        values = parse(text, path.name)
    except ConfigError as problem:
        raise SkillRefused(path, str(problem)) from None
    tools = values.get("tools", [])
    if is_array(tools) and len(tools) > MAX_TOOLS:
        raise SkillRefused(
            path, f"it has {len(tools)} tools, more than {MAX_TOOLS}; split the skill"
        )
    _check_keys(path, values)
    try:
        file = msgspec.convert(values, _ManifestFile)
    except (msgspec.ValidationError, RecursionError) as problem:
        raise SkillRefused(path, _validation_message(str(problem))) from None
    _check_about(path, file.skill)
    programs = [
        _program(path, declared, file.skill, number)
        for number, declared in enumerate(file.tools, 1)
    ]
    _check_duplicates(path, [program.tool.name for program in programs])
    supported = [
        program
        for program, declared in zip(programs, file.tools, strict=True)
        if names.supports_platform(declared.platforms, platform)
    ]
    return Manifest(file.skill, tuple(supported), len(programs))


def _check_keys(path: Path, values: dict[str, JSON]) -> None:
    """Reject unknown keys: a misspelt one may be the setting that makes a tool safe."""
    tools: Any = values.get("tools")
    tables: list[tuple[str, JSON, type[Struct]]] = [
        ("", values, _ManifestFile),
        ("[skill]: ", values.get("skill"), SkillTable),
        *(
            (f"{_tool_label(number, table)}: ", table, ToolTable)
            for number, table in enumerate(tools if is_array(tools) else [], 1)
        ),
    ]
    for where, table, shape in tables:
        known = shape.__struct_fields__
        for key in table if is_object(table) else ():
            if key not in known:
                hint = names.unknown_name("key", key, known)
                free = "" if shape is _ManifestFile else "; put your own keys into `metadata`"
                raise SkillRefused(path, f"{where}{hint}{free}")


def _validation_message(problem: str) -> str:
    reason, _, where = problem.partition(" - at `$.")
    return f"{where.rstrip('`')}: {reason}" if where else reason


def _tool_label(number: int, table: JSON) -> str:
    name = table.get("name") if is_object(table) else None
    return f"tool {number}" + (f" ({name[:80]!r})" if isinstance(name, str) else "")


def _check_about(path: Path, about: SkillTable) -> None:
    if not names.VERSION_PATTERN.fullmatch(about.version):
        raise SkillRefused(
            path, f"[skill]: the version {about.version[:40]!r} must look like 1.2.3 or 1.2.3-beta"
        )
    _check_platforms(path, "[skill]", about.platforms)


def _check_platforms(path: Path, where: str, platforms: tuple[str, ...]) -> None:
    for name in platforms:
        if name not in names.PLATFORMS:
            raise SkillRefused(
                path, f"{where}: {names.unknown_name('platform', name, names.PLATFORMS)}"
            )


def _check_duplicates(path: Path, tools: list[str]) -> None:
    seen: dict[str, str] = {}
    for name in tools:
        other = seen.get(names.skeleton(name))
        if other is not None:
            alike = f"and {other!r} look alike" if other != name else "is declared twice"
            raise SkillRefused(path, f"the tool {name!r} {alike}; rename one of them")
        seen[names.skeleton(name)] = name


def _program(path: Path, declared: ToolTable, about: SkillTable, number: int) -> SkillProgram:
    where = f"tool {number} ({declared.name[:80]!r})"
    if problem := names.tool_name_problem(declared.name) or _problem_with_binary(declared):
        raise SkillRefused(path, f"{where}: {problem}")
    _check_platforms(path, where, declared.platforms)
    schema = _schema(path, where, declared)
    ways, problem = argument_bindings(schema, declared.args)
    if problem:
        raise SkillRefused(path, f"{where}: {problem}")
    tool = Tool(
        declared.name,
        declared.description.strip(),
        schema,
        permissions=frozenset(declared.permissions),
        effect=declared.effect,
        resources=declared.resources,
        timeout=declared.timeout_ms / 1000,
        max_timeout=max(declared.timeout_ms, declared.max_timeout_ms) / 1000,
        idempotent=declared.idempotent,
        streams=declared.streams,
        outside=declared.outside,
        private=declared.private,
        acts=declared.acts,
        sends=declared.sends,
        version=str(declared.metadata.get("version", about.version)),
    )
    for name in declared.resources:
        if name != ANY_RESOURCE and name not in schema["properties"]:
            raise SkillRefused(path, f"{where}: resources: the tool has no parameter {name[:80]!r}")
    try:
        compile_schema(tool)
    except (SchemaError, RecursionError) as error:
        reason = error.problem if isinstance(error, SchemaError) else "they are nested too deeply"
        raise SkillRefused(path, f"{where}: parameters: {reason}") from None
    args = AS_JSON if declared.args == AS_JSON else OPTIONS
    return SkillProgram(tool, declared.binary, declared.on_path, declared.sandboxing, ways, args)


def _problem_with_binary(declared: ToolTable) -> str:
    parts = declared.binary.split("/")
    if "\0" in declared.binary or "\\" in declared.binary or declared.binary.startswith("-"):
        return f"binary {declared.binary!r} cannot be the name of a program"
    if declared.on_path:
        return (
            ""
            if len(parts) == 1
            else f"binary {declared.binary!r} must be a bare name when on_path is set"
        )
    if declared.binary.startswith(("/", "~")) or {"", ".", "..", ".git"} & set(parts):
        return (
            f"binary {declared.binary!r} must be a path inside the skill's folder, "
            "such as 'bin/run'"
        )
    return ""


def _schema(path: Path, where: str, declared: ToolTable) -> dict[str, JSON]:
    try:
        # A round trip through JSON: TOML values that JSON lacks, such as dates, become text.
        given: dict[str, JSON] = msgspec.json.decode(msgspec.json.encode(declared.parameters))
    except (ValueError, TypeError, RecursionError):
        raise SkillRefused(path, f"{where}: parameters: they cannot be written as JSON") from None
    closed: dict[str, JSON] = {"type": "object", "properties": {}, "additionalProperties": False}
    schema = closed | given
    if not is_object(schema["properties"]):
        raise SkillRefused(path, f"{where}: parameters.properties must be a table")
    if schema["additionalProperties"] is not False and declared.args != AS_JSON:
        raise SkillRefused(
            path, f"{where}: parameters.additionalProperties must be false unless args is 'json'"
        )
    return schema
