"""The JSON Schema of a function's parameters, from its annotations and its docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import msgspec

from evoclaw.core.errors import SchemaError
from evoclaw.core.messages import JSON

SECTION = re.compile(r"(Args|Returns|Yields|Raises|Example|Examples|Note|Notes):")
ARGUMENT = re.compile(r"(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


@dataclass(frozen=True, slots=True)
class ParsedDocstring:
    """The description and the arguments of a docstring."""

    description: str
    arguments: Mapping[str, str]


def read_docstring(text: str) -> ParsedDocstring:
    """Parse a Google-style docstring: the text before the sections, and `Args:`."""
    sections: dict[str, list[str]] = {"": []}
    current = ""
    for line in inspect.cleandoc(text).splitlines():
        if SECTION.fullmatch(line.rstrip()):
            current = line.strip().rstrip(":")
            sections[current] = []
        else:
            sections[current].append(line)
    return ParsedDocstring("\n".join(sections[""]).strip(), _arguments(sections.get("Args", [])))


def _arguments(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    body = inspect.cleandoc("\n".join(["", *lines])).splitlines()
    name = ""
    for line in body:
        start = ARGUMENT.match(line)
        if start is not None:
            name = start[1]
            found[name] = start[2].strip()
        elif name and line.strip():
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def schema_of(tool: str, arguments: type, described: Mapping[str, str]) -> dict[str, JSON]:
    """The JSON Schema of an arguments struct: no `$ref`, closed objects, with descriptions."""
    try:
        (reference,), shared = msgspec.json.schema_components([arguments])
    except (TypeError, ValueError) as problem:
        raise SchemaError(tool, str(problem).replace("\n", " ")) from None
    schema = _inlined(tool, reference, shared, ())
    if not _is_object(schema):
        raise SchemaError(tool, "the arguments do not form a JSON object")
    for name, text in described.items():
        if text:
            schema["properties"][name] = {"description": text} | schema["properties"][name]
    return {"type": "object", "properties": schema["properties"]} | {
        key: schema[key] for key in ("required", "additionalProperties") if schema.get(key) != []
    }


def _is_object(node: JSON) -> TypeGuard[dict[str, JSON]]:
    return isinstance(node, dict)


def _is_array(node: JSON) -> TypeGuard[list[JSON]]:
    return isinstance(node, list)


def _inlined(tool: str, node: JSON, shared: Mapping[str, Any], path: tuple[str, ...]) -> JSON:
    """Inline every definition: many models handle `$ref` badly."""
    if _is_array(node):
        return [_inlined(tool, item, shared, path) for item in node]
    if not _is_object(node):
        return node
    if "$ref" in node:
        name = str(node["$ref"]).rpartition("/")[2]
        if name in path:
            raise SchemaError(tool, f"{name!r} contains itself; arguments must have a fixed depth")
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _inlined(tool, dict(shared[name]) | rest, shared, (*path, name))
    return _closed({key: _value(tool, key, node[key], shared, path) for key in node})


def _value(
    tool: str, key: str, value: JSON, shared: Mapping[str, Any], path: tuple[str, ...]
) -> JSON:
    if key == "properties" and _is_object(value):
        return {name: _inlined(tool, item, shared, path) for name, item in value.items()}
    if key in ("default", "enum", "const"):
        return msgspec.json.decode(msgspec.json.encode(value))  # a default may be a tuple
    return _inlined(tool, value, shared, path)


def _closed(node: dict[str, JSON]) -> dict[str, JSON]:
    if isinstance(node.get("title"), str):
        del node["title"]
    if "properties" in node:
        node.setdefault("additionalProperties", False)
    values = node.get("enum")
    if _is_array(values) and all(isinstance(value, str) for value in values):
        node = {"type": "string"} | node
    return node
