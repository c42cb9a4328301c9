"""Writes values as commented TOML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec

from evoclaw.config.toml_document import KeyPath
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(values: Mapping[str, JSON], comments: Mapping[str, str]) -> str:
    """Write values, each key or table below its comment; None values are omitted."""
    return "".join(f"{line}\n" for line in _lines(values, comments, ()))


def _lines(values: Mapping[str, JSON], comments: Mapping[str, str], keys: KeyPath) -> Iterator[str]:
    """The lines of a table: its values first, because TOML cannot return to a table."""
    tables: dict[str, Mapping[str, JSON]] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            tables[key] = value
        elif value is not None:
            yield from _comment(comments, (*keys, key))
            yield f"{_key(key)} = {_value(value)}"
    for key, table in tables.items():
        yield ""
        yield from _comment(comments, (*keys, key))
        yield f"[{'.'.join(map(_key, (*keys, key)))}]"
        yield from _lines(table, comments, (*keys, key))


def _comment(comments: Mapping[str, str], keys: KeyPath) -> Iterator[str]:
    if text := comments.get(".".join(keys)):
        yield f"# {text}"


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: JSON) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, set | frozenset):
        return _value(sorted(cast("frozenset[str]", value)))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, cast('Sequence[JSON]', value)))}]"
    try:
        # JSON escapes are valid in TOML; TOML also requires DEL to be escaped.
        return msgspec.json.encode(str(value)).decode().replace("\x7f", "\\u007f")
    except UnicodeEncodeError:
        raise ConfigError(f"{value!r} is not valid text") from None
