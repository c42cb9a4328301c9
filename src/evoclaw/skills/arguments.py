"""A call's arguments on their way to a program: declared for each parameter, never by a shell."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, is_array, is_object

LONGEST = 100_000
"""Bytes of one argument: the system takes 128 KiB."""
OPTION, FLAG, STDIN, POSITIONAL, REST = "option", "flag", "stdin", "positional", "rest"
OPTIONS, AS_JSON = "options", "json"
"""The two styles of a whole tool."""
WAYS = (OPTION, FLAG, STDIN, POSITIONAL, REST)

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_SPELLED = re.compile(r"--[A-Za-z][A-Za-z0-9_-]{0,63}")


class Way(Struct, frozen=True):
    """How one parameter reaches the program."""

    kind: str
    option: str = ""
    """With its hyphens, as `--path`."""
    denial: str = ""
    """What says no to a flag that is on by default, as `--no-color`."""


class Line(Struct, frozen=True):
    """What a program is given."""

    arguments: tuple[str, ...]
    stdin: bytes | None = None


def ways_of(
    parameters: Mapping[str, JSON], args: str | Mapping[str, str]
) -> tuple[dict[str, Way], str]:
    """How each parameter goes, in the order of the command line; the text is what is wrong."""
    properties: dict[str, JSON] = parameters.get("properties", {})
    if isinstance(args, str):
        if args not in (OPTIONS, AS_JSON):
            return {}, f"args = {args!r} is neither 'options' nor 'json', nor a table"
        if args == AS_JSON:
            return {}, ""
        args = {}
    for name in args:
        if name not in properties:
            return {}, f"args.{name}: there is no parameter of that name"
    found: dict[str, Way] = {}
    # Declared ones first, in their order: it is the order of what has no name.
    for name in (*args, *(name for name in properties if name not in args)):
        way = _way(name, properties[name], args.get(name, ""))
        if isinstance(way, str):
            return {}, way
        found[name] = way
    return found, _clash(found)


def _way(name: str, schema: JSON, said: str) -> Way | str:
    kind = schema.get("type") if is_object(schema) else None
    spelled = _SPELLED.fullmatch(said) is not None
    if said and said not in WAYS and not spelled:
        return f"args.{name} = {said!r}: say {', '.join(WAYS)}, or an option such as '--{name}'"
    if said in (STDIN, POSITIONAL):
        return Way(said)
    if said == REST:
        return Way(REST) if kind == "array" else f"args.{name} = 'rest' is for an array"
    if not spelled and not _KEY.fullmatch(name):
        return f"parameter {name!r} cannot be an option: letters, digits, '_' and '-' only"
    option = said if spelled else f"--{name}"
    if said == FLAG and kind != "boolean":
        return f"args.{name} = 'flag' is for a boolean"
    if kind == "boolean" and said != OPTION:
        default = schema.get("default") is True
        return Way(FLAG, option, f"--no-{option[2:]}" if default else "")
    return Way(OPTION, option)


def _clash(ways: Mapping[str, Way]) -> str:
    taken: dict[str, str] = {}
    for name, way in ways.items():
        unique = [way.kind] if way.kind in (STDIN, REST) else [way.option, way.denial]
        for word in filter(None, unique):
            if word in taken:
                return f"parameters {taken[word]!r} and {name!r} both go by {word!r}"
            taken[word] = name
    kinds = [way.kind for way in ways.values() if way.kind in (POSITIONAL, REST)]
    return "args: 'rest' must come last" if REST in kinds[:-1] else ""


def command_line(ways: Mapping[str, Way], arguments: Mapping[str, JSON], args: str = "") -> Line:
    """What a program is given for a call; a value is never read as an option."""
    if args == AS_JSON:
        return Line((), msgspec.json.encode(arguments))
    options: list[str] = []
    nameless: list[str] = []
    stdin: bytes | None = None
    for name in arguments:
        if name not in ways:
            raise ToolFailure(ErrorKind.INVALID_PARAMS, f"There is no parameter '{name[:80]}'.")
    for name, way in ways.items():
        value = arguments.get(name)
        if value is None:
            continue
        match way.kind:
            case "flag":
                word = way.option if value else way.denial
                options += [word] if word else []
            case "stdin":
                stdin = _text(value).encode(errors="surrogatepass")
            case "positional":
                nameless.append(_word(name, _text(value)))
            case "rest":
                nameless += [_word(name, _text(item)) for item in value]
            case _:
                options.append(_word(name, f"{way.option}={_text(value)}"))
    # `--` says that no option follows, so that `-rf` is the name of a file.
    ends = ["--"] if any(way.kind in (POSITIONAL, REST) for way in ways.values()) else []
    return Line((*options, *ends, *nameless), stdin)


def _text(value: JSON) -> str:
    if isinstance(value, str):
        return value
    if is_array(value) or is_object(value) or isinstance(value, bool | float):
        return msgspec.json.encode(value).decode()
    return str(value)


def _word(name: str, text: str) -> str:
    if "\0" in text:
        raise ToolFailure(ErrorKind.INVALID_PARAMS, f"'{name}' may not hold a NUL character.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ToolFailure(ErrorKind.INVALID_PARAMS, f"'{name}' is not valid Unicode.") from None
    if size > LONGEST:
        raise ToolFailure(
            ErrorKind.TOO_LARGE,
            f"'{name}' has {size:,} bytes; at most {LONGEST:,} are possible. Use a file, or less.",
        )
    return text
