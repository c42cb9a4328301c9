"""Generates a commented settings file with every key, from the types and their docstrings.

Lines that start with `# ` are explanations; lines that start with `#` alone are settings with
their defaults, or with an example where there is no default.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.inspect import (
    BoolType,
    CustomType,
    EnumType,
    FloatType,
    IntType,
    LiteralType,
    NoneType,
    StrType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)
from msgspec.structs import fields

from evoclaw.config.toml_document import KeyPath, is_struct, to_toml
from evoclaw.core.field_docs import field_docs
from evoclaw.core.messages import JSON

COMMENT_COLUMNS = 96
EXAMPLE_NAME = "example"
"""The placeholder for a required name."""


class TemplateEntry(Struct, frozen=True):
    """One key of a table."""

    name: str
    kind: Any
    """The type of the value."""
    value: Any
    """The default; None if there is none."""
    description: str
    """The docstring of the field."""
    required: bool


def template(config: Struct) -> str:
    """The settings file for these values, with every setting commented out."""
    return "\n".join(_table(type(config), config, (), "")).strip("\n") + "\n"


def short_template(config: Struct, keys: Sequence[str]) -> str:
    """Some settings of single tables, such as `server.port`, with every one commented out."""
    lines: list[str] = []
    last = ""
    for key in keys:
        *table, name = key.split(".")
        value: Struct = config
        for part in table:
            value = getattr(value, part)
        entry = next(entry for entry in entries(type(value), value) if entry.name == name)
        if (head := ".".join(table)) != last:
            lines += ["", f"[{head}]"]
            last = head
        lines += [*_comment_lines(entry.description), f"#{_setting(entry)}"]
    return "\n".join(lines).strip("\n") + "\n"


def entries(kind: type[Struct], config: Struct | None = None) -> list[TemplateEntry]:
    """The keys of a table, with the values of `config` or the defaults."""
    docs = field_docs(kind)
    found: list[TemplateEntry] = []
    for field in fields(kind):
        value: Any = None
        if config is not None:
            value = getattr(config, field.name)
        elif field.default is not NODEFAULT:
            value = field.default
        elif field.default_factory is not NODEFAULT:
            value = field.default_factory()
        found.append(
            TemplateEntry(
                field.encode_name, field.type, value, docs.get(field.name, ""), field.required
            )
        )
    return found


def _table(kind: type[Struct], config: Struct | None, keys: KeyPath, mark: str) -> Iterator[str]:
    """The lines of a table: its keys, required ones first, then its sub-tables."""
    own = entries(kind, config)
    for entry in sorted(own, key=lambda entry: not entry.required):
        if _inner(entry.kind) is None:
            yield from _comment_lines(entry.description)
            yield f"#{_setting(entry)}"
    for entry in own:
        inner = _inner(entry.kind)
        if inner is None:
            continue
        here = (*keys, entry.name)
        plain = is_struct(entry.kind)
        yield ""
        yield from _comment_lines(entry.description or _first_line(inner))
        yield f"{mark if plain else '#'}{_head(entry.kind, here)}"
        value = entry.value if plain and isinstance(entry.value, Struct) else None
        if get_origin(entry.kind) is dict:
            here = (*here, EXAMPLE_NAME)
        yield from _table(inner, value, here, mark if plain else "#")


def _head(kind: Any, keys: KeyPath) -> str:
    name = ".".join(keys)
    if get_origin(kind) is tuple:
        return f"[[{name}]]"
    return f"[{name}.{EXAMPLE_NAME}]" if get_origin(kind) is dict else f"[{name}]"


def _inner(kind: Any) -> type[Struct] | None:
    """The struct of a table, an array of tables, or a table of tables."""
    if is_struct(kind):
        return kind
    kinds: Sequence[Any] = get_args(kind)
    if get_origin(kind) is dict:
        kinds = kinds[1:]
    return next((inner for inner in kinds if is_struct(inner)), None)


def _setting(entry: TemplateEntry) -> str:
    unset = entry.value is None
    value = _plain(entry.value)
    if unset:
        # The first as declared; msgspec sorts them.
        first = get_args(entry.kind)[:1] if get_origin(entry.kind) is Literal else ()
        value = first[0] if first else example(type_info(entry.kind))
    why = "required" if entry.required else "not set"
    note = f"  # {why}; this is an example" if unset else ""
    if isinstance(value, dict):
        return f"{entry.name} = {{}}{note}"
    return to_toml({entry.name: value}, {}).strip() + note


def _plain(value: Any) -> JSON:
    return msgspec.to_builtins(value, enc_hook=str, order="deterministic")


def example(kind: Type) -> JSON:
    """An example value of a type."""
    match kind:
        case UnionType(types):
            return example(next(inner for inner in types if not isinstance(inner, NoneType)))
        case BoolType():
            return False
        case IntType(ge=ge) | FloatType(ge=ge):
            return 1 if ge is None or ge < 1 else ge
        case StrType(pattern=str(pattern)):
            return next(
                text for text in (EXAMPLE_NAME, f"/{EXAMPLE_NAME}", "") if re.search(pattern, text)
            )
        case StrType() | CustomType():
            return EXAMPLE_NAME
        case EnumType(cls):
            return next(_enum_value(member) for member in cls)
        case LiteralType(values):
            return values[0]
        case VarTupleType(item):
            return [example(item)]
        case _:
            return {}


def _enum_value(member: Enum) -> JSON:
    return member.value


def _comment_lines(text: str) -> Iterator[str]:
    for line in textwrap.wrap(text, COMMENT_COLUMNS):
        yield f"# {line}"


def _first_line(kind: type[Struct]) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]
