"""Turns the arguments of a call into a command line and standard input, without a shell."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, is_array, is_object

MAX_ARGUMENT_BYTES = 100_000
"""Of one argument; Linux accepts 128 KiB."""
OPTION, FLAG, STDIN, POSITIONAL, REST = "option", "flag", "stdin", "positional", "rest"
OPTIONS, TWO_WORDS, AS_JSON = "options", "words", "json"
"""The styles in which a tool passes all its parameters: `--key=value`, `--key value`, JSON."""
ARGUMENT_KINDS = (OPTION, FLAG, STDIN, POSITIONAL, REST)

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_OPTION_NAME = re.compile(r"--[A-Za-z][A-Za-z0-9_-]{0,63}")


class ArgumentBinding(Struct, frozen=True):
    """How one parameter is passed to the program."""

    kind: str
    option: str = ""
    """With its hyphens, such as `--path`."""
    negated_option: str = ""
    """The option that turns off a flag that is on by default, such as `--no-color`."""


class CommandLine(Struct, frozen=True):
    """The arguments and standard input of a program."""

    arguments: tuple[str, ...]
    stdin: bytes | None = None


def argument_bindings(
    parameters: Mapping[str, JSON], args: str | Mapping[str, str]
) -> tuple[dict[str, ArgumentBinding], str]:
    """Bind each parameter, in the order of the command line; the text is the error, if any."""
    properties: dict[str, JSON] = parameters.get("properties", {})
    if isinstance(args, str):
        if args not in (OPTIONS, TWO_WORDS, AS_JSON):
            return {}, f"args = {args!r} must be 'options', 'words', 'json' or a table"
        if args == AS_JSON:
            return {}, ""
        if args == TWO_WORDS:
            return _two_words(properties)
        args = {}
    for name in args:
        if name not in properties:
            return {}, f"args.{name}: the tool has no parameter {name!r}"
    found: dict[str, ArgumentBinding] = {}
    # Declared parameters first: their order is the order of the positional arguments.
    for name in (*args, *(name for name in properties if name not in args)):
        way = _argument_binding(name, properties[name], args.get(name, ""))
        if isinstance(way, str):
            return {}, way
        found[name] = way
    return found, _conflict(found)


def _two_words(properties: Mapping[str, JSON]) -> tuple[dict[str, ArgumentBinding], str]:
    for name in properties:
        if not _KEY.fullmatch(name):
            return {}, _unusable_option(name)
    return {name: ArgumentBinding(TWO_WORDS, f"--{name}") for name in properties}, ""


def _unusable_option(name: str) -> str:
    return f"parameter {name!r} cannot be an option: use only letters, digits, '_' and '-'"


def _argument_binding(name: str, schema: JSON, declared: str) -> ArgumentBinding | str:
    kind = schema.get("type") if is_object(schema) else None
    spelled = _OPTION_NAME.fullmatch(declared) is not None
    if declared and declared not in ARGUMENT_KINDS and not spelled:
        return (
            f"args.{name} = {declared!r} must be one of {', '.join(ARGUMENT_KINDS)}, "
            f"or an option such as '--{name}'"
        )
    if declared in (STDIN, POSITIONAL):
        return ArgumentBinding(declared)
    if declared == REST:
        return (
            ArgumentBinding(REST)
            if kind == "array"
            else f"args.{name} = 'rest' needs a parameter of type array"
        )
    if not spelled and not _KEY.fullmatch(name):
        return _unusable_option(name)
    option = declared if spelled else f"--{name}"
    if declared == FLAG and kind != "boolean":
        return f"args.{name} = 'flag' needs a parameter of type boolean"
    if kind == "boolean" and declared != OPTION:
        default = schema.get("default") is True
        return ArgumentBinding(FLAG, option, f"--no-{option[2:]}" if default else "")
    return ArgumentBinding(OPTION, option)


def _conflict(bindings: Mapping[str, ArgumentBinding]) -> str:
    taken: dict[str, str] = {}
    for name, way in bindings.items():
        unique = [way.kind] if way.kind in (STDIN, REST) else [way.option, way.negated_option]
        for word in filter(None, unique):
            if word in taken:
                return (
                    f"parameters {taken[word]!r} and {name!r} both use {word!r}; rename one of them"
                )
            taken[word] = name
    kinds = [way.kind for way in bindings.values() if way.kind in (POSITIONAL, REST)]
    return "args: 'rest' must come last" if REST in kinds[:-1] else ""


def build_command_line(
    bindings: Mapping[str, ArgumentBinding], arguments: Mapping[str, JSON], args: str = ""
) -> CommandLine:
    """Build the command line of a call: each value follows its option, or a `--`."""
    if args == AS_JSON:
        return CommandLine((), msgspec.json.encode(arguments))
    options: list[str] = []
    positional: list[str] = []
    stdin: bytes | None = None
    _check_known(arguments, bindings)
    for name, way in bindings.items():
        value = arguments.get(name)
        if value is None:
            continue
        match way.kind:
            case "flag":
                word = way.option if value else way.negated_option
                options += [word] if word else []
            case "stdin":
                stdin = _text(value).encode(errors="surrogatepass")
            case "words":
                options += [way.option, _word(name, _text(value))]
            case "positional":
                positional.append(_word(name, _text(value)))
            case "rest":
                positional += [_word(name, _text(item)) for item in value]
            case _:
                options.append(_word(name, f"{way.option}={_text(value)}"))
    # After `--` no option follows: a value `-rf` is then a file name.
    end_of_options = (
        ["--"] if any(way.kind in (POSITIONAL, REST) for way in bindings.values()) else []
    )
    return CommandLine((*options, *end_of_options, *positional), stdin)


def _check_known(arguments: Mapping[str, JSON], bindings: Mapping[str, ArgumentBinding]) -> None:
    for name in arguments:
        if name not in bindings:
            raise ToolFailure(ErrorKind.INVALID_PARAMS, f"Unknown parameter '{name[:80]}'.")


def _text(value: JSON) -> str:
    if isinstance(value, str):
        return value
    if is_array(value) or is_object(value) or isinstance(value, bool | float):
        return msgspec.json.encode(value).decode()
    return str(value)


def _word(name: str, text: str) -> str:
    if "\0" in text:
        raise ToolFailure(ErrorKind.INVALID_PARAMS, f"'{name}' may not contain a NUL character.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ToolFailure(ErrorKind.INVALID_PARAMS, f"'{name}' is not valid Unicode.") from None
    if size > MAX_ARGUMENT_BYTES:
        raise ToolFailure(
            ErrorKind.TOO_LARGE,
            f"'{name}' has {size:,} bytes, more than {MAX_ARGUMENT_BYTES:,}. Use a file, or less.",
        )
    return text
