"""Parses TOML into a typed struct, and writes values as commented TOML.

Unknown keys are errors, and errors name file and line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Any, TypeAlias, TypeGuard, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.toml import open_quote, parse_toml

_BARE = re.compile(r"[A-Za-z0-9_-]+")


T = TypeVar("T")
KeyPath: TypeAlias = tuple[str, ...]
"""The path of a value: its tables, then its key; array entries are numbers."""
DecodeHook: TypeAlias = Callable[[type, Any], Any]
"""Decodes types that msgspec does not know, such as paths."""

_KEY_PUNCTUATION = re.compile(r"[\s\"'\[]")
_SECRET_KEYS = frozenset({"password", "token", "secret", "api_key"})


class TomlDocument:
    """The values of one file, and where each of them came from."""

    def __init__(self, name: str, text: str, *, password_hint: str) -> None:
        """Parse the text. `password` is the hint for a password in the file, which is refused."""
        self.values = parse_toml(text, name)
        self._name, self._text, self._password_hint = name, text, password_hint
        self._original_keys: dict[KeyPath, KeyPath] = {}
        """The path of a moved value in the file."""
        self._variables: dict[KeyPath, str] = {}
        """The environment variable that a value came from."""
        self._moved_tables: set[str] = set()

    def error(self, keys: KeyPath, problem: str) -> ConfigError:
        """An error about a value, with its file and line or its environment variable."""
        if variable := self._variables.get(keys):
            return ConfigError(f"{variable}: {problem}")
        place = self._original_keys.get(keys, keys)
        # A value in an inline table has no line of its own; use the line of the table.
        tries = (self._line(place[:end]) for end in range(len(place), 0, -1))
        line = next(filter(None, tries), 0)
        message = f"{self._name}{f', line {line}' if line else ''}: {problem}"
        return ConfigError(message, line=line, setting=".".join(place), problem=problem)

    def original_key(self, keys: KeyPath) -> str:
        """A key as it is in the file."""
        return ".".join(self._original_keys.get(keys, keys))

    def move_table(self, table: str, targets: Mapping[str, KeyPath]) -> None:
        """Move the values of a table to other paths."""
        self._moved_tables.add(table)
        given = self.values.pop(table, {})
        if not is_object(given):
            raise self.error((table,), f"[{table}] must be a table")
        for key in given:
            if key not in targets:
                raise self._unknown((table, key), targets)
        for key, value in given.items():
            self._put(targets[key], value, (table, key))

    def rename_key(self, key: str, to: str) -> None:
        """Rename a top-level key."""
        was = self._original_keys.pop((key,), (key,))
        self._put((to,), self.values.pop(key), was)

    def set_default(self, keys: KeyPath, value: JSON) -> JSON:
        """Set a default; returns the value."""
        return self._table(keys).setdefault(keys[-1], value)

    def check_keys(self, shape: type[Struct]) -> None:
        """Refuse unknown keys: most of them are misspelt."""
        self._check(self.values, shape, (), dict(_scalars(shape)))

    def apply_environment(
        self, shape: type[Struct], prefix: str, env: Mapping[str, str], decode: DecodeHook
    ) -> None:
        """Override scalar values by environment variables named `PREFIX_TABLE_KEY`."""
        for keys, kind in _scalars(shape):
            variable = "_".join((prefix, *keys)).upper()
            if not (text := env.get(variable)):
                continue
            self._variables[keys] = variable
            try:
                value = msgspec.convert(text, kind, strict=False, dec_hook=decode)
            except msgspec.ValidationError as problem:
                raise self.error(keys, f"{problem}{_choices(kind)}") from None
            # Stored as the file would have it; `convert` checks it with the other values.
            is_number = isinstance(value, int | float)
            plain = text if value is None else value if is_number else str(value)
            self._table(keys)[keys[-1]] = plain

    def refuse(self, reasons: Mapping[KeyPath, str]) -> None:
        """Refuse the keys that would have no effect here; each comes with the reason."""
        for keys, reason in reasons.items():
            if self._has(keys):
                raise self.error(keys, f"{self.original_key(keys)} {reason}")

    def convert(self, shape: type[T], decode: DecodeHook) -> T:
        """Convert the values to a struct."""
        try:
            return msgspec.convert(self.values, shape, dec_hook=decode)
        except msgspec.ValidationError as problem:
            message, _, location = str(problem).partition(" - at `$")
            keys = tuple(re.findall(r"[\w-]+", location))
            message += _choices(_type_at(shape, keys))
            text = f"{self.original_key(keys)}: {message}" if keys else message
            raise self.error(keys, text) from None

    def _has(self, keys: KeyPath) -> bool:
        value: JSON = self.values
        for key in keys:
            if not is_object(value) or key not in value:
                return False
            value = value[key]
        return True

    def _put(self, keys: KeyPath, value: JSON, was: KeyPath) -> None:
        table = self._table(keys)
        if keys[-1] in table:
            both = f"{self.original_key(keys)} and {'.'.join(was)}"
            raise self.error(keys, f"{both} set the same value; remove one of them")
        table[keys[-1]] = value
        self._original_keys[keys] = was

    def _table(self, keys: KeyPath) -> dict[str, JSON]:
        table: JSON = self.values
        for depth, key in enumerate(keys[:-1], 1):
            table = table.setdefault(key, {})
            if not is_object(table):
                raise self.error(keys[:depth], f"[{'.'.join(keys[:depth])}] must be a table")
        return table

    def _check(
        self,
        table: dict[str, JSON],
        shape: type[Struct],
        keys: KeyPath,
        known: Mapping[KeyPath, Any],
    ) -> None:
        kinds = _kinds(shape)
        for key, value in table.items():
            here = (*keys, key)
            if key not in kinds:
                raise self._unknown(here, (*kinds, *(() if keys else self._moved_tables)), known)
            inner = _struct_in(kinds[key])
            if inner is None:
                continue
            if is_object(value) and get_origin(kinds[key]) is dict:
                for name, entry in value.items():
                    if is_object(entry):
                        self._check(entry, inner, (*here, name), known)
            elif is_object(value):
                self._check(value, inner, here, known)
            for number, entry in enumerate(value if is_array(value) else ()):
                if is_object(entry):
                    self._check(entry, inner, (*here, str(number)), known)

    def _unknown(
        self, keys: KeyPath, names: Iterable[str], known: Iterable[KeyPath] = ()
    ) -> ConfigError:
        key, table = keys[-1], _table_label(keys[:-1])
        if key in _SECRET_KEYS:
            hint = self._password_hint if key == "password" else "set it in the environment"
            return self.error(keys, f"{key!r} may not be in this file; {hint}")
        if home := next((other for other in known if other[-1] == key), None):
            place = _table_label(home[:-1]) or "above the first [table]"
            return self.error(keys, f"{key!r} is not known {table or 'here'}; it belongs {place}")
        return self.error(keys, describe_unknown("key", key, names, f" {table}".rstrip()))

    def _line(self, keys: KeyPath) -> int:
        """The line that sets a key; 0 if none or several match."""
        wanted = ".".join(keys)
        found = [line for line, key in _key_lines(self._text) if key == wanted]
        return found[0] if len(found) == 1 else 0


def closest_match(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """The most similar name; empty if none is similar."""
    # Imported here: an idle edge need not spend the memory.
    from difflib import get_close_matches

    return next(iter(get_close_matches(name[:80], list(names), 1, cutoff)), "")


def describe_unknown(kind: str, name: str, names: Iterable[str], where: str = "") -> str:
    """The error text for an unknown name, with the most similar name or all known names."""
    known = sorted(names)
    similar = closest_match(name, known)
    hint = f"known: {', '.join(known)}" if known else "there are none"
    if similar:
        hint = f"did you mean {similar!r}?"
    return f"unknown {kind} {name[:80]!r}{where}; {hint}"


def is_struct(kind: Any) -> TypeGuard[type[Struct]]:
    """Whether a type is a struct."""
    return isinstance(kind, type) and issubclass(kind, Struct)


def _struct_in(kind: Any) -> type[Struct] | None:
    if is_struct(kind):
        return kind
    return next((found for inner in get_args(kind) if (found := _struct_in(inner))), None)


@cache
def _kinds(shape: type[Struct]) -> Mapping[str, Any]:
    """The types of the keys of a table; cached, because reading the types is slow."""
    return {field.encode_name: field.type for field in fields(shape)}


@cache
def _scalars(shape: type[Struct]) -> tuple[tuple[KeyPath, Any], ...]:
    """The paths and types of all scalar keys."""
    return tuple(_scalars_below(shape, ()))


def _scalars_below(shape: type[Struct], keys: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for name, kind in _kinds(shape).items():
        here = (*keys, name)
        if is_struct(kind):
            yield from _scalars_below(kind, here)
        elif not any(get_origin(k) in (tuple, dict, frozenset) for k in (kind, *get_args(kind))):
            yield here, kind


def _type_at(kind: Any, keys: KeyPath) -> Any:
    """The type of the value at a path; None if there is none."""
    for key in keys:
        inner = _struct_in(kind)
        held = dict[str, Any]() if inner is None else _kinds(inner)
        # An entry of an array, or of a table of tables, is not a field but has the struct type.
        # One of a list of values has the type of the list: its choices are found there.
        kind = held.get(key) if key in held else inner or (kind if key.isdigit() else None)
    return kind


def _choices(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        names: list[str] = list(kind)
        return f"; allowed: {', '.join(names)}"
    inner: tuple[Any, ...] = get_args(kind)
    return next((found for one in inner if (found := _choices(one))), "")


def _table_label(table: KeyPath) -> str:
    name = ".".join(key for key in table if not key.isdigit())
    return f"in [{name}]" if name else ""


def _key_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that start a table or set a key, with its path; a heuristic without parsing."""
    here = quote = ""
    arrays: Counter[str] = Counter()
    for number, line in enumerate(text.split("\n"), 1):
        inside, quote = bool(quote), open_quote(line, quote)
        stripped = line.strip()
        if inside:
            continue
        if stripped.startswith("["):
            here = _KEY_PUNCTUATION.sub("", stripped.partition("]")[0])
            if stripped.startswith("[["):
                arrays[here] += 1
                here = f"{here}.{arrays[here] - 1}"
            elif arrays[top := here.partition(".")[0]]:
                # A table of the previous array entry, such as [agents.limits] below [[agents]].
                here = f"{top}.{arrays[top] - 1}{here[len(top) :]}"
            yield number, here
        elif "=" in stripped and not stripped.startswith("#"):
            name = _KEY_PUNCTUATION.sub("", stripped.partition("=")[0])
            yield number, f"{here}.{name}" if here else name


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
