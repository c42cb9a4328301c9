"""Changes single values in the text of a TOML file, and keeps its comments and its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import tomlkit
from tomlkit.exceptions import ParseError, TOMLKitError
from tomlkit.items import AoT, Item

from evoclaw.config.toml_document import KeyPath
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON

IDENTIFIERS = ("id", "name")
"""The keys by which an entry of an array of tables is found, instead of by its number."""


def parse_value(text: str) -> JSON:
    """A value as TOML writes it; text that is no such value is itself a string."""
    try:
        return tomlkit.value(text).unwrap()
    except (ParseError, ValueError):
        return text


def set_value(text: str, keys: KeyPath, value: JSON) -> str:
    """The file with a value set."""
    document = tomlkit.parse(text)
    table: Any = document
    for depth, key in enumerate(keys[:-1], 1):
        found = _entry(table, key)
        if found is None:
            if isinstance(table, AoT | list):
                raise ConfigError(f"there is no {'.'.join(keys[: depth - 1])} named {key!r}")
            found = table[key] = tomlkit.table(is_super_table=depth < len(keys) - 1)
        table = table[key] if found is None else found
    try:
        table[keys[-1]] = value
    except (TOMLKitError, TypeError) as problem:
        raise ConfigError(f"{'.'.join(keys)} cannot be set: {problem}") from None
    return tomlkit.dumps(document)


def update_values(text: str, values: Mapping[KeyPath, JSON]) -> str:
    """The file with several values set; None removes one."""
    try:
        for keys, value in values.items():
            text = remove_value(text, keys) if value is None else set_value(text, keys, value)
    except TOMLKitError as problem:
        raise ConfigError(f"not TOML: {problem}") from None
    return text


def remove_value(text: str, keys: KeyPath) -> str:
    """The file without a value; the same text if it does not set it."""
    document = tomlkit.parse(text)
    table: Any = document
    for key in keys[:-1]:
        table = _entry(table, key)
        if table is None:
            return text
    if not isinstance(table, Mapping) or keys[-1] not in table:
        return text
    del cast("dict[str, Item]", table)[keys[-1]]
    return tomlkit.dumps(document)


def _entry(table: Any, key: str) -> Any:
    """The value of a key of a table, or the entry of an array; None if there is none."""
    if isinstance(table, Mapping):
        return cast("Mapping[str, Any]", table).get(key)
    return find_entry(table, key)


def find_entry(entries: Any, key: str) -> Any:
    """The entry of an array of tables with a number, an `id` or a `name`; None if there is none."""
    several = cast("Sequence[Any]", entries) if isinstance(entries, list | tuple | AoT) else ()
    for number, entry in enumerate(several):
        if isinstance(entry, Mapping):
            names = [cast("Mapping[str, Any]", entry).get(name) for name in IDENTIFIERS]
            if key in names or key == str(number):
                return cast("Any", entry)
    return None


def dump(values: Mapping[str, JSON]) -> str:
    """Values as TOML, without those that are None."""
    return tomlkit.dumps(_without_none(values)).strip("\n")


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {key: _without_none(inner) for key, inner in items if inner is not None}
    if isinstance(value, list | tuple):
        return [_without_none(inner) for inner in cast("list[Any]", value)]
    return value
